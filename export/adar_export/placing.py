"""What `adar_train.placing` does to nodes and described targets, as operators."""

import numpy as np

from adar_export.builder import OnnxBuilder
from adar_export.onnx_ops import mean_row
from adar_train.placing import RIDGE, ROOT_STEPS, TINY


def placed(g: OnnxBuilder, nodes: str, targets: str, length: float, columns: int) -> tuple[str, str]:
    """Both sides weighted and measured from their middle, every row of that length."""
    nodes, targets = (g.op("Sub", rows, mean_row(g, rows)) for rows in (nodes, targets))
    weights = _root(g, _root(g, _covariance(g, nodes, columns), columns), columns)
    nodes = g.op("MatMul", nodes, weights)
    targets = _of_length(g, length, g.op("MatMul", targets, weights))
    scale = g.weight("inverse_root_d", np.array(columns**-0.5))
    likeness = g.op("Gemm", g.op("Mul", targets, scale), _of_length(g, length, nodes), transB=1)  # [c, n]
    gathered = g.op("MatMul", g.op("Softmax", likeness, axis=1), nodes)
    return _of_length(g, length, g.op("Sub", nodes, mean_row(g, gathered))), targets


def _covariance(g: OnnxBuilder, rows: str, columns: int) -> str:
    """Of centred rows, with the ridge; the sum of all squares is that of the variances."""
    mean = g.op(
        "Mul", g.op("ReduceSumSquare", rows, keepdims=0), g.weight("share", np.array(RIDGE / columns))
    )
    ridge = g.op("Mul", g.weight("one", np.eye(columns)), mean)
    return g.op("Gemm", rows, rows, ridge, transA=1)


def _of_length(g: OnnxBuilder, length: float, rows: str) -> str:
    square = g.reduce("ReduceSumSquare", rows, 1, keepdims=True)
    root = g.op("Sqrt", g.op("Add", square, g.weight("tiny", np.array(TINY))))
    return g.op("Mul", rows, g.op("Div", g.weight("row_length", np.array(length)), root))


def _root(g: OnnxBuilder, matrix: str, columns: int) -> str:
    """Newton's iteration, one step after the other."""
    square = g.op("ReduceSumSquare", matrix, keepdims=0)
    y = g.op("Div", matrix, g.op("Add", g.op("Sqrt", square), g.weight("tiny", np.array(TINY))))
    z = g.weight("one", np.eye(columns))
    three_halves = g.weight("three_halves", 1.5 * np.eye(columns))
    for _ in range(ROOT_STEPS):
        change = g.op("Gemm", z, y, three_halves, alpha=-0.5)
        y, z = g.op("MatMul", y, change), g.op("MatMul", change, z)
    return y
