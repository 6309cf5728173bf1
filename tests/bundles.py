"""Change a bundle and its hashes, as an attacker could."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx

from adar_runtime.bundle.manifest import Manifest, checksum_of


def edit(bundle: Path, change: Callable[[dict], object], *, seal: bool = True) -> None:
    """Change the manifest; `seal` also updates its checksum."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    if seal:
        manifest["checksum"] = checksum_of(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def forget_proof(bundle: Path) -> None:
    """Remove the proof of a solver, if there is one: the solver "auto" is then Euler's method."""
    text = (bundle / "manifest.json").read_text()
    manifest = Manifest.from_json(text)
    rest = {name: value for name, value in manifest.convergence.items() if name != "proof"}
    (bundle / "manifest.json").write_text(replace(manifest, convergence=rest).to_json())


def replace_model(bundle: Path, name: str, content: bytes) -> None:
    """Replace an ONNX file and update its size and hash in the manifest."""
    (bundle / f"{name}.onnx").write_bytes(content)
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(bundle, lambda m: m["graphs"][name].update(facts))


def change_model(bundle: Path, copy: Path, name: str, change: Callable[[onnx.ModelProto], object]) -> Path:
    """Change one ONNX model in a copy of the bundle (or in place) and update the manifest."""
    if copy != bundle:
        shutil.copytree(bundle, copy)
    model = onnx.load(copy / f"{name}.onnx")
    change(model)
    replace_model(copy, name, model.SerializeToString())
    return copy


def change_weight(model: onnx.ModelProto, by: float = 1.0) -> None:
    """Change one number of the first weight matrix."""
    weight = next(w for w in model.graph.initializer if len(w.dims) == 2 and w.name != "no_message")
    array = onnx.numpy_helper.to_array(weight).copy()
    array[0, 0] += by
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
