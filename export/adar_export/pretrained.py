"""Pretrain the equivariant model and write it as the bundle inside the package: see `make pretrain`."""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from adar_export import convergence, validate
from adar_export.batch_proof import compare_batch
from adar_export.batched_equivariant_cell import build_batched_equivariant_cell
from adar_export.bf16_emulation import opened
from adar_export.equivariant_cell import EQUIVARIANT_PRECISIONS, build_equivariant_models
from adar_export.equivariant_phases import build_equivariant_phases
from adar_export.model_card import model_card
from adar_export.onnx_files import write_onnx_model
from adar_export.opsets import check_exact
from adar_export.phase_proof import compare_phases
from adar_export.solver_proof import prove_in_context
from adar_export.writer import OPSET, THREADS, versions
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle import metadata
from adar_runtime.bundle.manifest import BATCHED_CELL, TABLES, Manifest
from adar_runtime.bundle.reading import MARKER, read_bundle
from adar_runtime.errors import BundleError, UsageError
from adar_runtime.evaluation import training_data
from adar_runtime.files import new_folder
from adar_runtime.graph import NODE, Graph
from adar_runtime.graph.formats import read_graph
from adar_train.data.context_episodes import block_model
from adar_train.equivariant import ABLATIONS, EquivariantAdaR, PlacedGraph
from adar_train.pretraining import CHECKPOINT, Pretraining, load_model
from adar_train.runs import public_name

EXIT = {"rule": "final"}
PROOF_NODES, PROOF_SEEDS = 1000, 4  # of the graphs of the solver's proof; each seed has three tasks
FINE_TUNING_UPDATES, FINE_TUNING_LR = 100, 5e-4
DESCRIPTION = (
    "Predicts classes of nodes on graphs that it was not trained on. The graph says what the classes are: "
    "with descriptions (target_x), with some known labels (train_mask), or with both. Features may have any "
    "number of columns. A computation without trained weights gives the first answer; the trained part then "
    "refines it."
)
LICENCES = (
    "The training graphs are public benchmark data: arxiv-2023-text from TRAIS-Lab/LLM-Structured-Data "
    "(no licence is stated by our copy), all others from EdisonLeeeee/GraphData and "
    "yandex-research/heterophilous-graphs (MIT). The bundle contains none of their texts, features or labels."
)
OUT = Path(__file__).parents[2] / "adar_deploy" / "pretrained"


def export_pretrained(
    checkpoint: Path,
    out: Path,
    data: Sequence[str],
    seed: int,
    *,
    updates: int,
    tuned: Mapping[str, object] | None = None,
    precision: str = "fp32",
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write the model of a checkpoint as a bundle, if the bundle agrees with PyTorch.

    Args:
        checkpoint: A file of `adar_train.pretraining`.
        out: Folder of the bundle.
        data: Names of the training data.
        seed: Seed of the pretraining.
        updates: Number of updates of the pretraining.
        tuned: For a fine-tuned model, what else the manifest says about its training.
        precision: Precision of messages and large products: "fp32", "fp16" or "bf16".
        check: Called before and after the work. It raises an error if `out` must not be replaced.

    Returns:
        The manifest.

    Raises:
        ExportError: If the bundle and PyTorch disagree.
    """
    model = load_model(checkpoint)
    training = {
        "data": list(data),
        "weights": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
        "seed": seed,
        "updates": updates,
        "licences": LICENCES,
        **(tuned or {}),
    }
    return _export(model, out, training, precision, check=check)


def rewrite(bundle: Path, out: Path) -> Manifest:
    """Write a pretrained bundle again with the models of this exporter. The weights stay the same.

    Args:
        bundle: Folder of the bundle.
        out: Folder of the new bundle, which may be the same.

    Returns:
        The manifest of the new bundle.

    Raises:
        UsageError: The bundle is not a pretrained model.
        ExportError: If the new bundle and PyTorch disagree.
    """
    before, weights = _read_pretrained(bundle)
    model = EquivariantAdaR(before.hidden)
    model.load_state_dict(weights)
    return _export(model.eval(), out, before.training, before.precision, before.created_at)


def _export(
    model: EquivariantAdaR,
    out: Path,
    training: Mapping[str, object],
    precision: str,
    created_at: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Write and compare a bundle. `created_at` is now, unless the weights are older.

    `check` is called just before the bundle gets its name; it may raise an exception.
    """
    with new_folder(out, MARKER, check) as folder:
        manifest = _write(folder, model, training, precision, created_at)
        samples = sample_graphs()
        with opened(folder, threads=THREADS, made_here=True) as bundle:
            report = validate.compare(model, bundle, samples, as_tensors=PlacedGraph.of)
            validate.refuse(report)
            batched = compare_batch(bundle, small_samples())
            phases = compare_phases(bundle, small_samples())
            parity = report.to_dict() | {"batched": batched, "phases": phases}
            name, graph = "a generated graph with labels", samples["generated, labels"]
            found = convergence.measure(bundle, name, graph).to_dict()
            manifest = replace(manifest, parity=parity, convergence=found)
            if manifest.behaves_like_ode:
                proof = prove_in_context(bundle, proof_graphs(), "generated graphs")
                manifest.convergence.update({"proof": proof} if proof else {})
        (folder / manifests.FILE_NAME).write_text(manifest.to_json())
        card = f"{model_card(manifest)}\n## Training data\n\n{LICENCES}\n"
        (folder / metadata.CARD).write_text(card, encoding="utf-8")
    return manifest


def weights_in_bundle(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a pretrained model from its cell.

    Raises:
        UsageError: The bundle is not a pretrained model.
        BundleError: The folder is not a bundle of this version, or its weights have other names.
    """
    return _read_pretrained(folder)[1]


def _read_pretrained(folder: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """Read the manifest and the weights together: the bundle may be replaced at any moment."""
    manifest, models = read_bundle(folder)
    if not manifest.in_context:
        raise UsageError(f"{folder} is not a pretrained model: give pretrained, or a bundle made from it")
    found = onnx.load_model_from_string(models["cell"]).graph.initializer
    arrays = {each.name: torch.tensor(numpy_helper.to_array(each)) for each in found}
    weights = {}
    for name in EquivariantAdaR(manifest.hidden).state_dict():
        stored = name.removeprefix("cell.")
        kernel = f"{stored.removesuffix('.weight')}.T"
        if kernel not in arrays and stored not in arrays:  # a known model may have any names
            raise BundleError(f"{folder} has no weights {stored!r}: it cannot be trained further")
        weights[name] = arrays[kernel].T.contiguous() if kernel in arrays else arrays[stored]
    return manifest, weights


def fine_tune(
    bundle: Path,
    graphs: Sequence[Path],
    out: Path,
    *,
    updates: int = FINE_TUNING_UPDATES,
    lr: float = FINE_TUNING_LR,
    seed: int = 0,
    on_update: Callable[[int, float], None] = lambda *_: None,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Train a pretrained model on episodes of more graphs, and write it as a new bundle.

    Args:
        bundle: Folder of the pretrained model.
        graphs: Graph files with labels. With a train_mask, only the labels of its first split are used.
        out: Folder of the new bundle.
        updates: Number of updates, of four episodes each.
        lr: Largest learning rate.
        seed: Seed of the episodes.
        on_update: Receives the updates done, and the mean gain of accuracy over the start.
        check: Called before and after the bundle is made. It raises an error if `out` must not be replaced.

    Returns:
        The manifest of the new bundle.

    Raises:
        UsageError: The bundle is not a pretrained model.
        GraphError: A graph cannot be read, or has no labels of classes.
        ExportError: The new bundle and PyTorch disagree.
    """
    manifest, first = _read_pretrained(bundle)
    before = manifest.training
    read = {path: read_graph(path) for path in dict.fromkeys(graphs)}  # once: files may be replaced
    own = _record([*read.values()])
    record = training_data.joined(before.get(training_data.KEY), own)  # damage shows at once
    names = [*_names(before.get("data")), *(public_name(str(path)) for path in graphs)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        training = Pretraining(folder, updates, seed, lr=lr, first=first)
        training.run(graphs, on_update, all_labels=False, read=read.pop)
        tuned = {"tuned_from": str(before.get("weights")), training_data.KEY: record}
        return export_pretrained(
            folder / CHECKPOINT, out, names, seed, updates=updates, tuned=tuned, check=check
        )


def _names(data: object) -> list[str]:
    """The names of the graphs of an earlier training. A stranger may have written them."""
    if data is not None and not (isinstance(data, list) and all(isinstance(each, str) for each in data)):
        raise BundleError("the bundle's list of training graphs is damaged: export it again")
    return data or []


def _record(graphs: Sequence[Graph]) -> dict[str, object]:
    """What was trained on, so that scores on these graphs do not count as scores on new ones."""
    found = training_data.describe([_with_used_labels(graph) for graph in graphs], 0)
    del found[training_data.STATISTICS]  # the model takes any features
    return found


def _with_used_labels(graph: Graph) -> Graph:
    """The graph with a train_mask: without its own, all labels are used."""
    if graph.labelled("train") is not None:
        return graph
    return replace(graph, train_mask=np.ones(graph.nodes, np.bool_), val_mask=None, test_mask=None)


def sample_graphs(seed: int = 0, nodes: int = 1200) -> dict[str, Graph]:
    """Generated graphs with class descriptions, with labels and with both."""
    graph = block_model(np.random.default_rng(seed), nodes)
    mask = np.zeros(graph.nodes, np.bool_)
    mask[:50] = True
    labelled = replace(graph, train_mask=mask)
    return {
        "generated, descriptions": graph,
        "generated, labels": replace(labelled, target_features=None),
        "generated, both": labelled,
    }


def small_samples() -> list[Graph]:
    """Generated graphs for the comparison of batches with single runs.

    They have different numbers of nodes and of classes, and each task; one has no edges, and one is a node.
    """
    found: list[Graph] = []
    for seed, nodes in enumerate((30, 90, 200, 41)):
        found += sample_graphs(seed, nodes).values()
    first = found[0]
    nothing = np.zeros((2, 0), np.int64)
    lone = Graph(first.rows(0, 1), nothing, target_features=first.target_features)
    return [*found, replace(first, edge_index=nothing), lone]


def proof_graphs() -> list[Graph]:
    """Generated graphs of all tasks, with 12,000 nodes together: one prediction is less than 0.01 %."""
    drawn = [sample_graphs(seed, PROOF_NODES) for seed in range(PROOF_SEEDS)]
    return [graph for samples in drawn for graph in samples.values()]


def _write(
    folder: Path,
    model: EquivariantAdaR,
    training: Mapping[str, object],
    precision: str = "fp32",
    created_at: str | None = None,
) -> Manifest:
    protos = build_equivariant_models(model, OPSET, precision)
    batched = build_batched_equivariant_cell(model, OPSET, precision)
    phases = build_equivariant_phases(model, OPSET, precision)
    for proto in (*protos.values(), batched, *phases.values()):
        check_exact(proto, OPSET)
    config = model.config
    manifest = Manifest(
        features=config.features,
        hidden=config.hidden,
        proxies=config.proxies,
        targets=None,
        opset=OPSET,
        precision=precision,
        aggregation=TABLES,
        level=NODE,
        regression=False,
        unit_step=False,
        alignment=config.alignment,
        exit=EXIT,
        onnx_models={name: write_onnx_model(folder, name, proto) for name, proto in protos.items()},
        batched_cell=write_onnx_model(folder, BATCHED_CELL, batched),
        phases={name: write_onnx_model(folder, f"phase_{name}", proto) for name, proto in phases.items()},
        training=dict(training),
        versions=versions(),
        name="adar-pretrained",
        version="1.0.0",
        created_at=created_at or metadata.creation_date(datetime.now(UTC).timestamp()),
        description=DESCRIPTION,
        in_context=True,
    )
    (folder / manifests.FILE_NAME).write_text(manifest.to_json())
    return manifest


def main() -> None:
    """Read the command line of `make pretrain` and `make pretrained-bundle`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "graphs", nargs="*", type=Path, help="graph files; one that is given twice counts twice"
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--checkpoints", type=Path, help="folder to continue from")
    task.add_argument("--rewrite", action="store_true", help="write the bundle again, with its own weights")
    parser.add_argument("--episodes", type=Path, help="folder that keeps placed episodes for more trainings")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the bundle")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=EQUIVARIANT_PRECISIONS, default="fp32")
    parser.add_argument("--without", choices=ABLATIONS, help="an ablation: what the gates do not read")
    given = parser.parse_args()
    torch.set_num_threads(1)
    manifest = rewrite(given.out, given.out) if given.rewrite else _pretrain(given)
    sys.stdout.write(f"{given.out}: agrees with PyTorch to {manifest.parity['needed']:.1e}\n")


def _pretrain(given: argparse.Namespace) -> Manifest:
    """Train, and write the bundle."""
    training = Pretraining(given.checkpoints, given.updates, given.seed, given.without)
    gains: list[float] = []

    def show(done: int, gain: float) -> None:
        gains.append(gain)
        if done % 20 == 0:
            sys.stderr.write(f"{done} of {given.updates} updates, {100 * np.mean(gains[-20:]):+.2f} points\n")

    training.run(given.graphs, show, episodes=given.episodes)
    names = [*dict.fromkeys(path.stem for path in given.graphs), "generated block models"]
    return export_pretrained(
        given.checkpoints / CHECKPOINT,
        given.out,
        names,
        given.seed,
        updates=given.updates,
        precision=given.precision,
    )


if __name__ == "__main__":
    main()
