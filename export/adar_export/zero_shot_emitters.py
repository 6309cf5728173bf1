"""The classes of the zero-shot variant (`adar_train.zero_shot`) as ONNX operators.

If all layers that start at zero are zero and frozen, they are left out. Otherwise all of them are emitted, so
that there are two topologies, not one for each set of layers.
"""

from collections.abc import Callable

import numpy as np

from adar_export import standard_emitters as standard
from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps, Factor
from adar_export.onnx_ops import mean_row
from adar_train.model import AdaR
from adar_train.zero_shot import (
    RIDGE,
    ROOT_STEPS,
    TINY,
    ZeroShotLocalMessages,
    ZeroShotNonlinear,
    ZeroShotVelocity,
    is_zero,
)


def nonlinear(ops: CellOps, name: str, x: str) -> str:
    """Emit x + LeakyReLU(Linear(x))."""
    if _are_zero(ops):
        return ops.low(x)
    changed = standard.nonlinear(ops, name, x)
    return ops.builder.op("Add", ops.low(x), changed)


def velocity(ops: CellOps, name: str, current: str, projected: str, related: Callable[[], str]) -> str:
    """Emit the standard velocity + pull · projected - decay · current."""
    builder = ops.builder
    nonlinear_part = None if _are_zero(ops) else standard.velocity(ops, name, current, projected, related)
    pull, decay = (
        builder.weight(f"{name}.{rate}", ops.weights[f"{name}.rates"][i])
        for i, rate in enumerate(("pull", "decay"))
    )
    smoothing = builder.op("Sub", builder.op("Mul", projected, pull), builder.op("Mul", current, decay))
    return smoothing if nonlinear_part is None else builder.op("Add", nonlinear_part, smoothing)


def local_messages(ops: CellOps, left: Factor, values: tuple[str, str]) -> tuple[str, str]:
    """Emit M Wᵀ and NL(M) Wᵀ, both [n, d], for the residual NL and M = [a M_pn ‖ b M_cn ‖ c H]."""
    parts = ops.weights["parts"]
    own = standard.own_messages(ops, left, values, parts)
    if _are_zero(ops):
        return own, own
    return own, standard.sent_messages(ops, left, values, parts, added_to=own)


def _are_zero(ops: CellOps) -> bool:
    """Whether every layer of the cell that starts at zero is zero and frozen."""
    cell = ops.module("")
    return all(
        is_zero(each.out if isinstance(each, ZeroShotVelocity) else each.linear)
        for each in cell.modules()
        if isinstance(each, ZeroShotNonlinear | ZeroShotVelocity | ZeroShotLocalMessages)
    )


def input_transformation(builder: OnnxBuilder, model: AdaR, nodes: str, targets: str) -> tuple[str, str]:
    """Emit `adar_train.zero_shot.place_rows`."""
    assert model.log_length is not None
    length, d = model.log_length.exp().item(), model.config.hidden
    nodes, targets = (builder.op("Sub", rows, mean_row(builder, rows)) for rows in (nodes, targets))
    weights = _root(builder, _root(builder, _covariance(builder, nodes, d), d), d)
    nodes = builder.op("MatMul", nodes, weights)
    targets = _scale_rows(builder, length, builder.op("MatMul", targets, weights))
    scale = builder.weight("inverse_root_d", np.array(d**-0.5))
    scaled_targets, scaled_nodes = builder.op("Mul", targets, scale), _scale_rows(builder, length, nodes)
    likeness = builder.op("Gemm", scaled_targets, scaled_nodes, transB=1)  # [c, n]
    gathered = builder.op("MatMul", builder.op("Softmax", likeness, axis=1), nodes)
    return _scale_rows(builder, length, builder.op("Sub", nodes, mean_row(builder, gathered))), targets


def _covariance(builder: OnnxBuilder, rows: str, d: int) -> str:
    """Emit the covariance of centred rows with the ridge. The sum of all squares is the sum of variances."""
    total = builder.op("ReduceSumSquare", rows, keepdims=0)
    mean = builder.op("Mul", total, builder.weight("share", np.array(RIDGE / d)))
    ridge = builder.op("Mul", builder.weight("one", np.eye(d)), mean)
    return builder.op("Gemm", rows, rows, ridge, transA=1)


def _scale_rows(builder: OnnxBuilder, length: float, rows: str) -> str:
    square = builder.reduce("ReduceSumSquare", rows, 1, keepdims=True)
    root = builder.op("Sqrt", builder.op("Add", square, builder.weight("tiny", np.array(TINY))))
    return builder.op("Mul", rows, builder.op("Div", builder.weight("row_length", np.array(length)), root))


def _root(builder: OnnxBuilder, matrix: str, d: int) -> str:
    """Emit Newton's iteration, unrolled."""
    norm = builder.op("Sqrt", builder.op("ReduceSumSquare", matrix, keepdims=0))
    y = builder.op("Div", matrix, builder.op("Add", norm, builder.weight("tiny", np.array(TINY))))
    z = builder.weight("one", np.eye(d))
    three_halves = builder.weight("three_halves", 1.5 * np.eye(d))
    for _ in range(ROOT_STEPS):
        change = builder.op("Gemm", z, y, three_halves, alpha=-0.5)
        y, z = builder.op("MatMul", y, change), builder.op("MatMul", change, z)
    return y
