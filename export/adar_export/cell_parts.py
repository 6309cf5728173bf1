"""The pieces that the fused cell and the phases of a step are composed of, as ONNX operators."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps, Factor
from adar_export.emitters import emitter_for
from adar_runtime.bundle.signature import STATE
from adar_runtime.graph.neighbour_tables import JOINS, LEAVES
from adar_train.model import AdaR


class Small(NamedTuple):
    """What a step computes for proxies and targets."""

    g_pn: str  # Ĝ of the node proxies [p, d]
    g_cn: str  # Ĝ of the targets [c, d]
    velocities: dict[str, str]  # of targets and proxies, by the name of the state
    pn_led: str  # the node proxies that the messages use [p, d]
    targets_led: str  # the targets that the messages use [c, d]


class CellParts:
    """Pieces of a step. A subclass declares the inputs, composes the pieces and declares the outputs."""

    builder: OnnxBuilder
    _ops: CellOps
    _before: dict[str, str]  # the previous velocity of each state
    _weight: str
    _previous_weight: str
    _lead: str
    _share: str
    _is_weighted: bool = False  # edges have weights, which are inputs beside the leaf tables
    _leaves: list[str]
    _leaf_weights: list[str]
    _joins: list[str]
    _place: str

    def _shapes_of(self, model: AdaR) -> dict[str, list[int | str]]:
        """The shape of each state."""
        config = model.config
        sizes = ("n", config.targets or "c", config.proxies, config.proxies)
        return {name: [size, config.hidden] for name, size in zip(STATE, sizes, strict=True)}

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

    def _small(self, diffused: Callable[[str, str], str]) -> Small:
        """Emit Eq. pnode-graph, Eq. pnode-target and Eq. cnode: what happens to proxies and targets.

        `diffused(name, x_sur)` returns what the surrogates collect from the nodes, [k, d].
        """
        _, targets, pn, pc = STATE
        g_pn, v_pn = self._refine("node_abstraction", diffused("node_abstraction", pn), pn, pn)
        pn_led = self._led(pn, v_pn)
        between = self._diffused("target_abstraction", targets, pc)
        _, v_pc = self._refine("target_abstraction", between, pc, pc)
        g_cn, v_c = self._refine("target_update", diffused("target_update", targets), targets, pn_led)
        targets_led = self._led(targets, v_c)
        return Small(g_pn, g_cn, {targets: v_c, pn: v_pn, pc: v_pc}, pn_led, targets_led)

    def _diffused(self, name: str, x_in: str, x_sur: str) -> str:
        """Emit GlobMP's diffuse: ψ(X_sur, X_in) NL(X_in) [k, d]."""
        # A softmax over all of x_in can have tiny shares, so this product is in full precision.
        shares = self._ops.attend(x_sur, x_in)  # [k, n]
        return self._collected(name, shares, x_in)

    def _collected(self, name: str, shares: str, x_in: str) -> str:
        values = self._ops.full(self._nonlinear(f"{name}.value", x_in))
        return self.builder.op("MatMul", shares, values)

    def _refine(self, name: str, diffused: str, x_sur: str, x_cond: str) -> tuple[str, str]:
        """Emit GlobMP's refine. Return Ĝ [k, d] and the velocity of the surrogates [k, d]."""
        builder, ops, velocity = self.builder, self._ops, f"{name}.velocity"
        refined = builder.op("MatMul", ops.attend(x_sur, x_sur), diffused)
        projected = ops.full(ops.layer(refined, f"{velocity}.representation.weight"))

        def related() -> str:
            relation = ops.product(ops.scaled(x_sur), x_cond, transB=1)
            return ops.layer(relation, f"{velocity}.relation.weight", ops.step_bias(velocity))

        return refined, self._velocity(velocity, x_sur, projected, related)

    def _left(self, h: str, pn_led: str, targets_led: str) -> Factor:
        """Emit the left factor of the messages M = left @ right, [n, p + c + d]."""
        ops = self._ops
        weights = (ops.low(ops.attend(h, surrogates)) for surrogates in (pn_led, targets_led))
        return ops.left_factor(*weights, ops.low(h))

    def _values(self, small: Small) -> tuple[str, str]:
        """Emit the factors V_pn [p, d] and V_cn [c, d] of the messages."""
        values_pn = self._nonlinear("node_abstraction.refined", small.g_pn)
        return values_pn, self._nonlinear("target_update.refined", small.g_cn)

    def _relation_kernel(self, proxies: str) -> str:
        """Emit the [d, d] matrix that H is multiplied with in the nodes' velocity."""
        return self._ops.layer(self._ops.scaled(proxies), "velocity.relation.weight", transA=1)

    def _nonlinear(self, name: str, x: str) -> str:
        result: str = emitter_for(type(self._ops.module(name)))(self._ops, name, x)
        return result

    def _velocity(self, name: str, current: str, projected: str, related: Callable[[], str]) -> str:
        emit = emitter_for(type(self._ops.module(name)))
        result: str = emit(self._ops, name, current, projected, related)
        return result

    def _averaged(self, own: str, received: str) -> str:
        """Emit the sum of Eq. local-mp over a node and its neighbours, divided by |N| + 1: [n, d]."""
        total = self.builder.op("Add", own, received)
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
