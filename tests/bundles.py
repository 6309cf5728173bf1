"""Bundles with something changed in them, hashes and all, as a stranger could."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx


def edit(bundle: Path, change: Callable[[dict], object]) -> None:
    """Change the manifest."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def change_graph(bundle: Path, copy: Path, name: str, change: Callable[[onnx.ModelProto], object]) -> Path:
    """A copy of the bundle (or itself) with one graph changed, for which the manifest vouches."""
    if copy != bundle:
        shutil.copytree(bundle, copy)
    model = onnx.load(copy / f"{name}.onnx")
    change(model)
    content = model.SerializeToString()
    (copy / f"{name}.onnx").write_bytes(content)
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(copy, lambda m: m["graphs"][name].update(facts))
    return copy


def change_weight(model: onnx.ModelProto) -> None:
    """One number of the first weight matrix."""
    weight = next(w for w in model.graph.initializer if len(w.dims) == 2 and w.name != "no_message")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0, 0] += 1.0
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
