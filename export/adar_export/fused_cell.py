"""One step as an ONNX graph, arranged for speed: the same function as `adar_train`'s cell, far less work.

How it is arranged (each exact up to rounding):

* The messages M = [M_pn ‖ M_cn ‖ H] are never built: M = left @ right with `left` n × (p + c + d),
  and `right` is small, so it meets the weights first.
* The velocity's first layer moves inside the sum over neighbours, which then runs over d columns.
* The relation H P^(c)ᵀ meets its weights first too: H (P^(c)ᵀ W), a d × d product.
* The step encoding is one row, added where the bias is.
* 1/√d scales the small side of each product.
* Neighbours are summed over tables (`adar_runtime.graph.neighbour_tables`) by operators of every backend.

The next state is X + weight · V + previous_weight · V_before with V the velocity: (Δt, 0) is Euler's step,
other weights are other solvers' (`adar_runtime.loop.solvers`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_export.builder import OnnxBuilder
from adar_export.onnx_ops import alignment, root_mean_square
from adar_export.precision import Precision
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph.neighbour_tables import JOINS, LEAVES
from adar_train.cell import Nonlinear, Velocity
from adar_train.model import AdaR

LAYER_NORM_EPSILON = 1e-5  # PyTorch's
LEAKY_SLOPE = 0.01  # PyTorch's


class FusedCell:
    """The five lines of the appendix, as `adar_train.cell.Cell` has them."""

    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        config = model.config
        self.graph = OnnxBuilder("adar_cell", opset, precision.real)
        self._precision = precision
        self._small = precision.product
        self._cell = model.cell
        self._weights = {
            name: tensor.detach().cpu().numpy() for name, tensor in model.cell.state_dict().items()
        }
        self._d = config.hidden
        rows = ("n", config.targets or "c", config.proxies, config.proxies)
        self._shapes = {name: [side, config.hidden] for name, side in zip(STATE, rows, strict=True)}
        self._take()
        self._give(self._velocities(), config.alignment)

    def _take(self) -> None:
        """Declare the inputs, in the order of the signature."""
        g = self.graph
        for name in STATE:
            g.input(name, self._shapes[name])
        self._before = {name: g.input(f"previous_{name}_velocity", self._shapes[name]) for name in STATE}
        self._leaves, self._joins = (
            [g.input(f"{kind}_{i}", [f"{kind}_rows_{i}", f"{kind}_width_{i}"], "int32") for i in range(count)]
            for kind, count in (("leaf", LEAVES), ("join", JOINS))
        )
        self._place, self._share = g.input("place", ["n"], "int32"), g.input("share", ["n", 1])
        self._sample = g.input("sample", ["s"], "int32")
        self._step = g.input("step_code", [self._d])
        self._weight, self._previous_weight, self._lead = (g.input(name, []) for name in STEP)

    def _velocities(self) -> dict[str, str]:
        """The five lines, as far as the velocity of each state."""
        h, targets, pn, pc = STATE

        # Eq. pnode-graph, Eq. pnode-target, Eq. cnode
        g_pn, v_pn = self._absorb("node_abstraction", h, pn, pn)
        pn_led = self._led(pn, v_pn)
        _, v_pc = self._absorb("target_abstraction", targets, pc, pc)
        g_cn, v_c = self._absorb("target_update", h, targets, pn_led)
        targets_led = self._led(targets, v_c)

        # Eq. local: M = left @ right
        parts = self._collected(h, pn_led), self._collected(h, targets_led), self._low(h)
        left = self.graph.op("Concat", *parts, axis=1)
        values_pn = self._nonlinear("node_abstraction.refined", g_pn)
        values_cn = self._nonlinear("target_update.refined", g_cn)
        local = self._local(left, values_pn, values_cn)

        # Eq. gnode, the relation being with the updated target proxies
        v_h = self._velocity("velocity", h, local, lambda: self._node_relation(h, self._led(pc, v_pc)))
        return dict(zip(STATE, (v_h, v_c, v_pn, v_pc), strict=True))

    def _give(self, velocities: dict[str, str], alignment_name: str) -> None:
        """Move the states, measure where they are and how they moved, and let it all out."""
        g, v_h = self.graph, velocities["nodes"]
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        reached = alignment(g, alignment_name, after["nodes"], after["targets"])
        now, before = (g.op("Gather", v, self._sample, axis=0) for v in (v_h, self._before["nodes"]))
        speed, turn = root_mean_square(g, now), root_mean_square(g, g.op("Sub", now, before))
        for name, value in after.items():
            g.output(f"next_{name}", value, self._shapes[name])
        for name, value in velocities.items():
            g.output(f"{name}_velocity", value, self._shapes[name])
        for name, value in zip(SCALARS, (reached, speed, turn), strict=True):
            g.output(name, value, [])

    def _absorb(self, name: str, x_in: str, x_sur: str, x_cond: str) -> tuple[str, str]:
        """GlobMP's diffuse and refine: Ĝ, and the velocity of the surrogates."""
        g = self.graph
        # Softmax over all of x_in: its shares may be tiny, so this product is not of small numbers.
        spread = g.op("MatMul", self._attend(x_sur, x_in), self._full(self._nonlinear(f"{name}.value", x_in)))
        refined = g.op("MatMul", self._attend(x_sur, x_sur), spread)
        projected = self._full(self._layer(refined, f"{name}.velocity.representation.weight"))

        def related() -> str:
            relation = self._product(self._scaled(x_sur), x_cond, transB=1)
            return self._layer(
                relation, f"{name}.velocity.relation.weight", self._step_bias(f"{name}.velocity")
            )

        return refined, self._velocity(f"{name}.velocity", x_sur, projected, related)

    def _node_relation(self, h: str, proxies: str) -> str:
        """What relation and step add to a node's velocity, the relation as H times a d × d matrix."""
        kernel = self._layer(self._scaled(proxies), "velocity.relation.weight", transA=1)
        return self._product(h, kernel, self._step_bias("velocity"))

    def _local(self, left: str, values_pn: str, values_cn: str) -> str:
        """Eq. local-mp after the velocity's first layer, [n, d]."""
        g, nl = self.graph, self._cell.message
        project = self._weights["velocity.representation.weight"]
        own = self._product(left, self._factor("own", project, values_pn, values_cn))
        sent = own
        if not nl.silent:
            sent = self._sent(left, values_pn, values_cn, own if nl.isotropic else None)
        return g.op("Mul", g.op("Add", self._full(own), self._received(sent)), self._share)

    def _sent(self, left: str, values_pn: str, values_cn: str, sent: str | None) -> str:
        """NL(M) Wᵀ, added to `sent`, in three blocks of d columns: narrow products stay in the cache."""
        d = self._d
        layer, bias = self._weights["message.linear.weight"], self._weights["message.linear.bias"]
        project = self._weights["velocity.representation.weight"].T
        for block in range(3):
            columns, name = slice(block * d, (block + 1) * d), f"message.{block}"
            factor = self._factor(f"{name}.weight", layer[columns], values_pn, values_cn)
            start = self.graph.weight(f"{name}.bias", bias[columns], self._small)
            message = self._leaky(self._product(left, factor, start))  # [n, d]
            kernel = self._kernel(f"velocity.representation.{block}.T", project[columns])
            sent = self._product(message, kernel, *([sent] if sent else []))
        assert sent is not None
        return sent

    def _received(self, sent: str) -> str:
        """The sum of `sent` over the neighbours of each node, by the neighbour tables."""
        g = self.graph
        zeros = np.zeros((1, self._d))
        messages = g.op("Concat", g.weight("no_message", zeros, self._small), sent, axis=0)
        leaves = [self._table_sums(messages, table) for table in self._leaves]
        sums = g.op("Concat", g.weight("no_sum", zeros), *leaves, axis=0)
        joins = [self._table_sums(sums, table) for table in self._joins]
        return g.op("Gather", g.op("Concat", sums, *joins, axis=0), self._place, axis=0)

    def _table_sums(self, rows: str, table: str) -> str:
        gathered = self._full(self.graph.op("Gather", rows, table, axis=0))  # [rows, width, d]
        return self.graph.reduce("ReduceSum", gathered, 1)

    def _factor(self, name: str, layer: NDArray[np.float32], values_pn: str, values_cn: str) -> str:
        """Right @ layerᵀ for M = left @ right, right = diag(values_pn, values_cn, 1): [p + c + d, out]."""
        g, d, weight = self.graph, self._d, layer.T
        shares = self._weights.get("parts", np.ones(3, np.float32))
        blocks = [
            self._kernel(f"{name}.{part}", shares[i] * weight[i * d : (i + 1) * d])
            for i, part in enumerate(("pn", "cn", "h"))
        ]
        pn, cn = self._product(values_pn, blocks[0]), self._product(values_cn, blocks[1])
        return g.op("Concat", pn, cn, blocks[2], axis=0)

    def _velocity(self, name: str, x: str, projected: str, related: Callable[[], str]) -> str:
        """NL of Eq. velocity; `related` gives what the first layer makes of relation and step."""
        g, velocity = self.graph, self._cell.get_submodule(name)
        assert isinstance(velocity, Velocity)
        terms = [] if velocity.silent else [self._nonlinear_velocity(name, projected, related())]
        if velocity.rates is not None:
            pull, decay = (
                g.weight(f"{name}.{k}", self._weights[f"{name}.rates"][i])
                for i, k in enumerate(("pull", "decay"))
            )
            terms.append(g.op("Sub", g.op("Mul", projected, pull), g.op("Mul", x, decay)))
        return terms[0] if len(terms) == 1 else g.op("Add", *terms)

    def _nonlinear_velocity(self, name: str, projected: str, related: str) -> str:
        """Linear → LayerNorm → LeakyReLU → Linear, after the first."""
        g = self.graph
        mixed = g.op("Add", projected, self._full(related))
        norm = [
            g.weight(f"{name}.norm.{part}", self._weights[f"{name}.norm.{part}"])
            for part in ("weight", "bias")
        ]
        hidden = self._leaky(g.op("LayerNormalization", mixed, *norm, epsilon=LAYER_NORM_EPSILON))
        return self._full(self._layer(hidden, f"{name}.out.weight"))

    def _advanced(self, name: str, velocity: str) -> str:
        """The state of that name, moved by the two velocities as the solver weighs them."""
        g = self.graph
        moved = g.op("Add", name, g.op("Mul", self._before[name], self._previous_weight))
        return g.op("Add", moved, g.op("Mul", velocity, self._weight))

    def _led(self, name: str, velocity: str) -> str:
        """Proxies or targets as the later lines of the step see them: already moved, by `lead`."""
        return self.graph.op("Add", name, self.graph.op("Mul", velocity, self._lead))

    def _step_bias(self, name: str) -> str:
        """The step's share of the velocity's first layer, one row."""
        kernel = self.graph.weight(f"{name}.step.weight.T", self._weights[f"{name}.step.weight"].T)
        bias = self.graph.weight(f"{name}.step.bias", self._weights[f"{name}.step.bias"])
        return self.graph.op("Add", self.graph.op("MatMul", self._step, kernel), bias)

    def _attend(self, a: str, b: str) -> str:
        """ψ, in full precision."""
        # The smaller side is scaled; proxies and targets are, nodes never.
        scaled = (a, self._scaled(b)) if a == "nodes" else (self._scaled(a), b)
        return self.graph.op("Softmax", self._full(self._product(*scaled, transB=1)), axis=1)

    def _collected(self, h: str, surrogates: str) -> str:
        return self._low(self._attend(h, surrogates))

    def _scaled(self, x: str) -> str:
        return self.graph.op("Mul", x, self.graph.weight("inverse_root_d", np.array(self._d**-0.5)))

    def _nonlinear(self, name: str, x: str) -> str:
        nl = self._cell.get_submodule(name)
        assert isinstance(nl, Nonlinear)
        if nl.silent:
            return self._low(x)
        changed = self._leaky(self._layer(x, f"{name}.linear.weight", self._parameter(f"{name}.linear.bias")))
        return self.graph.op("Add", self._low(x), changed) if nl.isotropic else changed

    def _layer(self, x: str, name: str, *bias: str, **attributes: Any) -> str:
        """A linear layer of the model: its kernel as [in, out], the way a product from the right wants it."""
        return self._product(x, self._kernel(f"{name}.T", self._weights[name].T), *bias, **attributes)

    def _kernel(self, name: str, kernel: NDArray[np.float32]) -> str:
        """A constant factor of a product."""
        if self._precision.weights is None:
            return self.graph.weight(name, kernel, self._small)
        scale = np.maximum(np.abs(kernel).max(axis=0), 1e-12) / 127  # of each column
        levels = self.graph.weight(f"{name}.int8", np.rint(kernel / scale).astype(np.int8))
        scales = self.graph.weight(f"{name}.scale", scale)
        return self.graph.op("DequantizeLinear", levels, scales, axis=1, type=self.graph.real)

    def _product(self, a: str, b: str, *bias: str, **attributes: Any) -> str:
        """A @ b + bias of small numbers."""
        return self._low(self.graph.op("Gemm", *map(self._low, (a, b, *bias)), **attributes))

    def _leaky(self, x: str) -> str:
        return self.graph.op("LeakyRelu", x, alpha=LEAKY_SLOPE)

    def _parameter(self, name: str) -> str:
        return self.graph.weight(name, self._weights[name], self._small)

    def _low(self, x: str) -> str:
        """A value as products take it."""
        return self.graph.cast(x, self._small)

    def _full(self, x: str) -> str:
        return self.graph.cast(x, self.graph.real)
