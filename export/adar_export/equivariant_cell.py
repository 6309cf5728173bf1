"""The equivariant cell (`adar_train.equivariant`) as ONNX models: encoder, cell and head.

The only weights are those of the gates. Everything else is products of the states with each other, so the
cell serves any number of classes, and rotating all columns of a graph changes no prediction.
"""

from typing import Any, ClassVar, Self

import numpy as np
import onnx

from adar_export.builder import OnnxBuilder
from adar_export.cell_parts import CellParts
from adar_export.emitters import emitter_for
from adar_export.onnx_models import build_head
from adar_export.onnx_ops import mean_row, root_mean_square, side
from adar_export.precision import PRECISIONS
from adar_runtime.bundle.signature import KNOWN, SCALARS, STATE, STEP
from adar_runtime.errors import UsageError
from adar_train.alignments import ALIGNMENTS
from adar_train.equivariant import (
    DIRECTIONS,
    ENOUGH_LABELS,
    TARGET_DIRECTIONS,
    TINY,
    EquivariantAdaR,
    EquivariantCell,
    TaskGates,
)

LEAKY_SLOPE = 0.01
EQUIVARIANT_PRECISIONS = ("fp32", "fp16", "bf16")  # int8 stores large kernels as bytes; here are none
PROXIES = 1  # the cell has none; the signature of a bundle needs one row


def build_equivariant_models(
    model: EquivariantAdaR, opset: int, precision: str = "fp32"
) -> dict[str, onnx.ModelProto]:
    """Build encoder, cell and head of a pretrained bundle.

    The cell's messages and its products of [n, d] have the precision. The gates are fp32: they are small.
    """
    config, d = model.config, model.config.hidden
    builders = {
        "encoder": _encoder(d, opset),
        "cell": EquivariantCellModel.of(model, opset, precision).builder,
        "head": build_head(config, opset, "float32", scale=d**-0.5),
    }
    return {name: builder.build(metadata_of(model)) for name, builder in builders.items()}


def metadata_of(model: EquivariantAdaR) -> dict[str, str]:
    """What each ONNX file says about the model."""
    config = model.config
    return {"adar.hidden": str(config.hidden), "adar.proxies": str(config.proxies), "adar.by_row": "yes"}


def _encoder(d: int, opset: int) -> OnnxBuilder:
    """Emit the states at t = 0: `adar_runtime.in_context` has placed nodes and targets already."""
    builder = OnnxBuilder("adar_encoder", opset)
    for name, rows, given in (("nodes", "n", "features"), ("targets", "c", "target_features")):
        builder.output(name, builder.op("Identity", builder.input(given, [rows, d])), [rows, d])
    for name in STATE[2:]:
        builder.output(name, builder.weight(f"initial_{name}", np.zeros((PROXIES, d))), [PROXIES, d])
    return builder


class EquivariantCellModel(CellParts):
    """One step, in `builder` when constructed."""

    NAME = "adar_cell"
    COLUMNS = 1  # the axis of the columns of a value; rows are the axis before it

    def __init__(self, cell: EquivariantCell, alignment: str, opset: int, product: str) -> None:
        self.builder = builder = OnnxBuilder(self.NAME, opset)
        self._low = product  # type of the messages and of the operands of large products
        self._d = d = cell.hidden
        rows: tuple[int | str, ...] = ("n", "c", PROXIES, PROXIES)
        shapes = {name: self._shape(size, d) for name, size in zip(STATE, rows, strict=True)}
        for name in STATE:
            builder.input(name, shapes[name])
        self._before = {name: builder.input(f"previous_{name}_velocity", shapes[name]) for name in STATE}
        self._declare_graph()
        self._declare_step()
        velocities = self._velocities(cell)
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        scalars = self._scalars(alignment, velocities["nodes"], after)
        for name, value in after.items():
            builder.output(f"next_{name}", value, shapes[name])
        for name, value in velocities.items():
            builder.output(f"{name}_velocity", value, shapes[name])
        for name, value in scalars.items():
            builder.output(name, value, self._scalar_shape)

    @classmethod
    def of(cls, model: EquivariantAdaR, opset: int, precision: str) -> Self:
        """The cell of a model."""
        if precision not in EQUIVARIANT_PRECISIONS:
            raise UsageError(
                f"the pretrained model has no precision {precision!r}: "
                f"choose {', '.join(EQUIVARIANT_PRECISIONS)}"
            )
        return cls(model.cell, model.config.alignment, opset, PRECISIONS[precision].product)

    def _shape(self, *sides: int | str) -> list[int | str]:
        return [*sides]

    _scalar_shape: ClassVar[list[int | str]] = []

    def _declare_graph(self) -> None:
        builder = self.builder
        self._declare_tables("n")
        self._share = builder.input("share", ["n", 1])
        self._sample = builder.input("sample", ["s"], "int32")
        self._known = builder.input(KNOWN, ["n", "c"])

    def _declare_step(self) -> None:
        self._step = self.builder.input("step_code", [self._d])
        self._weight, self._previous_weight, self._lead = (self.builder.input(name, []) for name in STEP)

    def _scalars(self, alignment: str, velocity: str, after: dict[str, str]) -> dict[str, str]:
        """Emit the alignment of the next state and the motion of the nodes in this call."""
        builder = self.builder
        found = emitter_for(ALIGNMENTS[alignment])(builder, after["nodes"], after["targets"])
        now, before = (
            builder.op("Gather", v, self._sample, axis=0) for v in (velocity, self._before["nodes"])
        )
        motion = (root_mean_square(builder, now), root_mean_square(builder, self._sub(now, before)))
        return dict(zip(SCALARS, (found, *motion), strict=True))

    def _velocities(self, cell: EquivariantCell) -> dict[str, str]:
        """Emit `EquivariantCell.forward`, in its order."""
        builder, share, known = self.builder, self._share, self._known
        h, c, *proxies = STATE
        one = self._number("one", 1.0)
        is_known = self._row("ReduceSum", known)  # [n, 1]
        to_c = self._products(h, c)  # [n, c]
        logits = self._of_classes(self._mul(to_c, self._number("inverse_root_d", self._d**-0.5)))
        free = self._mul(self._unknown(is_known), builder.op("Softmax", logits, axis=self.COLUMNS))
        psi = self._add(free, known)  # [n, c]
        around = self._sub(one, share)
        per_neighbour = self._div(share, self._plus_tiny(around))  # 1 / |N|
        h_n, psi_n, known_n = (self._mul(self._received(x), per_neighbour) for x in (h, psi, is_known))
        ones = self._ones(is_known)  # [n, 1]
        count = self._node_count(h)
        sizes = self._collected_from(psi, ones)  # [c, 1]
        sharp, shared = self._mul(psi, psi), self._mul(psi, psi_n)  # [n, c]
        sharp_sizes = self._collected_from(sharp, ones)
        gathered, confident = (
            self._div(self._collected_from(weights, h), self._plus_tiny(total))  # [c, d]
            for weights, total in ((psi, sizes), (sharp, sharp_sizes))
        )

        agreement, purity = (self._row("ReduceSum", x) for x in (shared, sharp))  # [n, 1]
        mean_agreement, mean_purity = (self._mean_node(x) for x in (agreement, purity))  # [1]
        shares = self._div(sizes, count)  # [c, 1]
        chance = self._sum_of_squares(shares)
        labels = self._collected_from(known, ones)  # [c, 1]
        trust = self._div(labels, self._add(labels, self._number("enough_labels", float(ENOUGH_LABELS))))
        found = self._collected_from(self._dots(known, psi_n), ones)  # [1, 1]
        given = self._collected_from(is_known, ones)  # [1, 1], the number of known labels
        right = self._div(found, self._plus_tiny(given))
        clipped = builder.op("Clip", given, self._number("zero", 0.0), one)
        self._labelled = self._number_of_graph(clipped)  # 1 if there are known labels, otherwise 0
        self._unlabelled = self._sub(one, self._labelled)
        mean_trust, classes = self._mean_target(trust), self._div(one, self._class_count(c))  # [1]
        of_h, to_g = self._squares(h), self._products(h, gathered)
        of_c, of_g = (self._inner_products(x) for x in (c, gathered))  # [c, c]
        invariants = [
            self._row("ReduceMax", psi),
            purity,
            self._row("ReduceMax", psi_n),
            self._squares(psi_n),
            agreement,
            self._cosines(self._dots(h, h_n), of_h, self._squares(h_n)),
            self._cosines(self._dots(psi, to_c), of_h, self._mixed(psi, of_c)),
            self._cosines(self._dots(psi, to_g), of_h, self._mixed(psi, of_g)),
            self._cosines(self._dots(psi_n, to_c), of_h, self._mixed(psi_n, of_c)),
            self._div(of_h, self._plus_tiny(self._mean_node(of_h))),
            share,
            builder.op("Sqrt", share),
            is_known,
            known_n,
            *(self._filled(share, x) for x in (mean_agreement, chance, classes, right, mean_trust)),
        ]
        gates = self._gates("node_gates", cell.node_gates, invariants)
        g1, g2, g3, g4, g5 = (self._column(gates, number) for number in range(DIRECTIONS))
        g1, g4 = self._mul(g1, around), self._mul(g4, around)
        mixture = self._add(self._mul(g2, psi), self._mul(g4, psi_n))
        rest = self._sub(self._sub(self._sub(self._sub(g5, g1), g2), g3), g4)
        v_h = self._add(self._mul(g1, h_n), self._low_product("MatMul", mixture, c))
        v_h = self._add(v_h, self._low_product("MatMul", self._mul(g3, psi), gathered))
        v_h = self._add(v_h, self._mul(rest, h))

        invariants = [
            shares,
            self._div(shares, classes),
            self._cosines(self._dots(c, gathered), self._squares(c), self._squares(gathered)),
            self._div(sharp_sizes, self._plus_tiny(sizes)),
            self._div(self._collected_from(shared, ones), self._plus_tiny(sizes)),
            trust,
            *(self._filled(shares, x) for x in (classes, mean_purity, mean_agreement, mean_trust, right)),
        ]
        gates = self._gates("target_gates", cell.target_gates, invariants)
        g6, g7, g8 = (self._column(gates, number) for number in range(TARGET_DIRECTIONS))
        v_c = self._add(self._mul(g6, self._sub(gathered, c)), self._mul(g7, self._sub(confident, c)))
        v_c = self._of_targets(self._add(v_c, self._mul(g8, self._mean_node(h))))
        still = {name: self._sub(name, name) for name in proxies}
        return {h: v_h, c: v_c} | still

    def _gates(self, name: str, gates: TaskGates, columns: list[str]) -> str:
        """Emit `Gates.forward` with the weights of the set that fits the task."""
        builder, (without, with_labels) = self.builder, _arrays(gates)

        def chosen(stored: str, without: Any, with_labels: Any) -> str:
            first, second = (
                self._mul(share, builder.weight(f"{name}.{number}.{stored}", array))
                for number, share, array in ((0, self._unlabelled, without), (1, self._labelled, with_labels))
            )
            return self._add(first, second)

        def weight(part: str) -> str:
            return chosen(part, without[part], with_labels[part])

        def kernel(part: str) -> str:
            return chosen(f"{part}.T", without[f"{part}.weight"].T, with_labels[f"{part}.weight"].T)

        def bounded(x: str, part: str) -> str:
            scaled = self._normalised(x, weight(f"{part}.weight"), weight(f"{part}.bias"))
            return builder.op("LeakyRelu", scaled, alpha=LEAKY_SLOPE)

        step = self._add(builder.op("MatMul", self._step, kernel("step")), weight("step.bias"))
        x = self._layer(builder.op("Concat", *columns, axis=self.COLUMNS), kernel("first"), step)
        x = self._layer(bounded(x, "norm"), kernel("second"), weight("second.bias"))
        return self._layer(bounded(x, "second_norm"), kernel("out"), weight("out.bias"))

    def _column(self, gates: str, number: int) -> str:
        """Emit one column of the gates, [k, 1]."""
        place = self.builder.weight(f"gate_{number}", np.array([number]))
        return self.builder.op("Gather", gates, place, axis=self.COLUMNS)

    def _unknown(self, is_known: str) -> str:
        """Emit 1 for nodes whose class is not known, [n, 1]."""
        return self._sub(self._number("one", 1.0), is_known)

    def _of_classes(self, logits: str) -> str:
        """The logits [n, c] of the classes. In a batch, other columns are padding."""
        return logits

    def _of_targets(self, velocity: str) -> str:
        """The velocity [c, d] of the targets. In a batch, other rows are padding."""
        return velocity

    def _ones(self, column: str) -> str:
        """Emit 1 for each node, [n, 1]."""
        return self._add(self._sub(column, column), self._number("one", 1.0))

    def _node_count(self, h: str) -> str:
        return self._number_of_graph(side(self.builder, h, 0))

    def _class_count(self, c: str) -> str:
        return side(self.builder, c, 0)

    def _mean_node(self, rows: str) -> str:
        return mean_row(self.builder, rows)

    def _mean_target(self, rows: str) -> str:
        return mean_row(self.builder, rows)

    def _sum_of_squares(self, column: str) -> str:
        return self.builder.op("ReduceSumSquare", column, keepdims=0)

    def _number_of_graph(self, value: str) -> str:
        """Emit one number as a scalar."""
        return self.builder.op("Reshape", value, self.builder.weight("scalar", np.array([], np.int64)))

    def _products(self, a: str, b: str) -> str:
        """Emit a @ bᵀ in the lower precision, [n, c]."""
        return self._low_product("Gemm", a, b, transB=1)

    def _inner_products(self, x: str) -> str:
        """Emit x @ xᵀ, [c, c]."""
        return self.builder.op("Gemm", x, x, transB=1)

    def _collected_from(self, weights: str, rows: str) -> str:
        """Emit weightsᵀ @ rows: the sum over the nodes."""
        return self.builder.op("Gemm", weights, rows, transA=1)

    def _layer(self, x: str, kernel: str, bias: str) -> str:
        return self.builder.op("Gemm", x, kernel, bias)

    def _normalised(self, x: str, weight: str, bias: str) -> str:
        return self.builder.op("LayerNormalization", x, weight, bias, axis=-1)

    def _row(self, kind: str, rows: str) -> str:
        """Emit a reduction of each row, [k, 1]."""
        return self.builder.reduce(kind, rows, self.COLUMNS, keepdims=True)

    def _received(self, sent: str) -> str:
        """Emit the sum of `sent` [n, k] over the neighbours of each node, for any number of columns k."""
        builder = self.builder
        sent = builder.cast(sent, self._low)
        first = builder.op("Gather", sent, builder.weight("gate_0", np.array([0])), axis=0)  # [1, k]
        zeros = self._sub(first, first)
        messages = builder.op("Concat", zeros, sent, axis=0)
        leaves = [self._table_sums(messages, table) for table in self._leaves]
        sums = builder.op("Concat", builder.cast(zeros, "float32"), *leaves, axis=0)
        joins = [self._table_sums(sums, table) for table in self._joins]
        return builder.op("Gather", builder.op("Concat", sums, *joins, axis=0), self._place, axis=0)

    def _table_sums(self, values: str, table: str) -> str:
        gathered = self.builder.op("Gather", values, table, axis=0)
        return self.builder.reduce("ReduceSum", self.builder.cast(gathered, "float32"), 1)

    def _low_product(self, kind: str, a: str, b: str, **options: Any) -> str:
        """Emit a product of [n, d] or [n, c] with a small matrix, in the lower precision."""
        low = (self.builder.cast(x, self._low) for x in (a, b))
        return self.builder.cast(self.builder.op(kind, *low, **options), "float32")

    def _cosines(self, products: str, a: str, b: str) -> str:
        """Emit `equivariant.cosines`."""
        builder = self.builder
        both = self._mul(a, builder.op("LeakyRelu", b, alpha=0.0))  # rounding may make b negative
        length = builder.op("Sqrt", self._add(both, self._number("tiny_square", TINY**2)))
        return self._div(products, length)

    def _mixed(self, psi: str, products: str) -> str:
        """Emit the squares of the lengths of mixtures ψ X, from the inner products [c, c] of X: [n, 1]."""
        return self._dots(self.builder.op("MatMul", psi, products), psi)

    def _dots(self, a: str, b: str) -> str:
        return self._row("ReduceSum", self._mul(a, b))

    def _squares(self, rows: str) -> str:
        return self._row("ReduceSumSquare", rows)

    def _filled(self, column: str, number: str) -> str:
        """Emit a column of this length with one number in every row."""
        return self._add(self._sub(column, column), number)

    def _plus_tiny(self, x: str) -> str:
        return self._add(x, self._number("tiny", TINY))

    def _number(self, name: str, value: float) -> str:
        return self.builder.weight(name, np.array(value))

    def _add(self, a: str, b: str) -> str:
        return self.builder.op("Add", a, b)

    def _div(self, a: str, b: str) -> str:
        return self.builder.op("Div", a, b)

    def _mul(self, a: str, b: str) -> str:
        return self.builder.op("Mul", a, b)

    def _sub(self, a: str, b: str) -> str:
        return self.builder.op("Sub", a, b)


def _arrays(sets: TaskGates) -> list[dict[str, Any]]:
    return [
        {name: tensor.detach().cpu().numpy() for name, tensor in each.state_dict().items()} for each in sets
    ]
