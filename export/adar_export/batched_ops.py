"""The operations of `CellOps` on many small graphs at once: values are [b, rows, columns].

Graphs of a batch are padded to the same number of nodes. Weights are the same for all graphs, so a product
with weights is one product over all rows. Products of two values are made graph by graph, by the operator.
"""

from typing import Any

from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps, Factor
from adar_export.precision import Precision
from adar_train.model import AdaR

NODES = "nodes"


class BatchedOps(CellOps):
    """Operations on values of a batched cell. `absent` is added to the logits of nodes that are padding."""

    def __init__(
        self, model: AdaR, builder: OnnxBuilder, precision: Precision, step: str, absent: str
    ) -> None:
        super().__init__(model, builder, precision, step)
        self._absent = absent

    def product(self, a: str, b: str, *bias: str, **attributes: Any) -> str:
        """Compute a @ b + bias in the precision of the products. Gemm takes matrices only."""
        if attributes.pop("transA", 0):
            a = self._transposed(a)
        if attributes.pop("transB", 0):
            b = self._transposed(b)
        assert not attributes
        found = self.builder.op("MatMul", self.low(a), self.low(b))
        for each in bias:
            found = self.builder.op("Add", found, self.low(each))
        return self.low(found)

    def left_factor(self, *blocks: str) -> Factor:
        """Keep the blocks apart: those of the right factor have different numbers of dimensions."""
        return blocks

    def right_factor(self, *blocks: str) -> Factor:
        """Keep the blocks apart."""
        return blocks

    def factored(self, left: Factor, right: Factor, *bias: str) -> str:
        """Compute the sum over blocks, plus bias."""
        first, *others = zip(left, right, strict=True)
        found = self.product(*first, *bias)
        for pair in others:
            found = self.builder.op("Add", found, self.product(*pair))
        return found

    def attend(self, a: str, b: str) -> str:
        """Compute ψ(a, b) in full precision. Nodes that are padding get no attention."""
        scaled = (a, self.scaled(b)) if a == NODES else (self.scaled(a), b)
        logits = self.full(self.product(*scaled, transB=1))
        if b == NODES:
            logits = self.builder.op("Add", logits, self._absent)
        return self.builder.op("Softmax", logits, axis=2)

    def _transposed(self, x: str) -> str:
        return self.builder.op("Transpose", self.low(x), perm=[0, 2, 1])
