"""The trained model as three ONNX graphs: encoder, cell and head.

The graphs are written operator by operator instead of traced. So the opset is exactly the one asked
for, two exports of one model are the same bytes, every value has a place one can point at, and the
cell can be arranged for speed. That it is still the same function is what `validate` measures after
every export, and what the tests compare with the training cell.

How the cell is arranged (each exact up to rounding):

* The messages M = [M_pn ‖ M_cn ‖ H] are never built: M = left @ right with `left` n × (p + c + d),
  and `right` is small, so it meets the weights first.
* The velocity's first layer moves inside the sum over neighbours, which then runs over d columns.
* The relation H P^(c)ᵀ meets its weights first too: H (P^(c)ᵀ W), a d × d product.
* The step encoding is one row, added where the bias is; Δt scales a d × d matrix, not the state.
* 1/√d scales the small side of each product.
"""

from collections.abc import Callable

import numpy as np
import onnx

from adar_export.builder import GraphBuilder
from adar_runtime.graph import EDGE, GRAPH, NODE
from adar_train.alignments import COSINE_MARGIN
from adar_train.model import AdaR, ModelConfig, Nonlinear, Velocity

LAYER_NORM_EPSILON = 1e-5  # PyTorch's
LEAKY_SLOPE = 0.01  # PyTorch's


def build_graphs(model: AdaR, opset: int) -> dict[str, onnx.ModelProto]:
    """The three graphs of a bundle."""
    config = model.config
    metadata = {"adar.hidden": str(config.hidden), "adar.proxies": str(config.proxies)}
    graphs = {"encoder": _encoder(model), "cell": CellGraph(model).graph, "head": _head(config)}
    by_row = {"adar.by_row": "no" if config.isotropic else "yes"}  # whether nodes can be encoded in blocks
    return {name: graph.build(opset, metadata | by_row) for name, graph in graphs.items()}


def _encoder(model: AdaR) -> GraphBuilder:
    """Features -> the four states at t = 0."""
    g, config = GraphBuilder("adar_encoder"), model.config
    d, f = config.hidden, config.features
    kernel, bias = (tensor.detach().cpu().numpy() for tensor in model.input_map())
    affine = [g.weight("input.kernel", kernel), g.weight("input.bias", bias)]

    def encoded(name: str, rows: str) -> str:
        value = g.op("Gemm", g.input(name, [rows, f]), *affine)
        return value if model.log_length is None else _placed(g, value, model.log_length.exp().item())

    g.output("nodes", encoded("features", "n"), ["n", d])
    if model.targets is None:
        g.output("targets", encoded("target_features", "c"), ["c", d])
    else:
        g.output(
            "targets",
            g.weight("learned_targets", model.targets.detach().cpu().numpy()),
            [config.targets or 0, d],
        )
    for name, proxies in (("node_proxies", model.node_proxies), ("target_proxies", model.target_proxies)):
        g.output(name, g.weight(f"initial_{name}", proxies.detach().cpu().numpy()), [config.proxies, d])
    return g


def _placed(g: GraphBuilder, rows: str, length: float) -> str:
    """Measured from the mean of all rows, each of one length."""
    centred = g.op("Sub", rows, _mean_row(g, rows))
    return g.op("Mul", _unit_rows(g, centred), g.weight("row_length", np.array(length, np.float32)))


def _unit_rows(g: GraphBuilder, rows: str) -> str:
    return g.op("Div", rows, _row_lengths(g, rows))


def _row_lengths(g: GraphBuilder, rows: str) -> str:
    square = g.op("ReduceSum", g.op("Mul", rows, rows), g.weight("last_axis", np.array([1])), keepdims=1)
    tiny = g.weight("tiny", np.array(1e-12, np.float32))  # a row of zeros is left one
    return g.op("Sqrt", g.op("Add", square, tiny))


def _head(config: ModelConfig) -> GraphBuilder:
    """Nodes and targets -> the scores Z Cᵀ before softmax, and the alignment of the state."""
    g, d, c = GraphBuilder("adar_head"), config.hidden, config.targets or "c"
    nodes, targets = g.input("nodes", ["n", d]), g.input("targets", [c, d])
    outputs: dict[str, int | str] = {NODE: "n", EDGE: "k", GRAPH: 1}
    scale = d**-0.5 if config.isotropic else 1.0
    scores = g.op("Gemm", _readout(g, nodes, config.level), targets, transB=1, alpha=scale)
    g.output("scores", scores, [outputs[config.level], c])
    g.output("alignment", _alignment(g, config.alignment, nodes, targets), [])
    return g


def _readout(g: GraphBuilder, nodes: str, level: str) -> str:
    """Z [k, d]: the nodes, the products of pairs of them, or their mean."""
    if level == EDGE:
        pairs = g.input("pairs", [2, "k"], "int64")
        ends = [g.op("Gather", pairs, g.weight(f"row_{i}", np.array(i)), axis=0) for i in (0, 1)]
        return g.op("Mul", *(g.op("Gather", nodes, end, axis=0) for end in ends))
    if level == GRAPH:
        return g.op("Unsqueeze", _mean_row(g, nodes), g.weight("first_axis", np.array([0])))
    return nodes


def _alignment(g: GraphBuilder, name: str, nodes: str, targets: str) -> str:
    """What `adar_train.alignments` has under that name."""
    if name == COSINE_MARGIN:
        return _cosine_margin(g, nodes, targets)
    return g.op("MatMul", _mean_row(g, nodes), _mean_row(g, targets))


def _cosine_margin(g: GraphBuilder, nodes: str, targets: str) -> str:
    """max_j cos(h, ĉ_j) - mean_j cos(h, ĉ_j) = max_j h·(ĉ_j - mean ĉ) / ‖h‖, the mean over all nodes."""
    unit = _unit_rows(g, g.op("Sub", targets, _mean_row(g, targets)))
    ahead = g.op("Gemm", nodes, g.op("Sub", unit, _mean_row(g, unit)), transB=1)  # [n, c]
    # TopK and not ReduceMax, which takes its axes differently from opset 18 on.
    nearest = g.op("TopK", ahead, g.weight("one", np.array([1])), outputs=2, axis=1)  # [n, 1]
    margin = g.op("Div", nearest, _row_lengths(g, nodes))
    return g.op("Squeeze", _mean_row(g, margin), g.weight("first_axis", np.array([0])))


def _mean_row(g: GraphBuilder, rows: str) -> str:
    # ReduceMean takes its axes differently from opset 18 on; the sum has taken them as an input all along.
    total = g.op("ReduceSum", rows, g.weight("first_axis", np.array([0])), keepdims=0)
    count = g.op("Cast", g.op("Shape", rows, start=0, end=1), to=onnx.TensorProto.FLOAT)
    return g.op("Div", total, count)


class CellGraph:
    """One step: the five lines of the appendix, as `adar_train.model.Cell` has them."""

    def __init__(self, model: AdaR) -> None:
        config = model.config
        self.graph = g = GraphBuilder("adar_cell")
        self._cell = model.cell
        self._weights = {
            name: tensor.detach().cpu().numpy() for name, tensor in model.cell.state_dict().items()
        }
        p, d, c = config.proxies, config.hidden, config.targets or "c"
        self._d = d
        h, targets = g.input("nodes", ["n", d]), g.input("targets", [c, d])
        pn, pc = g.input("node_proxies", [p, d]), g.input("target_proxies", [p, d])
        self._source, self._target = (g.input(f"edge_{end}", ["m"], "int64") for end in ("source", "target"))
        self._share = g.input("share", ["n", 1])
        self._step, self._dt = g.input("step_code", [d]), g.input("step_size", [])

        # Eq. pnode-graph, Eq. pnode-target, Eq. cnode
        g_pn, pn_next = self._absorb("node_abstraction", h, pn, pn)
        _, pc_next = self._absorb("target_abstraction", targets, pc, pc)
        g_cn, targets_next = self._absorb("target_update", h, targets, pn_next)

        # Eq. local: M = left @ right
        left = g.op("Concat", self._attend(h, pn_next), self._attend(h, targets_next), h, axis=1)
        values_pn = self._nonlinear("node_abstraction.refined", g_pn)
        values_cn = self._nonlinear("target_update.refined", g_cn)
        local = self._local(left, values_pn, values_cn)

        # Eq. gnode, the relation being with the updated target proxies
        h_next = self._advance("velocity", h, local, lambda: self._node_relation(h, pc_next))

        rows: dict[str, int | str] = {"nodes": "n", "targets": c, "node_proxies": p, "target_proxies": p}
        for name, value in zip(rows, (h_next, targets_next, pn_next, pc_next), strict=True):
            g.output(f"next_{name}", value, [rows[name], d])
        g.output("alignment", _alignment(g, config.alignment, h_next, targets_next), [])

    def _absorb(self, name: str, x_in: str, x_sur: str, x_cond: str) -> tuple[str, str]:
        """GlobMP's diffuse and refine: Ĝ, and the surrogates one step on."""
        g = self.graph
        spread = g.op("MatMul", self._attend(x_sur, x_in), self._nonlinear(f"{name}.value", x_in))
        refined = g.op("MatMul", self._attend(x_sur, x_sur), spread)
        projected = self._matmul(refined, f"{name}.velocity.representation.weight")

        def related() -> str:
            relation = g.op("Gemm", self._scaled(x_sur), x_cond, transB=1)
            return self._matmul(
                relation, f"{name}.velocity.relation.weight", self._step_bias(f"{name}.velocity")
            )

        return refined, self._advance(f"{name}.velocity", x_sur, projected, related)

    def _node_relation(self, h: str, proxies: str) -> str:
        """What relation and step add to a node's velocity, the relation as H times a d × d matrix."""
        kernel = self._matmul(self._scaled(proxies), "velocity.relation.weight", transA=1)
        return self.graph.op("Gemm", h, kernel, self._step_bias("velocity"))

    def _local(self, left: str, values_pn: str, values_cn: str) -> str:
        """Eq. local-mp after the velocity's first layer, [n, d]."""
        g, nl = self.graph, self._cell.message
        own = g.op("MatMul", left, self._factor("velocity.representation.weight", values_pn, values_cn))
        sent = own
        if not nl.silent:
            message = self._factor("message.linear.weight", values_pn, values_cn)  # [p + c + d, 3d]
            messages = self._leaky(g.op("Gemm", left, message, self._weight("message.linear.bias")))
            sent = self._matmul(messages, "velocity.representation.weight")
            sent = g.op("Add", own, sent) if nl.isotropic else sent
        received = g.op("Gather", sent, self._source, axis=0)
        index = g.op("Unsqueeze", self._target, g.weight("last_axis", np.array([1])))
        summed = g.op("ScatterND", own, index, received, reduction="add")  # the own message starts the sum
        return g.op("Mul", summed, self._share)

    def _factor(self, name: str, values_pn: str, values_cn: str) -> str:
        """Right @ Wᵀ for M = left @ right, right = diag(values_pn, values_cn, 1): [p + c + d, out]."""
        g, d, weight = self.graph, self._d, self._weights[name].T
        shares = self._weights.get("parts", np.ones(3, np.float32))
        blocks = [
            g.weight(f"{name}.{part}", shares[i] * weight[i * d : (i + 1) * d])
            for i, part in enumerate(("pn", "cn", "h"))
        ]
        pn, cn = g.op("MatMul", values_pn, blocks[0]), g.op("MatMul", values_cn, blocks[1])
        return g.op("Concat", pn, cn, blocks[2], axis=0)

    def _advance(self, name: str, x: str, projected: str, related: Callable[[], str]) -> str:
        """X + Δt · velocity; `related` adds what the first layer makes of relation and step."""
        g, velocity = self.graph, self._cell.get_submodule(name)
        assert isinstance(velocity, Velocity)
        moved = x
        if not velocity.silent:
            mixed = g.op("Add", projected, related())
            norm = [self._weight(f"{name}.norm.{part}") for part in ("weight", "bias")]
            hidden = self._leaky(g.op("LayerNormalization", mixed, *norm, epsilon=LAYER_NORM_EPSILON))
            out = g.op("Mul", self._transposed(f"{name}.out.weight"), self._dt)
            moved = g.op("Gemm", hidden, out, x)
        if velocity.rates is None:
            return moved
        pull, decay = (g.op("Mul", self._dt, self._rate(name, i)) for i in (0, 1))
        return g.op("Add", moved, g.op("Sub", g.op("Mul", projected, pull), g.op("Mul", x, decay)))

    def _rate(self, name: str, index: int) -> str:
        return self.graph.weight(f"{name}.{('pull', 'decay')[index]}", self._weights[f"{name}.rates"][index])

    def _step_bias(self, name: str) -> str:
        """The step's share of the velocity's first layer, one row."""
        code = self.graph.op("MatMul", self._step, self._transposed(f"{name}.step.weight"))
        return self.graph.op("Add", code, self._weight(f"{name}.step.bias"))

    def _attend(self, a: str, b: str) -> str:
        # The smaller side is scaled; proxies and targets are, nodes never.
        scaled = (a, self._scaled(b)) if a == "nodes" else (self._scaled(a), b)
        return self.graph.op("Softmax", self.graph.op("Gemm", *scaled, transB=1), axis=1)

    def _scaled(self, x: str) -> str:
        return self.graph.op(
            "Mul", x, self.graph.weight("inverse_root_d", np.array(self._d**-0.5, np.float32))
        )

    def _nonlinear(self, name: str, x: str) -> str:
        nl = self._cell.get_submodule(name)
        assert isinstance(nl, Nonlinear)
        if nl.silent:
            return x
        changed = self._leaky(self._matmul(x, f"{name}.linear.weight", self._weight(f"{name}.linear.bias")))
        return self.graph.op("Add", x, changed) if nl.isotropic else changed

    def _matmul(self, x: str, name: str, *bias: str, **attributes: int) -> str:
        return self.graph.op("Gemm", x, self._transposed(name), *bias, **attributes)

    def _leaky(self, x: str) -> str:
        return self.graph.op("LeakyRelu", x, alpha=LEAKY_SLOPE)

    def _weight(self, name: str) -> str:
        return self.graph.weight(name, self._weights[name])

    def _transposed(self, name: str) -> str:
        """A layer's kernel as [in, out], the way a product from the right wants it."""
        return self.graph.weight(f"{name}.T", self._weights[name].T)
