"""The precisions of a cell: which values have 16 bits. The ONNX model has the types; TensorRT 11 has no flag.

States, velocities, times, softmax, layer norms, sums over nodes and neighbours, and the alignment are float32
in every precision: rounding a 16-bit state would lose a step of 1/300, and float16 cannot represent a share
of 1/100,000. The operands and results of the large products have the lower precision, and so do the messages
along the edges. int8 stores the kernels of the products as bytes, for a smaller file; they are converted to
float32 before they are multiplied.
"""

from dataclasses import dataclass

from adar_runtime.errors import UsageError


@dataclass(frozen=True)
class Precision:
    """The types of a cell."""

    real: str = "float32"  # of states, velocities, sums and all other values
    product: str = "float32"  # of the large products
    weights: str | None = None  # int8: kernels are stored so, with one scale per column
    leaky_relu: bool = True  # whether LeakyRelu of products is one operator


PRECISIONS = {
    "fp32": Precision(),
    "fp16": Precision(product="float16"),
    # ONNX Runtime has no bfloat16 kernel for LeakyRelu on CUDA.
    "bf16": Precision(product="bfloat16", leaky_relu=False),
    "int8": Precision(weights="int8"),
}
"""The precisions by their names on the command line and in the manifest."""

FORMER = {"bf16 until 0.2": Precision(product="bfloat16")}
"""Precisions that older versions exported. Their bundles still load."""

EXACT = Precision("float64", "float64")
"""For tests: two forms of the same function agree to ten digits."""


def precision_of(name: str) -> Precision:
    """Return the precision with this name, or raise a UsageError."""
    if name not in PRECISIONS:
        raise UsageError(f"there is no precision {name!r}: choose {', '.join(PRECISIONS)}")
    return PRECISIONS[name]
