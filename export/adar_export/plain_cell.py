"""The plain AdaR, for comparison: the paper's formulas in the usual PyG style, exported by PyTorch.

The plain cell is the same function of the same weights as `adar_train.cell`. Every layer over a concatenation
takes the concatenation, the step encoding is repeated for each node, and a neighbour sum gathers one row of
3d columns per edge and sums the rows with scatter_add_.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from adar_export.builder import AXES_ARE_INPUTS
from adar_export.opsets import check_exact
from adar_runtime.bundle.manifest import EDGES
from adar_runtime.bundle.signature import SCALARS, STATE, STEP, STRUCTURES
from adar_runtime.errors import ExportError
from adar_runtime.loop.schedule import step_code
from adar_train.cell import GlobalMessages, LocalMessages, ModelConfig, Nonlinear, State, Velocity
from adar_train.model import AdaR, Model
from adar_train.tensors import GraphTensors
from adar_train.zero_shot import ZeroShotLocalMessages, ZeroShotNonlinear, ZeroShotVelocity


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Compute a bᵀ / √d. `adar_train.cell.inner` is not used, because it is compared with this."""
    return a @ b.T / a.shape[1] ** 0.5


def attend(a: Tensor, b: Tensor) -> Tensor:
    """Compute ψ: the weight of each row of b for each row of a."""
    return inner(a, b).softmax(dim=1)


class PlainNonlinear(nn.Module):
    """NL of a message: Linear → LeakyReLU."""

    def __init__(self, ours: Nonlinear | LocalMessages) -> None:
        super().__init__()
        self.linear = ours.linear

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(self.linear(x))


class PlainZeroShotNonlinear(PlainNonlinear):
    """NL of a message as a residual."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class PlainVelocity(nn.Module):
    """NL([current rep. ‖ relation ‖ step info.]), with one first layer over all three."""

    def __init__(self, ours: Velocity) -> None:
        super().__init__()
        parts = [ours.representation.weight, ours.relation.weight, ours.step.weight]
        self.mix = nn.Linear(sum(part.shape[1] for part in parts), len(parts[0])).to(parts[0])
        with torch.no_grad():
            self.mix.weight.copy_(torch.cat(parts, dim=1))
            self.mix.bias.copy_(ours.step.bias)
        self.norm, self.dropout, self.out = ours.norm, ours.dropout, ours.out

    def forward(self, representation: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:  # noqa: ARG002
        steps = step.expand(representation.shape[0], -1)  # 1 Sᵀ
        mixed = self.mix(torch.cat([representation, relation, steps], dim=1))
        return self.out(self.dropout(functional.leaky_relu(self.norm(mixed))))


class PlainZeroShotVelocity(PlainVelocity):
    """The velocity, a pull towards the representation, and a decay of the state."""

    def __init__(self, ours: ZeroShotVelocity) -> None:
        super().__init__(ours)
        self.representation, self.rates = ours.representation, ours.rates

    def forward(self, representation: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:
        v = super().forward(representation, relation, step, current)
        return v + self.rates[0] * self.representation(representation) - self.rates[1] * current


class PlainGlobalMessages(nn.Module):
    """GlobMP, Eqs. glob-mp-np to glob-mp-pn."""

    def __init__(self, ours: GlobalMessages) -> None:
        super().__init__()
        self.value = plain_of(ours.value)
        self.refined = None if ours.refined is None else plain_of(ours.refined)
        self.velocity = plain_of(ours.velocity)

    def forward(
        self, x_in: Tensor, x_sur: Tensor, x_cond: Tensor, step: Tensor, lead: Tensor | float
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return M_glob, the surrogates that later lines use, and the surrogates' velocity."""
        g = attend(x_sur, x_in) @ self.value(x_in)
        g = attend(x_sur, x_sur) @ g
        v = self.velocity(g, inner(x_sur, x_cond), step, x_sur)
        led = x_sur + v * lead
        return None if self.refined is None else attend(x_in, led) @ self.refined(g), led, v


class PlainCell(nn.Module):
    """The plain cell with the weights of a model's cell.

    With `per_edge`, each message is transformed once per edge that it is sent along, as Eq. local-mp reads
    and as PyG's MessagePassing.message does. Otherwise, it is transformed once per node.
    """

    def __init__(self, ours: AdaR, *, per_edge: bool = False) -> None:
        super().__init__()
        self.per_edge = per_edge
        cell = ours.cell
        self.node_abstraction = PlainGlobalMessages(cell.node_abstraction)
        self.target_abstraction = PlainGlobalMessages(cell.target_abstraction)
        self.target_update = PlainGlobalMessages(cell.target_update)
        self.message = plain_of(cell.message)
        self.velocity = plain_of(cell.velocity)
        self.parts = cell.parts

    def forward(
        self,
        state: State,
        edge_index: Tensor,
        step: Tensor,
        lead: Tensor | float,
        edge_weight: Tensor | None = None,
    ) -> State:
        """Compute the velocities by Eqs. pnode-graph, pnode-target, cnode, local and gnode."""
        h, c, pn, pc = state
        m_pn, pn_led, v_pn = self.node_abstraction(h, pn, pn, step, lead)
        _, pc_led, v_pc = self.target_abstraction(c, pc, pc, step, lead)
        m_cn, _, v_c = self.target_update(h, c, pn_led, step, lead)
        messages = [m_pn, m_cn, h]
        if self.parts is not None:
            messages = [part * message for part, message in zip(self.parts, messages, strict=True)]
        local = self.local(torch.cat(messages, dim=1), edge_index, edge_weight)  # [n, 3d]
        return State(self.velocity(local, inner(h, pc_led), step, h), v_c, v_pn, v_pc)

    def local(self, messages: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Compute Eq. local-mp [n, 3d]; with weights, as a weighted mean."""
        source, target = edge_index
        sent = self.message(messages[source]) if self.per_edge else self.message(messages)[source]  # [m, 3d]
        sent = sent if edge_weight is None else edge_weight[:, None] * sent
        sums = torch.zeros_like(messages).scatter_add_(0, target[:, None].expand_as(sent), sent)
        ones = torch.ones_like(target, dtype=messages.dtype) if edge_weight is None else edge_weight
        count = torch.zeros_like(messages[:, 0]).scatter_add_(0, target, ones)[:, None]
        return (messages + sums) / (count + 1)


PLAIN: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    Nonlinear: PlainNonlinear,
    Velocity: PlainVelocity,
    LocalMessages: PlainNonlinear,
    ZeroShotNonlinear: PlainZeroShotNonlinear,
    ZeroShotVelocity: PlainZeroShotVelocity,
    ZeroShotLocalMessages: PlainZeroShotNonlinear,
}
"""The plain form of each module class."""


def plain_of(ours: nn.Module) -> nn.Module:
    """Return the plain form of a module, which shares its weights."""
    if type(ours) not in PLAIN:
        raise ExportError(
            f"{type(ours).__name__} has no plain form: export without --plain, or add one to "
            "adar_export.plain_cell.PLAIN"
        )
    return PLAIN[type(ours)](ours)


class PlainAdaR(Model):
    """The whole model around the plain cell. Do not train both: some layers are the same objects."""

    def __init__(self, ours: AdaR, *, per_edge: bool = False) -> None:
        super().__init__(ours.config)
        if ours.config.regression:
            self.label_offset, self.label_scale = ours.label_offset, ours.label_scale
        self.start = ours  # for its input transformation, which is the same in both
        self.cell = PlainCell(ours, per_edge=per_edge)

    def trajectory(self, graph: GraphTensors, times: Iterable[float]) -> Iterator[State]:
        """Yield the state at each of `times`, like `AdaR.trajectory`."""
        self.start.cell.velocity.dropout.redraw()  # the plain velocity has the same dropout
        graph = self.weighted(graph)
        state = self.start.first_state(graph)
        yield state
        for now, then in pairwise(times):
            step = torch.from_numpy(step_code(now, self.config.hidden)).to(state.nodes)
            velocities = self.cell(state, graph.edge_index, step, then - now, graph.edge_weight)
            state = State(*(x + v * (then - now) for x, v in zip(state, velocities, strict=True)))
            yield state


class _Export(nn.Module):
    """The plain cell with the inputs and outputs of an exported cell, in the order of the signature."""

    def __init__(self, model: AdaR) -> None:
        super().__init__()
        self.cell, self.model = PlainCell(model), model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        count = len(STATE)
        state, before = State(*inputs[:count]), State(*inputs[count : 2 * count])
        source, target, *weights = inputs[2 * count : -1 - len(STEP)]  # weights of the edges, if any
        step, weight, previous_weight, lead = inputs[-1 - len(STEP) :]
        velocities = self.cell(state, torch.stack([source, target]), step, lead, *weights)
        after = State(
            *(x + previous_weight * b + weight * v for x, b, v in zip(state, before, velocities, strict=True))
        )
        turned = velocities.nodes - before.nodes
        return (
            *after,
            *velocities,
            self.model.alignment(after),
            *map(_root_mean_square, (velocities.nodes, turned)),
        )


def _root_mean_square(x: Tensor) -> Tensor:
    # Not .mean(): the converter to opset 17 fails at a ReduceMean over all axes.
    return (x.square().sum() / x.numel()) ** 0.5


def export_plain_cell(model: AdaR, opset: int) -> onnx.ModelProto:
    """Export the plain cell with `torch.onnx.export`, at exactly this opset or with an ExportError."""
    inputs, shapes = _example(model.config)
    outputs = [*(f"next_{name}" for name in STATE), *(f"{name}_velocity" for name in STATE), *SCALARS]
    with _quiet():
        program = torch.onnx.export(
            _Export(model.eval()),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=outputs,
            opset_version=max(opset, AXES_ARE_INPUTS),
            dynamic_shapes=(shapes,),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    if opset < AXES_ARE_INPUTS:
        _axes_to_attributes(proto, opset)
    for node in proto.graph.node:  # remove the paths of source files
        del node.metadata_props[:]
    check_exact(proto, opset)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _example(config: ModelConfig) -> tuple[dict[str, Tensor], tuple[dict[int, torch.export.Dim] | None, ...]]:
    """Return inputs to trace with, in the order of the signature, and their dynamic dimensions."""
    n, m = 5, 7
    rows = (n, config.targets or 3, config.proxies, config.proxies)
    inputs = {name: torch.ones(count, config.hidden) for name, count in zip(STATE, rows, strict=True)}
    inputs |= {f"previous_{name}_velocity": torch.zeros_like(state) for name, state in inputs.items()}
    inputs |= {port.name: torch.arange(m) % n for port in STRUCTURES[EDGES]}
    if config.edge_weights:
        inputs["edge_weight"] = torch.ones(m)
    inputs["step_code"] = torch.ones(config.hidden)
    inputs |= {name: torch.tensor(0.1) for name in STEP}
    free = {"nodes": "n", "previous_nodes_velocity": "n"}
    free |= dict.fromkeys(("edge_source", "edge_target", "edge_weight"), "m")
    if config.targets is None:
        free |= {"targets": "c", "previous_targets_velocity": "c"}
    sides = {side: torch.export.Dim(side) for side in dict.fromkeys(free.values())}
    return inputs, tuple({0: sides[free[name]]} if name in free else None for name in inputs)


def _axes_to_attributes(model: onnx.ModelProto, opset: int) -> None:
    """Convert from opset 18 to 17. Only reductions differ, and the converter of onnx fails at them."""
    known = {weight.name: numpy_helper.to_array(weight) for weight in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum" and len(node.input) > 1:
            node.attribute.append(helper.make_attribute("axes", known[node.input.pop()].tolist()))
            kept = [attribute for attribute in node.attribute if attribute.name != "noop_with_empty_axes"]
            del node.attribute[:]
            node.attribute.extend(kept)
    model.opset_import[0].version = opset


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log messages of the exporter. The result is checked instead."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
