"""A run -> a bundle: graphs, hashes, proof, manifest, one atomic move."""

import hashlib
import platform
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime
import torch

from adar_export.builder import TYPES
from adar_export.graphs import build_graphs
from adar_export.opsets import check_opset
from adar_export.validate import Check, compare, random_graph, report
from adar_runtime import manifest as manifests
from adar_runtime.bundle import Bundle
from adar_runtime.errors import ExportError
from adar_runtime.files import new_folder
from adar_runtime.manifest import GraphFile, Manifest, Port
from adar_train.model import AdaR
from adar_train.runs import Run

EXIT = {"rule": "peak", "patience": 10}
TYPE_NAMES: dict[int, str] = {number: name for name, number in TYPES.items()}


def export_bundle(
    run: Run, out: Path, opset: int = 17, on_check: Callable[[Check], None] = lambda _: None
) -> Manifest:
    """Write a bundle that agrees with PyTorch, or none at all."""
    check_opset(opset)
    model = run.model
    if not isinstance(model, AdaR):
        raise ExportError(f"{run.path} holds a baseline ({run.config['kind']}): only AdaR is exported")
    with new_folder(out, marker=manifests.FILE_NAME) as folder:
        graph = run.graph()
        files = {name: _write(folder, name, proto) for name, proto in build_graphs(model, opset).items()}
        config = model.config
        manifest = Manifest(
            features=config.features,
            hidden=config.hidden,
            proxies=config.proxies,
            targets=config.targets,
            opset=opset,
            precision="fp32",
            level=config.level,
            regression=config.regression,
            unit_step=config.unit_step,
            alignment=config.alignment,
            exit=run.metrics.get("exit", EXIT),
            graphs=files,
            class_names=graph.class_names if config.targets else None,
            training={"data": run.config["data"], **run.metrics},
            versions=_versions(),
        )
        (folder / manifests.FILE_NAME).write_text(manifest.to_json())
        graphs = {"the run's graph": graph, "a random graph": random_graph(config)}
        checks = compare(model, Bundle(folder, "cpu"), graphs, on_check)
        manifest = replace(manifest, parity=report(checks))
        (folder / manifests.FILE_NAME).write_text(manifest.to_json())
    return manifest


def _versions() -> dict[str, str]:
    modules = {module.__name__: str(module.__version__) for module in (torch, onnx, onnxruntime)}
    return {"adar-deploy": version("adar-deploy"), "python": platform.python_version()} | modules


def _write(folder: Path, name: str, proto: onnx.ModelProto) -> GraphFile:
    content = proto.SerializeToString(deterministic=True)
    file = f"{name}.onnx"
    (folder / file).write_bytes(content)
    return GraphFile(
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        inputs=tuple(_port(value) for value in proto.graph.input),
        outputs=tuple(_port(value) for value in proto.graph.output),
    )


def _port(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    return Port(
        value.name, TYPE_NAMES[tensor.elem_type], tuple(d.dim_param or d.dim_value for d in tensor.shape.dim)
    )
