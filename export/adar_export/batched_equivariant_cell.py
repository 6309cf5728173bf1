"""One step of many small graphs with the equivariant cell, as one ONNX model.

The graphs of a batch are padded to the same number of nodes and to the same number of classes. `is_node` and
`is_target` are 0 for padding: padded classes get no share of ψ, padded nodes have a row of zeros in ψ, and
neither moves. Each graph uses the set of gates for its own task.
"""

from typing import ClassVar

import numpy as np
import onnx

from adar_export.batched_alignments import BATCHED_ALIGNMENTS, TargetMask
from adar_export.equivariant_cell import EquivariantCellModel, metadata_of
from adar_export.onnx_ops import root_mean_squares
from adar_runtime.bundle.signature import IN_CONTEXT_BATCH, KNOWN, SCALARS, STATE, STEP
from adar_train.alignments import ALIGNMENTS
from adar_train.equivariant import LARGE, WIDTH, EquivariantAdaR


def build_batched_equivariant_cell(
    model: EquivariantAdaR, opset: int, precision: str = "fp32"
) -> onnx.ModelProto:
    """Build the cell that runs many small graphs at once."""
    return BatchedEquivariantCell.of(model, opset, precision).builder.build(metadata_of(model))


class BatchedEquivariantCell(EquivariantCellModel):
    """The step of `EquivariantCellModel` for each graph of a batch, in `builder` when constructed."""

    NAME = "adar_batched_cell"
    COLUMNS = 2
    _scalar_shape: ClassVar[list[int | str]] = ["b"]

    def _shape(self, *sides: int | str) -> list[int | str]:
        return ["b", *sides]

    def _declare_graph(self) -> None:
        builder = self.builder
        self._declare_tables("rows")
        self._share = builder.input("share", ["b", "n", 1])
        self._known = builder.input(KNOWN, ["b", "n", "c"])
        is_node, is_target = IN_CONTEXT_BATCH
        self._is_node = builder.input(is_node, ["b", "n", 1])
        mask = builder.input(is_target, ["b", 1, "c"])
        absent = self._mul(self._sub(mask, self._number("one", 1.0)), self._number("large", LARGE))
        count = builder.reduce("ReduceSum", mask, 2, keepdims=True)  # [b, 1, 1]
        self._targets = TargetMask(self._transposed(mask), count, absent)
        self._nodes = builder.reduce("ReduceSum", self._is_node, 1, keepdims=True)  # [b, 1, 1]

    def _declare_step(self) -> None:
        self._step = self.builder.input("step_code", ["b", 1, self._d])
        self._weight, self._previous_weight, self._lead = (
            self.builder.input(name, ["b", 1, 1]) for name in STEP
        )

    def _scalars(self, alignment: str, velocity: str, after: dict[str, str]) -> dict[str, str]:
        """Emit the scalars of each graph, [b]. Every node is in the sample: the graphs are small."""
        builder, nodes, targets = self.builder, after[STATE[0]], after[STATE[1]]
        present = self._div(self._is_node, self._nodes)
        turn = self._sub(velocity, self._before[STATE[0]])
        moved = (root_mean_squares(builder, rows, present, self._d) for rows in (velocity, turn))
        emit = BATCHED_ALIGNMENTS[ALIGNMENTS[alignment]]
        found = emit(builder, nodes, targets, present, self._targets), *moved
        return dict(zip(SCALARS, found, strict=True))

    def _received(self, sent: str) -> str:
        """Emit the sum over neighbours on the rows of all graphs."""
        builder = self.builder
        summed = super()._received(builder.op("Flatten", sent, axis=2))
        return builder.op("Reshape", summed, builder.op("Shape", sent, type="int64"))

    def _unknown(self, is_known: str) -> str:
        return self._sub(self._is_node, is_known)

    def _of_classes(self, logits: str) -> str:
        return self._add(logits, self._targets.absent)

    def _of_targets(self, velocity: str) -> str:
        return self._mul(velocity, self._targets.is_target)

    def _ones(self, _column: str) -> str:
        return self._is_node

    def _node_count(self, _h: str) -> str:
        return self._nodes

    def _class_count(self, _c: str) -> str:
        return self._targets.number

    def _mean_node(self, rows: str) -> str:
        return self._div(self._sum(rows), self._nodes)

    def _mean_target(self, rows: str) -> str:
        return self._div(self._sum(rows), self._targets.number)

    def _sum(self, rows: str) -> str:
        """Emit the sum of all rows of each graph, [b, 1, k]. Rows of padding are zero."""
        return self.builder.reduce("ReduceSum", rows, 1, keepdims=True)

    def _sum_of_squares(self, column: str) -> str:
        return self.builder.reduce("ReduceSumSquare", column, 1, keepdims=True)

    def _number_of_graph(self, value: str) -> str:
        return value

    def _products(self, a: str, b: str) -> str:
        return self._low_product("MatMul", a, self._transposed(b))

    def _inner_products(self, x: str) -> str:
        return self.builder.op("MatMul", x, self._transposed(x))

    def _collected_from(self, weights: str, rows: str) -> str:
        return self.builder.op("MatMul", self._transposed(weights), rows)

    def _layer(self, x: str, kernel: str, bias: str) -> str:
        return self._add(self.builder.op("MatMul", x, kernel), bias)

    def _normalised(self, x: str, weight: str, bias: str) -> str:
        """Emit LayerNorm. Weight and bias are apart: the operator takes the same ones for all graphs."""
        ones, zeros = (
            self.builder.weight(name, np.full(WIDTH, n)) for name, n in (("ones", 1.0), ("zeros", 0.0))
        )
        return self._add(self._mul(super()._normalised(x, ones, zeros), weight), bias)

    def _transposed(self, x: str) -> str:
        return self.builder.op("Transpose", x, perm=[0, 2, 1])
