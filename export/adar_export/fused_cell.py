"""One step as an ONNX model arranged for speed: the same function as `adar_train.cell.Cell`, with less work.

Each of these rearrangements is exact up to rounding:

* The messages M = [M_pn ‖ M_cn ‖ H] are never built. M = left @ right with `left` [n, p + c + d] and a small
  `right`, which is multiplied with the weights first.
* The velocity's first layer moves inside the sum over neighbours, which then has d columns.
* The relation H P^(c)ᵀ is multiplied with its weights first too: H (P^(c)ᵀ W), where the factor is [d, d].
* The step encoding is one row, added with the bias.
* 1/√d scales the smaller matrix of each product.
* Neighbours are summed with tables (`adar_runtime.graph.neighbour_tables`), by operators of every backend.

The next state is X + weight · V + previous_weight · V_before with V the velocity. (Δt, 0) is Euler's step;
other solvers (`adar_runtime.loop.solvers`) use other weights.

This file holds what all variants share. The parts that differ are emitted through `emitters.EMITTERS`.
"""

from collections.abc import Callable

import numpy as np

from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps
from adar_export.emitters import emitter_for
from adar_export.onnx_ops import root_mean_square
from adar_export.precision import Precision
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph.neighbour_tables import JOINS, LEAVES
from adar_train.alignments import ALIGNMENTS
from adar_train.model import AdaR


class FusedCell:
    """The five lines of the appendix's "Velocity Computing", in `builder` when constructed."""

    NAME = "adar_cell"

    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        self.builder = OnnxBuilder(self.NAME, opset, precision.real)
        self._shapes = self._shapes_of(model)
        self._is_weighted = model.config.edge_weights
        for name in STATE:
            self.builder.input(name, self._shapes[name])
        self._before = {
            name: self.builder.input(f"previous_{name}_velocity", self._shapes[name]) for name in STATE
        }
        self._declare_graph()
        self._declare_step(model.config.hidden)
        self._ops = self._make_ops(model, precision)
        self._local_messages = emitter_for(type(model.cell.message))
        self._declare_outputs(model, self._velocities())

    def _shapes_of(self, model: AdaR) -> dict[str, list[int | str]]:
        """The shape of each state."""
        config = model.config
        sizes = ("n", config.targets or "c", config.proxies, config.proxies)
        return {name: [size, config.hidden] for name, size in zip(STATE, sizes, strict=True)}

    def _declare_graph(self) -> None:
        """Declare the inputs that describe the edges."""
        self._declare_tables("n")
        self._share = self.builder.input("share", ["n", 1])
        self._sample = self.builder.input("sample", ["s"], "int32")

    def _declare_tables(self, rows: str) -> None:
        builder = self.builder
        self._leaves, self._joins = (
            [
                builder.input(f"{kind}_{i}", [f"{kind}_rows_{i}", f"{kind}_width_{i}"], "int32")
                for i in range(count)
            ]
            for kind, count in (("leaf", LEAVES), ("join", JOINS))
        )
        self._place = builder.input("place", [rows], "int32")
        self._leaf_weights = [
            builder.input(f"leaf_weight_{i}", [f"leaf_rows_{i}", 1, f"leaf_width_{i}"])
            for i in range(LEAVES if self._is_weighted else 0)
        ]

    def _declare_step(self, d: int) -> None:
        """Declare the inputs that change before each call."""
        self._step = self.builder.input("step_code", [d])
        self._weight, self._previous_weight, self._lead = (self.builder.input(name, []) for name in STEP)

    def _make_ops(self, model: AdaR, precision: Precision) -> CellOps:
        return CellOps(model, self.builder, precision, self._step)

    def _velocities(self) -> dict[str, str]:
        """Emit the five lines up to the velocity of each state."""
        ops, (h, targets, pn, pc) = self._ops, STATE

        # Eq. pnode-graph, Eq. pnode-target, Eq. cnode
        g_pn, v_pn = self._absorb("node_abstraction", h, pn, pn)
        pn_led = self._led(pn, v_pn)
        _, v_pc = self._absorb("target_abstraction", targets, pc, pc)
        g_cn, v_c = self._absorb("target_update", h, targets, pn_led)
        targets_led = self._led(targets, v_c)

        # Eq. local of M = left @ right
        weights = (ops.low(ops.attend(h, surrogates)) for surrogates in (pn_led, targets_led))
        left = ops.left_factor(*weights, ops.low(h))  # [n, p + c + d]
        values_pn = self._nonlinear("node_abstraction.refined", g_pn)  # [p, d]
        values_cn = self._nonlinear("target_update.refined", g_cn)  # [c, d]
        own, sent = self._local_messages(ops, left, (values_pn, values_cn))  # [n, d], [n, d]
        local = self._averaged(own, sent)  # [n, d]

        # Eq. gnode, with the relation to the updated target proxies
        v_h = self._velocity("velocity", h, local, lambda: self._node_relation(h, self._led(pc, v_pc)))
        return dict(zip(STATE, (v_h, v_c, v_pn, v_pc), strict=True))

    def _declare_outputs(self, model: AdaR, velocities: dict[str, str]) -> None:
        """Emit the next states and the scalars, and declare the outputs."""
        builder = self.builder
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        scalars = self._scalars(model, velocities["nodes"], after["nodes"], after["targets"])
        for name, value in after.items():
            builder.output(f"next_{name}", value, self._shapes[name])
        for name, value in velocities.items():
            builder.output(f"{name}_velocity", value, self._shapes[name])
        for name, value in scalars.items():
            builder.output(name, value, self._shapes["nodes"][:-2])  # [], or one per graph of a batch

    def _scalars(self, model: AdaR, velocity: str, nodes: str, targets: str) -> dict[str, str]:
        """Emit the alignment of the next state and the motion of the nodes in this call."""
        builder = self.builder
        alignment = emitter_for(ALIGNMENTS[model.config.alignment])(builder, nodes, targets)
        now, before = (
            builder.op("Gather", v, self._sample, axis=0) for v in (velocity, self._before["nodes"])
        )
        speed = root_mean_square(builder, now)
        turn = root_mean_square(builder, builder.op("Sub", now, before))
        return dict(zip(SCALARS, (alignment, speed, turn), strict=True))

    def _absorb(self, name: str, x_in: str, x_sur: str, x_cond: str) -> tuple[str, str]:
        """Emit GlobMP's diffuse and refine. Return Ĝ [k, d] and the velocity of the surrogates [k, d]."""
        builder, ops, velocity = self.builder, self._ops, f"{name}.velocity"
        # A softmax over all of x_in can have tiny shares, so this product is in full precision.
        shares = ops.attend(x_sur, x_in)  # [k, n]
        diffused = builder.op("MatMul", shares, ops.full(self._nonlinear(f"{name}.value", x_in)))
        refined = builder.op("MatMul", ops.attend(x_sur, x_sur), diffused)
        projected = ops.full(ops.layer(refined, f"{velocity}.representation.weight"))

        def related() -> str:
            relation = ops.product(ops.scaled(x_sur), x_cond, transB=1)
            return ops.layer(relation, f"{velocity}.relation.weight", ops.step_bias(velocity))

        return refined, self._velocity(velocity, x_sur, projected, related)

    def _node_relation(self, h: str, proxies: str) -> str:
        """Emit what relation and step add to the nodes' velocity: H times a [d, d] matrix, plus a row."""
        ops = self._ops
        kernel = ops.layer(ops.scaled(proxies), "velocity.relation.weight", transA=1)
        return ops.product(h, kernel, ops.step_bias("velocity"))

    def _nonlinear(self, name: str, x: str) -> str:
        result: str = emitter_for(type(self._ops.module(name)))(self._ops, name, x)
        return result

    def _velocity(self, name: str, current: str, projected: str, related: Callable[[], str]) -> str:
        emit = emitter_for(type(self._ops.module(name)))
        result: str = emit(self._ops, name, current, projected, related)
        return result

    def _averaged(self, own: str, sent: str) -> str:
        """Emit the sum of Eq. local-mp over a node and its neighbours, divided by |N| + 1: [n, d]."""
        total = self.builder.op("Add", self._ops.full(own), self._received(sent))
        return self.builder.op("Mul", total, self._share)

    def _received(self, sent: str) -> str:
        """Emit the (weighted) sum of `sent` over the neighbours of each node, with tables: [n, d]."""
        builder, zeros = self.builder, np.zeros((1, self._ops.d))
        no_message = builder.weight("no_message", zeros, self._ops.small)
        messages = builder.op("Concat", no_message, sent, axis=0)
        if self._is_weighted:
            pairs = zip(self._leaves, self._leaf_weights, strict=True)
            leaves = [self._weighted_sums(messages, table, weights) for table, weights in pairs]
        else:
            leaves = [self._table_sums(messages, table) for table in self._leaves]
        sums = builder.op("Concat", builder.weight("no_sum", zeros), *leaves, axis=0)
        joins = [self._table_sums(sums, table) for table in self._joins]
        return builder.op("Gather", builder.op("Concat", sums, *joins, axis=0), self._place, axis=0)

    def _weighted_sums(self, values: str, table: str, weights: str) -> str:
        """Emit weights [rows, 1, width] times messages [rows, width, d]: faster than Mul and ReduceSum."""
        gathered = self._ops.full(self.builder.op("Gather", values, table, axis=0))  # [rows, width, d]
        sums = self.builder.op("MatMul", weights, gathered)  # [rows, 1, d]
        return self.builder.op("Squeeze", sums, self.builder.weight("axis_1", np.array([1])))

    def _table_sums(self, values: str, table: str) -> str:
        gathered = self._ops.full(self.builder.op("Gather", values, table, axis=0))  # [rows, width, d]
        return self.builder.reduce("ReduceSum", gathered, 1)

    def _advanced(self, name: str, velocity: str) -> str:
        """Emit the next state: the state plus both velocities, with the weights of the solver."""
        builder = self.builder
        moved = builder.op("Add", name, builder.op("Mul", self._before[name], self._previous_weight))
        return builder.op("Add", moved, builder.op("Mul", velocity, self._weight))

    def _led(self, name: str, velocity: str) -> str:
        """Emit the proxies or targets that later lines of this step use: moved by `lead` · velocity."""
        return self.builder.op("Add", name, self.builder.op("Mul", velocity, self._lead))
