"""The pieces that the equivariant cell and its phases are composed of, as ONNX operators."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from adar_export.cell_parts import CellParts
from adar_export.onnx_ops import mean_row, side
from adar_runtime.bundle.signature import STATE
from adar_train.equivariant import (
    DIRECTIONS,
    ENOUGH_LABELS,
    TARGET_DIRECTIONS,
    TINY,
    EquivariantCell,
    TaskGates,
)

LEAKY_SLOPE = 0.01
H, C = STATE[:2]


class Relation(NamedTuple):
    """How the nodes relate to the targets."""

    is_known: str  # [n, 1]
    to_c: str  # inner products [n, c]
    psi: str  # clamped ψ(H, C) [n, c]


class Nearby(NamedTuple):
    """Means over the neighbours of each node."""

    around: str  # |N| / (|N| + 1) [n, 1]
    h: str  # [n, d]
    psi: str  # [n, c]
    known: str  # [n, 1]


class OfGraph(NamedTuple):
    """Numbers of the whole graph, in the order of the invariants of a node."""

    agreement: str
    chance: str
    classes: str  # 1 / c
    right: str
    trust: str


class OfTargets(NamedTuple):
    """What the velocity of the targets reads: [c, 1], and [c, d] of `gathered` and `confident`."""

    sizes: str
    shares: str
    sharp_sizes: str
    trust: str
    gathered: str
    confident: str
    purity: str  # the mean of all nodes


class EquivariantParts(CellParts):
    """Pieces of `EquivariantCell.forward`. A subclass declares inputs and outputs and composes them."""

    COLUMNS = 1  # the axis of the columns of a value; rows are the axis before it
    _d: int
    _low: str  # type of the messages and of the operands of large products
    _known: str
    _step: str
    _labelled: str  # 1 if there are known labels, otherwise 0
    _unlabelled: str

    def _related(self) -> Relation:
        """Emit the relation of the nodes to the targets."""
        is_known = self._row("ReduceSum", self._known)
        to_c = self._products(H, C)
        logits = self._of_classes(self._mul(to_c, self._number("inverse_root_d", self._d**-0.5)))
        shares = self._softmax(is_known, logits)
        return Relation(is_known, to_c, self._add(shares, self._known))

    def _softmax(self, is_known: str, logits: str) -> str:
        """Emit the relation of nodes whose class is not known, [n, c]; zeros for others."""
        unknown = self._unknown(is_known)
        return self._mul(unknown, self.builder.op("Softmax", logits, axis=self.COLUMNS))

    def _nearby(self, received: Iterable[str]) -> Nearby:
        """Emit means from the sums of the nodes, of ψ and of the known labels over the neighbours."""
        around, per_neighbour = self._around()
        return Nearby(around, *(self._mul(sums, per_neighbour) for sums in received))

    def _around(self) -> tuple[str, str]:
        """Emit |N| / (|N| + 1) and 1 / |N|, [n, 1] each."""
        around = self._sub(self._number("one", 1.0), self._share)
        return around, self._div(self._share, self._plus_tiny(around))

    def _per_size(self, collected: str, sizes: str) -> str:
        """Emit the mean of what each target collected, [c, d] or [c, 1]."""
        return self._div(collected, self._plus_tiny(sizes))

    def _trust(self, labels: str) -> str:
        """Emit the trust in each class from its number of known labels, [c, 1]."""
        return self._div(labels, self._add(labels, self._number("enough_labels", float(ENOUGH_LABELS))))

    def _right(self, found: str, given: str) -> str:
        """Emit the share of known classes that neighbours have too, and choose the gates for the task."""
        right = self._div(found, self._plus_tiny(given))
        one = self._number("one", 1.0)
        clipped = self.builder.op("Clip", given, self._number("zero", 0.0), one)
        self._choose_task(self._number_of_graph(clipped))
        return right

    def _choose_task(self, labelled: str) -> None:
        self._labelled = labelled
        self._unlabelled = self._sub(self._number("one", 1.0), labelled)

    def _node_velocity(
        self,
        cell: EquivariantCell,
        relation: Relation,
        nearby: Nearby,
        gathered: str,
        of_graph: OfGraph,
        alike: tuple[str, str],
        mean_square: Callable[[str], str],
    ) -> str:
        """Emit the velocity of the nodes, [n, d].

        `alike` has the agreement and the purity of each node [n, 1]. `mean_square` returns the mean of the
        squared lengths of all nodes.
        """
        (is_known, to_c, psi), (around, h_n, psi_n, known_n), share = relation, nearby, self._share
        agreement, purity = alike
        of_h, to_g = self._squares(H), self._products(H, gathered)
        of_c, of_g = (self._inner_products(x) for x in (C, gathered))  # [c, c]
        invariants = [
            self._row("ReduceMax", psi),
            purity,
            self._row("ReduceMax", psi_n),
            self._squares(psi_n),
            agreement,
            self._cosines(self._dots(H, h_n), of_h, self._squares(h_n)),
            self._cosines(self._dots(psi, to_c), of_h, self._mixed(psi, of_c)),
            self._cosines(self._dots(psi, to_g), of_h, self._mixed(psi, of_g)),
            self._cosines(self._dots(psi_n, to_c), of_h, self._mixed(psi_n, of_c)),
            self._div(of_h, self._plus_tiny(mean_square(of_h))),
            share,
            self.builder.op("Sqrt", share),
            is_known,
            known_n,
            *(self._filled(share, x) for x in of_graph),
        ]
        gates = self._gates("node_gates", cell.node_gates, invariants)
        g1, g2, g3, g4, g5 = (self._column(gates, number) for number in range(DIRECTIONS))
        g1, g4 = self._mul(g1, around), self._mul(g4, around)
        mixture = self._add(self._mul(g2, psi), self._mul(g4, psi_n))
        rest = self._sub(self._sub(self._sub(self._sub(g5, g1), g2), g3), g4)
        v_h = self._add(self._mul(g1, h_n), self._low_product("MatMul", mixture, C))
        v_h = self._add(v_h, self._low_product("MatMul", self._mul(g3, psi), gathered))
        return self._add(v_h, self._mul(rest, H))

    def _target_velocity(
        self,
        cell: EquivariantCell,
        of: OfTargets,
        of_graph: OfGraph,
        shared_sizes: Callable[[], str],
        mean_node: Callable[[], str],
    ) -> str:
        """Emit the velocity of the targets, [c, d]."""
        gathered, confident, shares = of.gathered, of.confident, of.shares
        invariants = [
            shares,
            self._div(shares, of_graph.classes),
            self._cosines(self._dots(C, gathered), self._squares(C), self._squares(gathered)),
            self._per_size(of.sharp_sizes, of.sizes),
            self._per_size(shared_sizes(), of.sizes),
            of.trust,
            *(
                self._filled(shares, x)
                for x in (
                    of_graph.classes,
                    of.purity,
                    of_graph.agreement,
                    of_graph.trust,
                    of_graph.right,
                )
            ),
        ]
        gates = self._gates("target_gates", cell.target_gates, invariants)
        g6, g7, g8 = (self._column(gates, number) for number in range(TARGET_DIRECTIONS))
        v_c = self._add(self._mul(g6, self._sub(gathered, C)), self._mul(g7, self._sub(confident, C)))
        return self._of_targets(self._add(v_c, self._mul(g8, mean_node())))

    def _still(self) -> dict[str, str]:
        """Emit the velocity of the proxies, which the cell does not have: zeros."""
        return {name: self._sub(name, name) for name in STATE[2:]}

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

    def _one_per_class(self) -> str:
        """Emit 1 / c."""
        return self._div(self._number("one", 1.0), self._class_count(C))

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
