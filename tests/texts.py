"""A real, tiny sentence-transformers model, and graphs of texts that it can distinguish."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

TOPICS = {
    "physics": ["quark", "boson", "lepton", "hadron", "neutrino"],
    "biology": ["enzyme", "protein", "membrane", "genome", "ribosome"],
    "history": ["empire", "dynasty", "treaty", "revolt", "monarch"],
}


def tiny_model(folder: Path, columns: int = 64, words: Sequence[str] = ()) -> Path:
    """A model with one random vector per word: texts that share words are close."""
    # Not above: the import takes seconds in each process that collects tests.
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", *(words or [*TOPICS, *(word for topic in TOPICS.values() for word in topic)])]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).normal(size=(len(words), columns)).astype(np.float32)
    weights[0] = 0
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu").save(
        str(folder)
    )
    return folder


def write_tables(folder: Path, nodes: int = 60, seed: int = 0) -> list[str]:
    """Write papers.csv, cites.csv and fields.csv; return the label of each paper."""
    random = np.random.default_rng(seed)
    names = list(TOPICS)
    labels = random.integers(0, len(names), nodes)
    papers = [
        {"id": f"p{i}", "text": " ".join(random.choice(TOPICS[names[k]], 3)), "label": names[k]}
        for i, k in enumerate(labels)
    ]
    cites = [
        {"source": f"p{i}", "target": f"p{random.choice(np.flatnonzero(labels == k))}"}
        for i, k in enumerate(labels)
        for _ in range(2)
    ]
    fields = [{"name": name, "text": " ".join(words)} for name, words in TOPICS.items()]
    for file, rows in (("papers.csv", papers), ("cites.csv", cites), ("fields.csv", fields)):
        with (folder / file).open("w", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return [paper["label"] for paper in papers]
