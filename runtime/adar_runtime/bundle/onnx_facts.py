"""Operators, parameters and metadata of an ONNX file, without the `onnx` package and without running it."""

from math import prod
from typing import NamedTuple

from adar_runtime.bundle.protobuf import fields, integers
from adar_runtime.errors import BundleError

BY_ROW = ("adar.by_row", "yes")  # metadata of an encoder that treats each node alone

_MODEL_METADATA = 14
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER, _NODE_OPERATOR, _TENSOR_DIMS = 7, 1, 5, 4, 1


class OnnxFacts(NamedTuple):
    """Operators and parameters of one model."""

    operators: list[str]  # the type of each
    parameters: int  # numbers in all weights


def facts_of(content: bytes) -> OnnxFacts:
    """Count operators and parameters of a file that `onnx_guard` has checked."""
    operators, parameters = [], 0
    for number, graph in fields(memoryview(content)):
        if number != _MODEL_GRAPH:
            continue
        for field, value in fields(graph):
            if field == _GRAPH_NODE:
                operators += [bytes(v).decode() for k, v in fields(value) if k == _NODE_OPERATOR]
            elif field == _GRAPH_INITIALIZER:
                parameters += prod(d for k, v in fields(value) if k == _TENSOR_DIMS for d in integers(v))
    return OnnxFacts(operators, parameters)


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of the file (metadata_props)."""
    try:
        entries = [
            dict(fields(value)) for number, value in fields(memoryview(content)) if number == _MODEL_METADATA
        ]
        return {bytes(one[1]).decode(): bytes(one.get(2, b"")).decode() for one in entries if 1 in one}
    except (IndexError, ValueError) as error:  # the guard does not check metadata, which cannot run
        raise BundleError(
            "an ONNX file of the bundle has metadata that is not text: export it again"
        ) from error


def encodes_by_row(encoder: bytes) -> bool:
    """Whether the encoder treats each node alone, so that nodes can be encoded in blocks."""
    key, value = BY_ROW
    return metadata_of(encoder).get(key) == value
