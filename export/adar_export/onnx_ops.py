"""Operations that several ONNX models share: means, lengths and root mean squares."""

import numpy as np

from adar_export.builder import OnnxBuilder

SHORTEST = 1e-12  # the smallest divisor of PyTorch's `normalize`: a row of zeros stays zero


def mean_row(builder: OnnxBuilder, rows: str) -> str:
    """Emit the mean over all rows, [d]."""
    # Not ReduceMean: TensorRT and ONNX Runtime agree on a sum in all opsets.
    return builder.op("Div", builder.reduce("ReduceSum", rows, 0), row_count(builder, rows))


def row_count(builder: OnnxBuilder, rows: str) -> str:
    """Emit the number of rows as a floating-point value."""
    return builder.cast(builder.op("Shape", rows, start=0, end=1, type="int64"), builder.real)


def unit_rows(builder: OnnxBuilder, rows: str) -> str:
    """Emit the rows, scaled to length 1."""
    return builder.op("Div", rows, row_lengths(builder, rows))


def row_lengths(builder: OnnxBuilder, rows: str) -> str:
    """Emit the length of every row, [n, 1], at least SHORTEST."""
    length = builder.reduce("ReduceL2", rows, 1, keepdims=True)
    return builder.op("Clip", length, builder.weight("shortest", np.array(SHORTEST)))


def root_mean_square(builder: OnnxBuilder, rows: str) -> str:
    """Emit the root mean square over all entries, a scalar."""
    total = builder.op("ReduceSumSquare", rows, keepdims=0)
    count = builder.cast(builder.op("Size", rows, type="int64"), builder.real)
    return builder.op("Sqrt", builder.op("Div", total, count))
