"""The model compared with the paper's equations, written independently in numpy."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from adar_runtime import Graph
from adar_runtime.loop.schedule import step_code, times
from adar_train import AdaR, GraphTensors, ModelConfig
from adar_train.alignments import ALIGNMENTS
from tests.helpers import awake, random_graph


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.01 * x)


class Paper:
    """One step as in the appendix, term by term, with concatenations and sets of neighbours."""

    def __init__(self, model: AdaR, graph: Graph) -> None:
        self.w = {name: tensor.double().numpy() for name, tensor in model.cell.state_dict().items()}
        self.d = model.config.hidden
        self.neighbours = [
            {int(s) for s, t in graph.edge_index.T if t == node} for node in range(graph.nodes)
        ]  # fmt: skip

    def psi(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return softmax(a @ b.T / np.sqrt(self.d))

    def nl(self, name: str, x: np.ndarray) -> np.ndarray:
        return leaky(x @ self.w[f"{name}.linear.weight"].T + self.w[f"{name}.linear.bias"])

    def velocity(
        self, name: str, rep: np.ndarray, a: np.ndarray, b: np.ndarray, step: np.ndarray
    ) -> np.ndarray:
        """NL([current rep. ‖ relation ‖ step info.])"""
        relation = a @ b.T / np.sqrt(self.d)
        concatenated = np.concatenate([rep, relation, np.ones((len(rep), 1)) * step], axis=1)
        parts = [self.w[f"{name}.{part}.weight"] for part in ("representation", "relation", "step")]
        x = concatenated @ np.concatenate(parts, axis=1).T + self.w[f"{name}.step.bias"]
        x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        x = x * self.w[f"{name}.norm.weight"] + self.w[f"{name}.norm.bias"]
        return leaky(x) @ self.w[f"{name}.out.weight"].T

    def glob_mp(self, name: str, x_in, x_sur, x_cond, step, dt):
        g = self.psi(x_sur, x_in) @ self.nl(f"{name}.value", x_in)  # Eq. glob-mp-np
        g = self.psi(x_sur, x_sur) @ g  # Eq. glob-mp-agg
        x_sur = x_sur + self.velocity(f"{name}.velocity", g, x_sur, x_cond, step) * dt  # Eq. glob-mp-update
        if f"{name}.refined.linear.weight" not in self.w:
            return None, x_sur
        return self.psi(x_in, x_sur) @ self.nl(f"{name}.refined", g), x_sur  # Eq. glob-mp-pn

    def local_mp(self, m: np.ndarray) -> np.ndarray:
        """Eq. local-mp, node by node."""
        sent = self.nl("message", m)
        rows = [
            (m[node] + sum((sent[other] for other in others), np.zeros_like(m[node]))) / (len(others) + 1)
            for node, others in enumerate(self.neighbours)
        ]
        return np.stack(rows)

    def step(self, h, c, pn, pc, step, dt):
        m_pn, pn = self.glob_mp("node_abstraction", h, pn, pn, step, dt)  # Eq. pnode-graph
        _, pc = self.glob_mp("target_abstraction", c, pc, pc, step, dt)  # Eq. pnode-target
        m_cn, c = self.glob_mp("target_update", h, c, pn, step, dt)  # Eq. cnode
        local = self.local_mp(np.concatenate([m_pn, m_cn, h], axis=1))  # Eq. local
        return h + self.velocity("velocity", local, h, pc, step) * dt, c, pn, pc  # Eq. gnode


@pytest.mark.parametrize("edges", [0, 3, 40])
@pytest.mark.parametrize("targets", [None, 3])
def test_a_step_equals_the_papers_equations(edges: int, targets: int | None) -> None:
    graph = random_graph(11, edges)
    model = awake(ModelConfig(graph.width, targets, hidden=8, proxies=5))
    paper, clock = Paper(model, graph), [0.0, 0.3, 0.45]
    with torch.no_grad():
        states = list(model.trajectory(GraphTensors.of(graph), clock))
    for (now, then), (before, after) in zip(pairwise(clock), pairwise(states), strict=True):
        expected = paper.step(*(x.detach().double().numpy() for x in before), step_code(now, 8), then - now)
        for name, ours, theirs in zip(after._fields, after, expected, strict=True):
            assert np.abs(ours.numpy() - theirs).max() < 1e-5, name
        assert (after.nodes - before.nodes).abs().max() > 1e-2  # the step changed the nodes


def test_an_untrained_model_does_not_move_the_states() -> None:
    graph = random_graph(9, 20)
    states = list(
        AdaR(ModelConfig(graph.width, None, 8, 4)).eval().trajectory(GraphTensors.of(graph), times(3))
    )
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[-1], strict=True))


def test_nodes_and_descriptions_share_the_input_transformation() -> None:
    model = awake(ModelConfig(6, None, 8, 4))
    x = torch.rand(4, 6)
    state = model.encode(x, x)
    assert torch.allclose(state.nodes, state.targets)


def test_the_papers_alignment_is_the_mean_of_all_inner_products() -> None:
    graph = random_graph(9, 20)
    config = ModelConfig(graph.width, None, 8, 4, alignment="mean-inner-product")
    tensors, model = GraphTensors.of(graph), awake(config)
    *_, state = model.trajectory(tensors, times(2))
    assert torch.allclose(model.alignment(state), model.scores(state, tensors).mean(), atol=1e-6)


def test_large_weights_stay_finite_for_300_steps() -> None:
    """The layer norm bounds the velocities."""
    graph = random_graph(20, 60)
    model = awake(ModelConfig(graph.width, 3, 8, 4))
    with torch.no_grad():
        for weight in model.cell.parameters():
            weight.mul_(10)
        *_, state = model.trajectory(GraphTensors.of(graph), times(300))
    assert all(part.isfinite().all() for part in state)


def test_the_cosine_margin_ignores_a_shift_of_all_targets() -> None:
    random = torch.Generator().manual_seed(0)
    nodes, targets = torch.randn(9, 8, generator=random), torch.randn(3, 8, generator=random)
    shifted = targets + torch.randn(8, generator=random)  # the same for all targets
    margin, inner = ALIGNMENTS["cosine-margin"], ALIGNMENTS["mean-inner-product"]
    assert torch.allclose(margin(nodes, targets), margin(nodes, shifted), atol=1e-6)
    assert not torch.allclose(inner(nodes, targets), inner(nodes, shifted))
    assert torch.allclose(margin(3 * nodes, targets), margin(nodes, targets))
