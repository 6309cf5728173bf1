"""The classes of the standard cell (`adar_train.cell`) and the alignment scalars as ONNX operators."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps, Factor
from adar_export.onnx_ops import mean_row, row_lengths, unit_rows
from adar_train.model import AdaR

LAYER_NORM_EPSILON = 1e-5  # PyTorch's default
EQUAL_PARTS = np.ones(3, np.float32)


def input_transformation(builder: OnnxBuilder, model: AdaR, nodes: str, targets: str) -> tuple[str, str]:  # noqa: ARG001
    """Return nodes and described targets as f_in gives them."""
    return nodes, targets


def nonlinear(ops: CellOps, name: str, x: str) -> str:
    """Emit NL(x): Linear → LeakyReLU."""
    return ops.leaky(ops.layer(x, f"{name}.linear.weight", ops.parameter(f"{name}.linear.bias")))


def velocity(ops: CellOps, name: str, current: str, projected: str, related: Callable[[], str]) -> str:  # noqa: ARG001
    """Emit NL of Eq. velocity: Linear → LayerNorm → LeakyReLU → Linear, after the products of the first."""
    builder = ops.builder
    mixed = builder.op("Add", projected, ops.full(related()))
    norm = [
        builder.weight(f"{name}.norm.{part}", ops.weights[f"{name}.norm.{part}"])
        for part in ("weight", "bias")
    ]
    hidden = ops.leaky(builder.op("LayerNormalization", mixed, *norm, epsilon=LAYER_NORM_EPSILON))
    return ops.full(ops.layer(hidden, f"{name}.out.weight"))


def local_messages(ops: CellOps, left: Factor, values: tuple[str, str]) -> tuple[str, str]:
    """Emit M Wᵀ and NL(M) Wᵀ, both [n, d], for M = left @ right and the velocity's first layer W."""
    return own_messages(ops, left, values), sent_messages(ops, left, values)


def own_messages(
    ops: CellOps, left: Factor, values: tuple[str, str], parts: NDArray[np.float32] = EQUAL_PARTS
) -> str:
    """Emit M Wᵀ [n, d]."""
    project = ops.weights["velocity.representation.weight"]
    return ops.factored(left, ops.message_factor("own", project, values, parts))


def sent_messages(
    ops: CellOps,
    left: Factor,
    values: tuple[str, str],
    parts: NDArray[np.float32] = EQUAL_PARTS,
    added_to: str | None = None,
) -> str:
    """Emit LeakyReLU(M Lᵀ + b) Wᵀ [n, d], plus `added_to`.

    The product is in three blocks of d columns, because narrow products stay in the cache.
    """
    d, sent = ops.d, added_to
    layer, bias = ops.weights["message.linear.weight"], ops.weights["message.linear.bias"]
    project = ops.weights["velocity.representation.weight"].T
    for block in range(3):
        columns, name = slice(block * d, (block + 1) * d), f"message.{block}"
        factor = ops.message_factor(f"{name}.weight", layer[columns], values, parts)
        block_bias = ops.builder.weight(f"{name}.bias", bias[columns], ops.small)
        message = ops.leaky(ops.factored(left, factor, block_bias))  # [n, d]
        kernel = ops.kernel(f"velocity.representation.{block}.T", project[columns])
        sent = ops.product(message, kernel, *([sent] if sent else []))
    assert sent is not None
    return sent


def mean_inner_product(builder: OnnxBuilder, nodes: str, targets: str) -> str:
    """Emit the mean inner product of all nodes with all targets."""
    return builder.op("MatMul", mean_row(builder, nodes), mean_row(builder, targets))


def cosine_margin(builder: OnnxBuilder, nodes: str, targets: str) -> str:
    """Emit max_j cos(h, ĉ_j) - mean_j cos(h, ĉ_j) = max_j h·(ĉ_j - mean ĉ) / ‖h‖, the mean over all nodes."""
    unit = unit_rows(builder, builder.op("Sub", targets, mean_row(builder, targets)))
    margins = builder.op("Gemm", nodes, builder.op("Sub", unit, mean_row(builder, unit)), transB=1)  # [n, c]
    largest = builder.reduce("ReduceMax", margins, 1, keepdims=True)  # [n, 1]
    relative = builder.op("Div", largest, row_lengths(builder, nodes))
    return builder.op("Squeeze", mean_row(builder, relative), builder.weight("axis_0", np.array([0])))
