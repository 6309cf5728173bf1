"""Export a run as a bundle: write the ONNX models, compare them with PyTorch, write the manifest."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from adar_export import convergence, validate
from adar_export.batch_proof import batch_samples, compare_batch
from adar_export.bf16_emulation import opened
from adar_export.convergence import Trial
from adar_export.model_card import describe_model, is_edited, model_card, with_hash
from adar_export.onnx_files import write_onnx_model
from adar_export.onnx_models import build_batched_cell, build_onnx_models, build_phase_models
from adar_export.opsets import check_exact, check_opset
from adar_export.phase_proof import compare_phases, phase_samples
from adar_export.plain_cell import export_plain_cell
from adar_export.precision import precision_of
from adar_export.samples import part_of, shapes_for, with_outputs
from adar_export.solver_proof import prove, prove_many
from adar_export.training_statistics import training_statistics
from adar_export.validate import Check
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle import metadata, pack, run_files
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.manifest import BATCHED_CELL, EDGES, TABLES, Manifest
from adar_runtime.bundle.reading import MARKER, read_manifest
from adar_runtime.errors import AdarError, ExportError, UsageError
from adar_runtime.evaluation.training_data import KEY, STATISTICS
from adar_runtime.files import new_folder, read_bundle_file, writing
from adar_runtime.graph import Graph
from adar_train.model import AdaR
from adar_train.runs import Run, public_name

OPSET = 17
EXIT = {"rule": "peak", "patience": 10}
THREADS = 1  # of ONNX Runtime: the compared graphs are too small for more threads to help


@dataclass(frozen=True)
class _ExportOptions:
    """The options of one export."""

    opset: int
    precision: str
    plain: bool
    name: str | None = None
    version: str = "1.0.0"
    description: str | None = None

    def check(self) -> None:
        """Raise a UsageError for options that cannot be exported, before any work is done."""
        check_opset(self.opset)
        precision_of(self.precision)
        metadata.check_texts(self.name, self.version, self.description)
        if self.plain and self.precision != "fp32":
            raise UsageError("a plain export is always fp32: remove --precision or --plain")


def export_bundle(
    run: Run,
    out: str | Path,
    opset: int = OPSET,
    precision: str = "fp32",
    plain: bool = False,
    steps: Sequence[int] = validate.STEPS,
    on_progress: Callable[[Check | Trial], None] = lambda _: None,
    overwrite: bool = False,
    name: str | None = None,
    version: str = "1.0.0",
    description: str | None = None,
) -> Manifest:
    """Export a run as a bundle, compare it with PyTorch, and keep it only if both agree.

    The comparison runs on the graph of the run (on a part of it if it is large) and on three small graphs of
    other shapes. The export also measures the fewest cell calls that reproduce the result of 300 steps.

    Args:
        run: The training run, from `adar_train.load_run`.
        out: Folder for the bundle. A bundle of the same run is replaced, if the export succeeds and nobody
            added a LICENSE or edited the model card.
        opset: ONNX opset of the models.
        precision: Precision of the large matrix products: "fp32", "fp16", "bf16", or "int8" for weights only.
        plain: True writes the cell with PyTorch's ONNX exporter from the paper's formulas, as a reference.
        steps: Numbers of steps after which bundle and PyTorch are compared.
        on_progress: Receives each `Check` and each `Trial` as soon as it is done.
        overwrite: True also replaces a bundle of another run, and such texts.
        name: Name of the model; the name of the run's folder by default.
        version: Version of the model.
        description: What the model is for, in a few sentences; a generated one by default.

    Returns:
        The manifest of the bundle. `manifest.parity` and `manifest.convergence` hold the measurements.

    Raises:
        UsageError: If the opset or precision is not supported, if `plain` has a precision besides fp32, or if
            the folder contains a bundle of another run. Also if name, version or description are not valid.
        ExportError: If the run is a baseline, if the bundle and PyTorch disagree, or if states overflow.
        AdarError: If the folder cannot be written, or it contains something other than a bundle.

    Example:
        >>> run = adar_train.load_run(Path("runs/minesweeper"))  # doctest: +SKIP
        >>> manifest = export_bundle(run, Path("bundle"), precision="fp16")  # doctest: +SKIP
        >>> manifest.parity["needed"]  # the largest relative difference  # doctest: +SKIP
        0.0004
    """
    out, options = Path(out), _ExportOptions(opset, precision, plain, name, version, description)
    options.check()
    model = adar_of(run)
    with new_folder(out, MARKER, lambda: None if overwrite else _check_same_run(out, run)) as folder:
        graph = run.graph()
        manifest = _write(folder, run, model, graph, options)
        part = part_of(graph)
        own = "the run's graph" if part is graph else f"{part.nodes:,} nodes of the run's graph"
        graphs = {own: part} | shapes_for(model.config)
        with opened(folder, threads=THREADS, made_here=True) as bundle:
            report = validate.compare(model, bundle, graphs, steps, on_progress)
            validate.refuse(report)
            batched = compare_batch(bundle, batch_samples(model.config))
            phases = compare_phases(bundle, phase_samples(model.config))
            manifest = replace(manifest, parity=report.to_dict() | {"batched": batched, "phases": phases})
            if (
                not manifest.unit_step
            ):  # with unit steps, the total time grows with the budget: no limit exists
                like = with_outputs(part, manifests.LEAST_OUTPUTS)
                named = own if like is part else f"a graph like {own}, drawn from its nodes"
                found = convergence.measure(bundle, named, like, on_progress)
                manifest = replace(manifest, convergence=found.to_dict())
                if manifest.behaves_like_ode:
                    proof = prove(bundle, graph, on_progress) or prove_many(bundle, run.many_graphs())
                    manifest.convergence.update({"proof": proof} if proof else {})
            manifest = replace(manifest, statistics=training_statistics(run, bundle, graph))
        (folder / manifests.FILE_NAME).write_text(manifest.to_json())
        (folder / metadata.CARD).write_text(with_hash(model_card(manifest)), encoding="utf-8")
    return manifest


def open_unmeasured(run: Run, folder: Path) -> Bundle:
    """Write the ONNX models of a run to a folder and open them, without comparing them with PyTorch.

    The predictions are those of the bundle that `export_bundle` writes with its default options.
    """
    options = _ExportOptions(OPSET, "fp32", plain=False)
    _write(folder, run, adar_of(run), run.graph(), options)
    return Bundle(folder, made_here=True)


def _check_same_run(out: Path, run: Run) -> None:
    """Refuse to replace a bundle that was exported from another run, or files that somebody added to it."""
    if not (out / manifests.FILE_NAME).is_file():
        return
    try:
        found = read_manifest(out)
    except AdarError:
        found = None
    if found is None or found.training.get("weights") != run.fingerprint():
        raise UsageError(
            f"{out} contains a bundle of another model: choose another --out, or replace it with --overwrite"
        )
    with writing(out):
        added = next(filter(_is_added, (out / name for name in pack.OTHER_FILES)), None)
    if added:
        raise UsageError(
            f"{added} was added or edited since the last export: move it away, or replace the whole "
            "bundle with --overwrite"
        )


def _is_added(file: Path) -> bool:
    """Whether a bundle has this file, and `export_bundle` did not write it."""
    if not file.exists():
        return False
    try:
        return file.name != metadata.CARD or is_edited(read_bundle_file(file, pack.MAX_OTHER_BYTES))
    except (OSError, AdarError):
        return True


def adar_of(run: Run) -> AdaR:
    """Return the AdaR model of a run, or raise an ExportError if the run is a baseline."""
    if not isinstance(run.model, AdaR):
        raise ExportError(f"{run.path} holds a baseline ({run.config['kind']}): only AdaR can be exported")
    return run.model


def _write(folder: Path, run: Run, model: AdaR, graph: Graph, options: _ExportOptions) -> Manifest:
    """Write the ONNX models, and a manifest without the measurements."""
    protos = build_onnx_models(model, options.opset, precision_of(options.precision))
    if options.plain:
        protos["cell"] = export_plain_cell(model, options.opset)
    for proto in protos.values():
        check_exact(proto, options.opset)
    arguments = model, options.opset, precision_of(options.precision)
    batched = None if options.plain else build_batched_cell(*arguments)
    config = model.config
    phases = None if options.plain or config.edge_weights else build_phase_models(*arguments)
    manifest = Manifest(
        features=config.features,
        hidden=config.hidden,
        proxies=config.proxies,
        targets=config.targets,
        opset=options.opset,
        precision=options.precision,
        aggregation=EDGES if options.plain else TABLES,
        level=config.level,
        regression=config.regression,
        unit_step=config.unit_step,
        smoothing=config.smoothing,
        alignment=config.alignment,
        exit=run.metrics.get("exit", EXIT),
        onnx_models={name: write_onnx_model(folder, name, proto) for name, proto in protos.items()},
        batched_cell=None if batched is None else write_onnx_model(folder, BATCHED_CELL, batched),
        phases=None
        if phases is None
        else {name: write_onnx_model(folder, f"phase_{name}", proto) for name, proto in phases.items()},
        class_names=graph.class_names if config.targets else None,
        feature_encoding=graph.feature_encoding,
        training={
            "data": [*map(public_name, run.config["data"])],
            "run": run.path.resolve().name,
            "weights": run.fingerprint(),
            **_training(run),
        },
        versions=versions(),
        name=options.name or metadata.name_from(run.path.resolve().name),
        version=options.version,
        created_at=metadata.creation_date((run.path / run_files.WEIGHTS).stat().st_mtime),
        feature_schema=metadata.feature_schema(graph),
        edge_weights=config.edge_weights,
    )
    manifest = replace(manifest, description=options.description or describe_model(manifest))
    (folder / manifests.FILE_NAME).write_text(manifest.to_json())
    return manifest


def _training(run: Run) -> dict[str, Any]:
    """Return the metrics and the fingerprint of the run. The statistics have a field of their own."""
    training = run.training()
    if KEY in training:
        training[KEY] = {name: value for name, value in training[KEY].items() if name != STATISTICS}
    return training


def versions() -> dict[str, str]:
    """Return the versions of the packages that make a bundle."""
    modules = {module.__name__: str(module.__version__) for module in (torch, onnx, onnxruntime)}
    return {"adar-deploy": version_of("adar-deploy"), "python": platform.python_version()} | modules
