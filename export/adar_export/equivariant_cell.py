"""The equivariant cell (`adar_train.equivariant`) as ONNX models: encoder, cell and head.

The only weights are those of the gates. Everything else is products of the states with each other, so the
cell serves any number of classes, and rotating all columns of a graph changes no prediction.
"""

from typing import Any

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
from adar_train.equivariant import TINY, EquivariantAdaR, EquivariantCell, Gates

LEAKY_SLOPE = 0.01
EQUIVARIANT_PRECISIONS = ("fp32", "fp16", "bf16")  # int8 stores large kernels as bytes; here are none
PROXIES = 1  # the cell has none; the signature of a bundle needs one row


def build_equivariant_models(
    model: EquivariantAdaR, opset: int, precision: str = "fp32"
) -> dict[str, onnx.ModelProto]:
    """Build encoder, cell and head of a pretrained bundle.

    The cell's messages and its products of [n, d] have the precision. The gates are fp32: they are small.
    """
    if precision not in EQUIVARIANT_PRECISIONS:
        raise UsageError(
            f"the pretrained model has no precision {precision!r}: choose {', '.join(EQUIVARIANT_PRECISIONS)}"
        )
    config, d = model.config, model.config.hidden
    cell = EquivariantCellModel(model.cell, config.alignment, opset, PRECISIONS[precision].product)
    metadata = {"adar.hidden": str(d), "adar.proxies": str(config.proxies), "adar.by_row": "yes"}
    builders = {
        "encoder": _encoder(d, opset),
        "cell": cell.builder,
        "head": build_head(config, opset, "float32", scale=d**-0.5),
    }
    return {name: builder.build(metadata) for name, builder in builders.items()}


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

    def __init__(self, cell: EquivariantCell, alignment: str, opset: int, product: str) -> None:
        self.builder = builder = OnnxBuilder("adar_cell", opset)
        self._low = product  # type of the messages and of the operands of large products
        d = cell.hidden
        rows: tuple[int | str, ...] = ("n", "c", PROXIES, PROXIES)
        shapes = {name: [size, d] for name, size in zip(STATE, rows, strict=True)}
        for name in STATE:
            builder.input(name, shapes[name])
        self._before = {name: builder.input(f"previous_{name}_velocity", shapes[name]) for name in STATE}
        self._declare_tables("n")
        self._share = builder.input("share", ["n", 1])
        self._sample = builder.input("sample", ["s"], "int32")
        self._known = builder.input(KNOWN, ["n", "c"])
        self._step = builder.input("step_code", [d])
        self._weight, self._previous_weight, self._lead = (builder.input(name, []) for name in STEP)
        self._d = d
        velocities = self._velocities(cell)
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        scalars = self._scalars(alignment, velocities["nodes"], after)
        for name, value in after.items():
            builder.output(f"next_{name}", value, shapes[name])
        for name, value in velocities.items():
            builder.output(f"{name}_velocity", value, shapes[name])
        for name, value in scalars.items():
            builder.output(name, value, [])

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
        builder, share = self.builder, self._share
        h, c, *proxies = STATE
        is_known = builder.reduce("ReduceSum", self._known, 1, keepdims=True)  # [n, 1]
        scaled = self._mul(c, self._number("inverse_root_d", self._d**-0.5))
        logits = self._product("Gemm", h, scaled, transB=1)
        one = self._number("one", 1.0)
        free = self._mul(self._sub(one, is_known), builder.op("Softmax", logits, axis=1))
        psi = builder.op("Add", free, self._known)  # [n, c]
        around = self._sub(one, share)
        per_neighbour = builder.op("Div", share, self._plus_tiny(around))  # 1 / |N|
        h_n, psi_n, known_n = (self._mul(self._received(x), per_neighbour) for x in (h, psi, is_known))
        count = builder.op("Reshape", side(builder, h, 0), builder.weight("scalar", np.array([], np.int64)))
        totals = builder.op("Gemm", psi, self._ones_like(is_known), transA=1)  # [c, 1]
        gathered = builder.op("Div", builder.op("Gemm", psi, h, transA=1), self._plus_tiny(totals))  # [c, d]
        own, through = self._product("MatMul", psi, c), self._product("MatMul", psi_n, c)
        pulled = self._product("MatMul", psi, gathered)

        purity, agreement = self._squares(psi), self._dots(psi, psi_n)
        mean_purity, mean_agreement = (mean_row(builder, x) for x in (purity, agreement))  # [1]
        shares = builder.op("Div", totals, count)  # [c, 1]
        chance = builder.op("ReduceSumSquare", shares, keepdims=0)
        uniform = builder.op("Div", one, side(builder, c, 0))  # [1]
        squares = self._squares(h)
        columns = [
            builder.reduce("ReduceMax", psi, 1, keepdims=True),
            purity,
            builder.reduce("ReduceMax", psi_n, 1, keepdims=True),
            self._squares(psi_n),
            agreement,
            *(self._cosines(h, vector) for vector in (h_n, own, pulled, through)),
            builder.op("Div", squares, self._plus_tiny(mean_row(builder, squares))),
            share,
            builder.op("Sqrt", share),
            is_known,
            known_n,
            *(self._filled(share, number) for number in (mean_agreement, chance, uniform)),
        ]
        gates = self._gates("node_gates", cell.node_gates, columns)
        moves = (
            self._mul(around, self._sub(h_n, h)),
            self._sub(own, h),
            self._sub(pulled, h),
            self._mul(around, self._sub(through, h)),
            h,
        )
        v_h = self._gated(gates, moves)
        columns = [shares, self._cosines(c, gathered)]
        columns += [self._filled(shares, number) for number in (uniform, mean_purity, mean_agreement)]
        v_c = self._gated(self._gates("target_gates", cell.target_gates, columns), (self._sub(gathered, c),))
        still = {name: self._sub(name, name) for name in proxies}
        return {h: v_h, c: v_c} | still

    def _gates(self, name: str, gates: Gates, columns: list[str]) -> str:
        """Emit `Gates.forward`."""
        builder, weights = self.builder, _arrays(gates)

        def weight(part: str) -> str:
            return builder.weight(f"{name}.{part}", weights[part])

        def layer(x: str, part: str, *bias: str) -> str:
            kernel = builder.weight(f"{name}.{part}.T", weights[f"{part}.weight"].T)
            return builder.op("Gemm", x, kernel, *bias)

        def bounded(x: str, part: str) -> str:
            scaled = builder.op(
                "LayerNormalization", x, weight(f"{part}.weight"), weight(f"{part}.bias"), axis=-1
            )
            return builder.op("LeakyRelu", scaled, alpha=LEAKY_SLOPE)

        kernel = builder.weight(f"{name}.step.T", weights["step.weight"].T)
        step = builder.op("Add", builder.op("MatMul", self._step, kernel), weight("step.bias"))
        x = bounded(layer(builder.op("Concat", *columns, axis=1), "first", step), "norm")
        x = bounded(layer(x, "second", weight("second.bias")), "second_norm")
        return layer(x, "out", weight("out.bias"))

    def _gated(self, gates: str, moves: tuple[str, ...]) -> str:
        """Emit the sum of the moves [k, d], each times its column of the gates [k, g]."""
        total = ""
        for number, move in enumerate(moves):
            column = self.builder.weight(f"gate_{number}", np.array([number]))
            term = self._mul(self.builder.op("Gather", gates, column, axis=1), move)
            total = self.builder.op("Add", total, term) if total else term
        return total

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

    def _product(self, kind: str, a: str, b: str, **options: Any) -> str:
        """Emit a product of [n, d] or [n, c] with a small matrix, in the lower precision."""
        low = (self.builder.cast(x, self._low) for x in (a, b))
        return self.builder.cast(self.builder.op(kind, *low, **options), "float32")

    def _cosines(self, a: str, b: str) -> str:
        """Emit the cosine of every row of a with the same row of b, [k, 1]."""
        builder = self.builder
        squares = self._mul(self._squares(a), self._squares(b))
        length = builder.op("Sqrt", builder.op("Add", squares, self._number("tiny_square", TINY**2)))
        return builder.op("Div", self._dots(a, b), length)

    def _dots(self, a: str, b: str) -> str:
        return self.builder.reduce("ReduceSum", self._mul(a, b), 1, keepdims=True)

    def _squares(self, rows: str) -> str:
        return self.builder.reduce("ReduceSumSquare", rows, 1, keepdims=True)

    def _ones_like(self, column: str) -> str:
        return self.builder.op("Add", self._sub(column, column), self._number("one", 1.0))

    def _filled(self, column: str, number: str) -> str:
        """Emit a column of this length with one number in every row."""
        return self.builder.op("Add", self._sub(column, column), number)

    def _plus_tiny(self, x: str) -> str:
        return self.builder.op("Add", x, self._number("tiny", TINY))

    def _number(self, name: str, value: float) -> str:
        return self.builder.weight(name, np.array(value))

    def _mul(self, a: str, b: str) -> str:
        return self.builder.op("Mul", a, b)

    def _sub(self, a: str, b: str) -> str:
        return self.builder.op("Sub", a, b)


def _arrays(module: Gates) -> dict[str, Any]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}
