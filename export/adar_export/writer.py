"""A run -> a bundle: graphs, hashes, proof, manifest, one atomic move."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime
import torch

from adar_export import convergence, validate
from adar_export.bf16_emulation import opened
from adar_export.convergence import Trial
from adar_export.onnx_files import write_onnx_model
from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import check_exact, check_opset
from adar_export.plain_cell import export_plain_cell
from adar_export.precision import precision_of
from adar_export.samples import part_of, shapes_for
from adar_export.validate import Check
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.manifest import EDGES, TABLES, Manifest
from adar_runtime.errors import ExportError, UsageError
from adar_runtime.files import new_folder
from adar_runtime.graph import Graph
from adar_train.model import AdaR
from adar_train.runs import Run, public_name

EXIT = {"rule": "peak", "patience": 10}
THREADS = 1  # of ONNX Runtime: on graphs as small as the ones compared, more would wait for each other


@dataclass(frozen=True)
class _Wish:
    """How a bundle is to be."""

    opset: int
    precision: str
    plain: bool

    def check(self) -> None:
        """Refuse what cannot come out right before any work is done."""
        check_opset(self.opset)
        precision_of(self.precision)
        if self.plain and self.precision != "fp32":
            raise UsageError("a plain export is fp32: leave --precision or --plain out")


def export_bundle(
    run: Run,
    out: Path,
    opset: int = 17,
    precision: str = "fp32",
    plain: bool = False,
    steps: Sequence[int] = validate.STEPS,
    on_progress: Callable[[Check | Trial], None] = lambda _: None,
) -> Manifest:
    """Write a bundle that agrees with PyTorch after each of these numbers of `steps`, or none at all.

    `plain` is for comparison: the cell as the paper writes it, as PyTorch's own exporter gives it.
    """
    wish = _Wish(opset, precision, plain)
    wish.check()
    model = adar_of(run)
    with new_folder(out, marker=manifests.FILE_NAME) as folder:
        graph = run.graph()
        manifest = _write(folder, run, model, graph, wish)
        part = part_of(graph)
        own = "the run's graph" if part is graph else f"{part.nodes:,} nodes of the run's graph"
        graphs = {own: part} | shapes_for(model.config)
        with opened(folder, threads=THREADS) as bundle:
            report = validate.compare(model, bundle, graphs, steps, on_progress)
            validate.refuse(report)
            manifest = replace(manifest, parity=report.to_dict())
            if not manifest.unit_step:  # whose times grow with the budget: no ODE, nothing to converge to
                found = convergence.measure(bundle, own, part, on_progress)
                manifest = replace(manifest, convergence=found.to_dict())
        (folder / manifests.FILE_NAME).write_text(manifest.to_json())
    return manifest


def adar_of(run: Run) -> AdaR:
    """The model of a run that can be exported."""
    if not isinstance(run.model, AdaR):
        raise ExportError(f"{run.path} holds a baseline ({run.config['kind']}): only AdaR is exported")
    return run.model


def _write(folder: Path, run: Run, model: AdaR, graph: Graph, wish: _Wish) -> Manifest:
    """The graphs, and a manifest that does not know yet how good they are."""
    protos = build_onnx_models(model, wish.opset, precision_of(wish.precision))
    if wish.plain:
        protos["cell"] = export_plain_cell(model, wish.opset)
    for proto in protos.values():
        check_exact(proto, wish.opset)
    config = model.config
    manifest = Manifest(
        features=config.features,
        hidden=config.hidden,
        proxies=config.proxies,
        targets=config.targets,
        opset=wish.opset,
        precision=wish.precision,
        aggregation=EDGES if wish.plain else TABLES,
        level=config.level,
        regression=config.regression,
        unit_step=config.unit_step,
        alignment=config.alignment,
        exit=run.metrics.get("exit", EXIT),
        onnx_models={name: write_onnx_model(folder, name, proto) for name, proto in protos.items()},
        class_names=graph.class_names if config.targets else None,
        training={
            "data": [*map(public_name, run.config["data"])],
            "weights": run.fingerprint(),
            **run.metrics,
        },
        versions=_versions(),
    )
    (folder / manifests.FILE_NAME).write_text(manifest.to_json())
    return manifest


def _versions() -> dict[str, str]:
    modules = {module.__name__: str(module.__version__) for module in (torch, onnx, onnxruntime)}
    return {"adar-deploy": version("adar-deploy"), "python": platform.python_version()} | modules
