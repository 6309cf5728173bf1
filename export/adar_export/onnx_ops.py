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
    return side(builder, rows, 0)


def side(builder: OnnxBuilder, value: str, axis: int) -> str:
    """Emit the size of one dimension as a floating-point value, [1]."""
    return builder.cast(builder.op("Shape", value, start=axis, end=axis + 1, type="int64"), builder.real)


def unit_rows(builder: OnnxBuilder, rows: str) -> str:
    """Emit the rows, scaled to length 1."""
    return builder.op("Div", rows, row_lengths(builder, rows))


def row_lengths(builder: OnnxBuilder, rows: str, axis: int = 1) -> str:
    """Emit the length of every row along `axis`, at least SHORTEST: [n, 1] for rows [n, d]."""
    length = builder.reduce("ReduceL2", rows, axis, keepdims=True)
    return builder.op("Clip", length, builder.weight("shortest", np.array(SHORTEST)))


def root_mean_square(builder: OnnxBuilder, rows: str) -> str:
    """Emit the root mean square over all entries, a scalar."""
    total = builder.op("ReduceSumSquare", rows, keepdims=0)
    count = builder.cast(builder.op("Size", rows, type="int64"), builder.real)
    return builder.op("Sqrt", builder.op("Div", total, count))


def mean_of_present(builder: OnnxBuilder, rows: str, present: str) -> str:
    """Emit the mean node of each graph of a batch, [b, 1, d]; `present` [b, n, 1] is 0 for padding."""
    return builder.reduce("ReduceSum", builder.op("Mul", rows, present), 1, keepdims=True)


def root_mean_squares(builder: OnnxBuilder, rows: str, present: str, d: int) -> str:
    """Emit the root mean square over all entries of each graph of a batch, [b]."""
    squares = builder.op(
        "Mul", builder.reduce("ReduceSumSquare", rows, 2, keepdims=True), present
    )  # [b, n, 1]
    total = builder.reduce("ReduceSum", builder.reduce("ReduceSum", squares, 2), 1)
    return builder.op("Sqrt", builder.op("Mul", total, builder.weight("inverse_d", np.array(1 / d))))
