"""Zero-shot classification of texts: train on some classes, predict others.

The model learns how node texts and class descriptions fit together, so it can predict classes that were not
in the training data. The texts here are a few words each. To read your own texts from tables, use
`adar_runtime.graph.formats.texts.read_texts` or `adar-deploy embed`.

    python examples/zero_shot_from_text.py --model all-MiniLM-L6-v2
"""

import argparse
from pathlib import Path

import numpy as np

from adar_deploy.text_embedding import Embedder
from adar_export import export_bundle
from adar_runtime import Graph, load
from adar_runtime.evaluation.zero_shot_baselines import cosine
from adar_train import ModelConfig, TrainConfig, fit, load_run, save_run
from adar_train.data.splits import with_split

TRAINING_CLASSES = {
    "physics": "quark boson lepton hadron neutrino",
    "biology": "enzyme protein membrane genome ribosome",
    "history": "empire dynasty treaty revolt monarch",
}
NEW_CLASSES = {
    "music": "violin melody rhythm chord opera",
    "cooking": "onion butter oven recipe flour",
    "sports": "goal referee stadium league coach",
    "law": "court statute verdict appeal judge",
}


def papers(topics: dict[str, str], embedder: Embedder, seed: int, nodes: int = 300) -> Graph:
    """A graph of short texts. Most edges connect texts of the same topic."""
    random = np.random.default_rng(seed)
    words = [text.split() for text in topics.values()]
    any_word = " ".join(topics.values()).split()
    label = random.integers(0, len(topics), nodes)
    texts = [" ".join(random.choice(words[k] if random.random() < 0.7 else any_word, 2)) for k in label]
    a, b = random.integers(0, nodes, (2, 20 * nodes))
    linked = random.random(a.size) < np.where(label[a] == label[b], 0.4, 0.05)
    edges = np.stack([a[linked], b[linked]])
    return Graph(
        features=embedder(texts),
        edge_index=np.concatenate([edges, edges[::-1]], axis=1),
        labels=label,  # for training and for the accuracy below; inference does not use labels
        target_features=embedder([f"{name}: {text}" for name, text in topics.items()]),
        class_names=tuple(topics),
    )


def main() -> None:
    """Train on three topics, then predict four others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="a model name on the Hugging Face hub, or a folder"
    )
    parser.add_argument("--out", type=Path, default=Path("build/zero-shot"))
    parser.add_argument("--epochs", type=int, default=60)
    given = parser.parse_args()
    embedder = Embedder(given.model)

    seen = with_split(papers(TRAINING_CLASSES, embedder, seed=0))
    settings = TrainConfig(epochs=given.epochs, episodes=True, exit_budgets=(8, 50))
    model = ModelConfig(seen.width, None, hidden=32, variant="zero-shot", dropout=0.0)
    fitted = fit([seen], model, settings)
    save_run(given.out / "run", fitted, seen, ["topics"], settings)
    export_bundle(load_run(given.out / "run"), given.out / "bundle")

    unseen = papers(NEW_CLASSES, embedder, seed=1)
    result = load(given.out / "bundle").run(unseen, budget=50)
    right = float(np.mean(result.predictions == unseen.labels))
    alone = float(np.mean(cosine(unseen).argmax(axis=1) == unseen.labels))
    print(f"classes never seen: {right:.1%} right, {alone:.1%} by the texts alone")


if __name__ == "__main__":
    main()
