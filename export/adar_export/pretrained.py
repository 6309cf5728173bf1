"""Pretrain the equivariant model and write it as the bundle inside the package: `make pretrain`."""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from adar_export import convergence, validate
from adar_export.bf16_emulation import opened
from adar_export.equivariant_cell import build_equivariant_models
from adar_export.model_card import model_card
from adar_export.onnx_files import write_onnx_model
from adar_export.opsets import check_exact
from adar_export.writer import OPSET, THREADS, versions
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle import metadata
from adar_runtime.bundle.manifest import TABLES, Manifest
from adar_runtime.bundle.reading import MARKER
from adar_runtime.files import new_folder
from adar_runtime.graph import NODE, Graph
from adar_train.equivariant import EquivariantAdaR, PlacedGraph
from adar_train.pretraining import CHECKPOINT, Pretraining, block_model, load_model

EXIT = {"rule": "final"}
DESCRIPTION = (
    "AdaR for graphs it has never seen: classes come from descriptions (target_x), from a few known labels "
    "(train_mask) or from both. It takes any features. Nodes and targets start at a closed form; gates that "
    "read only invariants decide how far they move."
)
LICENCES = (
    "The training graphs are public benchmark data: arxiv-2023-text from TRAIS-Lab/LLM-Structured-Data "
    "(no licence is stated by our copy), all others from EdisonLeeeee/GraphData and "
    "yandex-research/heterophilous-graphs (MIT). The bundle contains none of their texts, features or labels."
)
OUT = Path(__file__).parents[2] / "adar_deploy" / "pretrained"


def export_pretrained(
    checkpoint: Path, out: Path, graphs: Sequence[str], seed: int, *, updates: int
) -> Manifest:
    """Write the model of a checkpoint as a bundle, if the bundle agrees with PyTorch.

    Args:
        checkpoint: A file of `adar_train.pretraining`.
        out: Folder of the bundle.
        graphs: Names of the training graphs.
        seed: Seed of the pretraining.
        updates: Number of updates of the pretraining.

    Returns:
        The manifest.

    Raises:
        ExportError: If the bundle and PyTorch disagree.
    """
    model = load_model(checkpoint)
    training = {
        "data": [*graphs, "generated block models"],
        "weights": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
        "seed": seed,
        "updates": updates,
        "licences": LICENCES,
    }
    with new_folder(out, MARKER) as folder:
        manifest = _write(folder, model, training)
        samples = sample_graphs()
        with opened(folder, threads=THREADS, made_here=True) as bundle:
            report = validate.compare(model, bundle, samples, as_tensors=PlacedGraph.of)
            validate.refuse(report)
            name, graph = "a generated graph with labels", samples["generated, labels"]
            found = convergence.measure(bundle, name, graph)
            manifest = replace(manifest, parity=report.to_dict(), convergence=found.to_dict())
        (folder / manifests.FILE_NAME).write_text(manifest.to_json())
        card = f"{model_card(manifest)}\n## Training data\n\n{LICENCES}\n"
        (folder / metadata.CARD).write_text(card, encoding="utf-8")
    return manifest


def sample_graphs() -> dict[str, Graph]:
    """Generated graphs with class descriptions, with labels and with both."""
    graph = block_model(np.random.default_rng(0), nodes=1200)
    mask = np.zeros(graph.nodes, np.bool_)
    mask[:50] = True
    labelled = replace(graph, train_mask=mask)
    return {
        "generated, descriptions": graph,
        "generated, labels": replace(labelled, target_features=None),
        "generated, both": labelled,
    }


def _write(folder: Path, model: EquivariantAdaR, training: dict[str, object]) -> Manifest:
    protos = build_equivariant_models(model, OPSET)
    for proto in protos.values():
        check_exact(proto, OPSET)
    config = model.config
    manifest = Manifest(
        features=config.features,
        hidden=config.hidden,
        proxies=config.proxies,
        targets=None,
        opset=OPSET,
        precision="fp32",
        aggregation=TABLES,
        level=NODE,
        regression=False,
        unit_step=False,
        alignment=config.alignment,
        exit=EXIT,
        onnx_models={name: write_onnx_model(folder, name, proto) for name, proto in protos.items()},
        training=training,
        versions=versions(),
        name="adar-pretrained",
        version="1.0.0",
        created_at=metadata.creation_date(datetime.now(UTC).timestamp()),
        description=DESCRIPTION,
        in_context=True,
    )
    (folder / manifests.FILE_NAME).write_text(manifest.to_json())
    return manifest


def main() -> None:
    """Read the command line of `make pretrain`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "graphs", nargs="*", type=Path, help="graph files; one that is given twice counts twice"
    )
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder to continue from")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the bundle")
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-step-info", action="store_true", help="an ablation: no time in the gates")
    given = parser.parse_args()
    torch.set_num_threads(1)
    training = Pretraining(
        given.checkpoints, given.updates, given.seed, step_info=not given.without_step_info
    )
    gains: list[float] = []

    def show(done: int, gain: float) -> None:
        gains.append(gain)
        if done % 20 == 0:
            sys.stderr.write(f"{done} of {given.updates} updates, {100 * np.mean(gains[-20:]):+.2f} points\n")

    training.run(given.graphs, show)
    names = list(dict.fromkeys(path.stem for path in given.graphs))
    manifest = export_pretrained(
        given.checkpoints / CHECKPOINT, given.out, names, given.seed, updates=given.updates
    )
    sys.stdout.write(f"{given.out}: agrees with PyTorch to {manifest.parity['needed']:.1e}\n")


if __name__ == "__main__":
    main()
