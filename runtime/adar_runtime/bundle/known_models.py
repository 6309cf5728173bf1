"""The models that `adar_export` writes. A bundle may compute nothing else.

`known_models.json` has the fingerprint of every topology that the exporter writes, and the sizes of its
weights in terms of the bundle's dimensions. `make fingerprints` writes the file; a test compares the file
with the exporter. Its length depends neither on dimensions nor on opsets.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from adar_runtime.bundle import signature
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.topology import NoTopologyError, Topology, Weight, read_topology
from adar_runtime.errors import BundleError, short

FILE = Path(__file__).with_name("known_models.json")

OLDEST_OPSET = 17  # the oldest that is exported
FLOATS = frozenset({"float32", "float16", "bfloat16"})
INDEX = frozenset({"int64"})
OPERATORS: dict[str, frozenset[str]] = {
    "Add": FLOATS,
    "Cast": FLOATS,
    "Clip": FLOATS,
    "Concat": FLOATS,
    "DequantizeLinear": FLOATS,
    "Div": FLOATS,
    "Flatten": FLOATS,
    "Gather": FLOATS | INDEX,
    "Gemm": FLOATS,
    "Identity": FLOATS,
    "LayerNormalization": FLOATS,
    "LeakyRelu": FLOATS,
    "MatMul": FLOATS,
    "Max": FLOATS,
    "Mul": FLOATS,
    "ReduceL2": FLOATS,
    "ReduceMax": FLOATS,
    "ReduceSum": FLOATS,
    "ReduceSumSquare": FLOATS,
    "Reshape": FLOATS,
    "Shape": INDEX,
    "Size": INDEX,
    "Softmax": FLOATS,
    "Sqrt": FLOATS,
    "Squeeze": FLOATS,
    "Sub": FLOATS,
    "Transpose": FLOATS,
    "Unsqueeze": FLOATS,
}
"""The operators that a model may have, with the element types of each: no division of integers, for example.

This list is the second check. A fingerprint that was added by mistake does not admit another operator.
"""


def check(manifest: Manifest, onnx_models: Mapping[str, bytes]) -> None:
    """Refuse a bundle whose models compute anything but AdaR.

    Args:
        manifest: The manifest of the bundle.
        onnx_models: The ONNX files, after the checks of `onnx_guard`.

    Raises:
        BundleError: A model is unknown, or its inputs or outputs are not those of the manifest.
    """
    found = {name: _topology(manifest, name, content) for name, content in onnx_models.items()}
    # Before the models are loaded: when ONNX Runtime loads a model, it computes what depends on fixed sizes.
    signature.check(manifest, {name: topology.ports for name, topology in found.items()})
    for name, topology in found.items():
        problem = _problem(manifest, name, topology)
        if problem:
            raise _unknown(manifest, name, problem)


def are_known(manifest: Manifest, onnx_models: Mapping[str, bytes], *, allow_others: bool) -> bool:
    """Whether all models are known. An unknown one raises a BundleError unless others are allowed."""
    try:
        check(manifest, onnx_models)
    except BundleError:
        if not allow_others:
            raise
        return False
    return True


def _topology(manifest: Manifest, name: str, content: bytes) -> Topology:
    try:
        return read_topology(content)
    except NoTopologyError as error:
        raise _unknown(manifest, name, f"it has {short(str(error))}") from error
    except (IndexError, ValueError) as error:
        file = short(manifest.onnx_file(name).file)
        raise BundleError(f"{file} is not a complete ONNX file") from error


def _unknown(manifest: Manifest, name: str, problem: str) -> BundleError:
    return BundleError(
        f"{short(manifest.onnx_file(name).file)} is not a model that this version of adar-deploy exports "
        f"({problem}): export the run again, or run the model anyway, in a process of its own, with "
        "--allow-unknown-model (in Python, allow_unknown_model=True)"
    )


def _problem(manifest: Manifest, name: str, topology: Topology) -> str | None:
    if topology.opset < OLDEST_OPSET:
        return f"it has opset {topology.opset}, in which operators have other meanings"
    if topology.opset != manifest.opset:
        return f"it has opset {topology.opset}, and the manifest says {short(manifest.opset)}"
    listed = known_models()[name].get(topology.fingerprint)
    if listed is None:
        return "its operators, their types or their order are different"
    dimensions = dimensions_of(manifest)
    if not any(_weights(sizes, dimensions) == topology.weights for sizes in listed):
        return "its weights do not have the dimensions of the manifest"
    foreign = [pair for pair in sorted(topology.operators) if pair[1] not in OPERATORS.get(pair[0], ())]
    return f"it has the operator {' of '.join(foreign[0])}" if foreign else None


def dimensions_of(manifest: Manifest) -> dict[str, int]:
    """The letters that stand for dimensions in `known_models.json`, with their values in this bundle."""
    learned = {} if manifest.targets is None else {"c": manifest.targets}
    return {"f": manifest.features, "d": manifest.hidden, "p": manifest.proxies} | learned


@lru_cache
def known_models() -> dict[str, dict[str, list[str]]]:
    """For each model, batched cell and phase: the possible sizes of the weights by fingerprint."""
    found: dict[str, dict[str, list[str]]] = {}
    for model, entries in json.loads(FILE.read_text(encoding="utf-8")).items():
        known = found.setdefault(model, {})
        for entry in entries:
            known.setdefault(entry["fingerprint"], []).append(entry["weights"])
    return found


def _weights(text: str, dimensions: Mapping[str, int]) -> list[Weight] | None:
    try:
        return [_weight(one, dimensions) for one in text.split(" ")] if text else []
    except KeyError:  # a model for learned targets, in a bundle for described ones
        return None


def _weight(text: str, dimensions: Mapping[str, int]) -> Weight:
    """Sizes, and values after "=": "d,d" and "1=0" are a square matrix and a list that contains only 0."""
    sides, is_integers, values = text.partition("=")
    return Weight(_numbers(sides, dimensions), _numbers(values, dimensions) if is_integers else None)


def _numbers(text: str, dimensions: Mapping[str, int]) -> tuple[int, ...]:
    """Numbers, and letters for dimensions, separated by commas."""
    return tuple(dimensions[one] if one.isalpha() else int(one) for one in text.split(",")) if text else ()
