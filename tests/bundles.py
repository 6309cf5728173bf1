"""Bundles with something changed in them, hashes and all, as a stranger could."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx

from adar_runtime.bundle.manifest import checksum_of


def edit(bundle: Path, change: Callable[[dict], object], *, seal: bool = True) -> None:
    """Change the manifest and, unless told otherwise, its checksum with it."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    if seal:
        manifest["checksum"] = checksum_of(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def replace_graph(bundle: Path, name: str, content: bytes) -> None:
    """Put other bytes in the place of a graph, and have the manifest vouch for them."""
    (bundle / f"{name}.onnx").write_bytes(content)
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(bundle, lambda m: m["graphs"][name].update(facts))


def change_graph(bundle: Path, copy: Path, name: str, change: Callable[[onnx.ModelProto], object]) -> Path:
    """A copy of the bundle (or itself) with one graph changed, for which the manifest vouches."""
    if copy != bundle:
        shutil.copytree(bundle, copy)
    model = onnx.load(copy / f"{name}.onnx")
    change(model)
    replace_graph(copy, name, model.SerializeToString())
    return copy


def change_weight(model: onnx.ModelProto, by: float = 1.0) -> None:
    """One number of the first weight matrix."""
    weight = next(w for w in model.graph.initializer if len(w.dims) == 2 and w.name != "no_message")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0, 0] += by
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
