"""Small pieces that several graphs share: means, lengths and the scalars that an exit watches."""

import numpy as np

from adar_export.builder import OnnxBuilder

SHORTEST = 1e-12  # that PyTorch's `normalize` divides by: a row of zeros is left one


def mean_row(g: OnnxBuilder, rows: str) -> str:
    """The mean over all rows, [d]."""
    # Not ReduceMean: TensorRT and ONNX Runtime agree on a sum in all opsets.
    return g.op("Div", g.reduce("ReduceSum", rows, 0), row_count(g, rows))


def row_count(g: OnnxBuilder, rows: str) -> str:
    """How many rows there are, as a number to divide by."""
    return g.cast(g.op("Shape", rows, start=0, end=1, type="int64"), g.real)


def unit_rows(g: OnnxBuilder, rows: str) -> str:
    """Every row brought to length 1."""
    return g.op("Div", rows, row_lengths(g, rows))


def row_lengths(g: OnnxBuilder, rows: str) -> str:
    """The length of every row, [n, 1], never zero."""
    length = g.reduce("ReduceL2", rows, 1, keepdims=True)
    return g.op("Clip", length, g.weight("shortest", np.array(SHORTEST)))


def root_mean_square(g: OnnxBuilder, rows: str) -> str:
    """Over all entries, a scalar."""
    total = g.op("ReduceSumSquare", rows, keepdims=0)
    count = g.cast(g.op("Size", rows, type="int64"), g.real)
    return g.op("Sqrt", g.op("Div", total, count))
