"""Which numbers of the cell are small ones, typed in the graph itself: TensorRT 11 has no flag for it.

States, velocities, times, softmax, layer norms, sums over nodes and neighbours and the alignment are float32
in every precision: a step of 1/300 added to a 16-bit state would be lost in its rounding, and a share of one
node in 100,000 is below what float16 can hold. What is small are the operands and results of the large
products, and the messages on their way along the edges. int8 keeps the kernels of the products in a byte
each, for a smaller file; they are float32 again before they are multiplied.
"""

from dataclasses import dataclass

from adar_runtime.errors import UsageError


@dataclass(frozen=True)
class Precision:
    """The types of a cell."""

    real: str = "float32"  # of what has to be exact
    product: str = "float32"  # of the large products
    weights: str | None = None  # int8: kernels are kept so, with a scale a column


PRECISIONS = {
    "fp32": Precision(),
    "fp16": Precision(product="float16"),
    "bf16": Precision(product="bfloat16"),
    "int8": Precision(weights="int8"),
}
"""By the names of the command line and the manifest."""

EXACT = Precision("float64", "float64")
"""Not for running: in it, what is the same function gives the same numbers to ten digits."""


def precision_of(name: str) -> Precision:
    """The precision of that name."""
    if name not in PRECISIONS:
        raise UsageError(f"there is no precision {name!r}: choose {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
