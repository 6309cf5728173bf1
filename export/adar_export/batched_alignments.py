"""The alignment of each graph of a batch, [b], as ONNX operators.

`present` [b, n, 1] is 1 / (number of nodes of the graph) for a node, and 0 for padding. `mask` says which
targets are padding; None if none are.
"""

from collections.abc import Callable
from typing import NamedTuple

from adar_export.builder import OnnxBuilder
from adar_export.onnx_ops import mean_of_present, row_lengths, side
from adar_train import alignments


class TargetMask(NamedTuple):
    """Which targets of a batch are padding. The rows of padding are zero."""

    is_target: str  # [b, c, 1], 1 or 0
    number: str  # [b, 1, 1], the number of targets of each graph
    absent: str  # [b, 1, c], 0, or a large negative number for padding


def mean_inner_product(
    builder: OnnxBuilder, nodes: str, targets: str, present: str, mask: TargetMask | None = None
) -> str:
    """Emit the inner product of the mean node and the mean target."""
    means = mean_of_present(builder, nodes, present), _mean_target(builder, targets, mask)
    products = builder.op("Mul", *means)
    return _one_per_graph(builder, builder.reduce("ReduceSum", products, 2))


def cosine_margin(
    builder: OnnxBuilder, nodes: str, targets: str, present: str, mask: TargetMask | None = None
) -> str:
    """Emit max_j h·(ĉ_j - mean ĉ) / ‖h‖, the mean over the nodes of each graph."""
    centred = builder.op("Sub", targets, _mean_target(builder, targets, mask))
    if mask is not None:
        centred = builder.op("Mul", centred, mask.is_target)
    unit = builder.op("Div", centred, row_lengths(builder, centred, axis=2))
    spread = builder.op("Sub", unit, _mean_target(builder, unit, mask))
    margins = builder.op("MatMul", nodes, builder.op("Transpose", spread, perm=[0, 2, 1]))  # [b, n, c]
    if mask is not None:
        margins = builder.op("Add", margins, mask.absent)
    largest = builder.reduce("ReduceMax", margins, 2, keepdims=True)
    relative = builder.op("Div", largest, row_lengths(builder, nodes, axis=2))  # [b, n, 1]
    return _one_per_graph(builder, builder.reduce("ReduceSum", builder.op("Mul", relative, present), 2))


def _mean_target(builder: OnnxBuilder, targets: str, mask: TargetMask | None) -> str:
    """Emit the mean target of each graph, [b, 1, d]."""
    total = builder.reduce("ReduceSum", targets, 1, keepdims=True)
    return builder.op("Div", total, side(builder, targets, 1) if mask is None else mask.number)


def _one_per_graph(builder: OnnxBuilder, values: str) -> str:
    """Emit the sum over the rows of each graph: [b, rows] → [b]."""
    return builder.reduce("ReduceSum", values, 1)


BATCHED_ALIGNMENTS: dict[Callable[..., object], Callable[..., str]] = {
    alignments.mean_inner_product: mean_inner_product,
    alignments.cosine_margin: cosine_margin,
}
"""For each alignment of `adar_train.alignments`, its emitter for a batch."""
