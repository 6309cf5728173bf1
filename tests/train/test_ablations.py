"""The paper's ablations, and its theorem about convergence."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from adar_runtime.errors import UsageError
from adar_runtime.loop.schedule import step_code, times
from adar_train import AdaR, GraphTensors, ModelConfig, TrainConfig
from adar_train.cell import State
from adar_train.config import PRESETS, preset
from adar_train.time_grids import GRIDS
from tests.helpers import awake, random_graph


def last(model: AdaR, graph: GraphTensors, clock) -> torch.Tensor:
    with torch.no_grad():
        *_, state = model.trajectory(graph, clock)
    return state.nodes


def test_without_step_information_a_velocity_ignores_the_time() -> None:
    graph = GraphTensors.of(random_graph(9, 20))
    for step_info in (True, False):
        model = awake(ModelConfig(6, None, 8, 4, step_info=step_info))
        early, late = (last(model, graph, [t, t + 0.1]) for t in (0.0, 0.8))
        assert torch.equal(early, late) != step_info


def test_without_relations_a_velocity_ignores_the_target_proxies() -> None:
    graph = GraphTensors.of(random_graph(9, 20))
    for relation in (True, False):
        model = awake(ModelConfig(6, None, 8, 4, relation=relation))
        before = last(model, graph, [0.0, 0.1])
        with torch.no_grad():
            model.target_proxies.mul_(-2)
        assert torch.equal(before, last(model, graph, [0.0, 0.1])) != relation


def test_frozen_parts_stay_at_zero_while_training() -> None:
    model = AdaR(ModelConfig(6, None, 8, 4, step_info=False, relation=False))
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert len(frozen) == 8  # step and relation of each of the four velocities
    assert all(not dict(model.named_parameters())[name].any() for name in frozen)


def test_grids() -> None:
    random = np.random.default_rng(0)
    assert GRIDS["fixed"](4, random).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert GRIDS["unit"](3, random).tolist() == [0, 1, 2, 3]
    lengths = {len(GRIDS["budget"](8, random)) - 1 for _ in range(200)}
    assert lengths == set(range(4, 13))
    drawn = GRIDS["scattered"](8, random)
    assert (drawn[0], drawn[-1], len(drawn)) == (0, 1, 9)
    assert (np.diff(drawn) > 0).all()


def test_presets_have_the_papers_values_and_can_be_overridden() -> None:
    paper = preset("transductive")
    assert (paper.epochs, paper.lr, paper.weight_decay, paper.grid) == (1000, 1e-3, 1e-6, "fixed")
    assert (paper.step_weight, paper.full_weight) == (1, 1)
    assert preset("zero-shot").epochs == 10_000
    assert preset("zero-shot", lr=0.5).lr == 0.5
    assert preset("quick") == TrainConfig(calibration="quick")
    with pytest.raises(UsageError, match=", ".join(PRESETS)):
        preset("nonsense")


def there_and_back(t: float, direction: torch.Tensor) -> torch.Tensor:
    """A trajectory as in Lemma non-uni-conv: out and back on the same line."""
    return direction * np.sin(np.pi * t)


@pytest.mark.parametrize("step_info", [True, False])
def test_the_error_of_a_known_trajectory_falls_as_1_over_s_with_step_information(step_info: bool) -> None:
    """Theorem uni-conv: with step information, the error is of order 1/S. Without it, the error stays."""
    torch.manual_seed(0)
    d, graph = 16, GraphTensors.of(random_graph(6, 12))
    model = AdaR(ModelConfig(6, 2, d, 2, dropout=0.0, step_info=step_info))
    direction = torch.randn(1, d).expand(6, d)
    rest = (model.targets.detach(), model.node_proxies.detach(), model.target_proxies.detach())
    learned = [*model.cell.velocity.parameters(), *model.cell.message.parameters()]
    optimizer = torch.optim.Adam([weight for weight in learned if weight.requires_grad], 1e-2)

    def velocity(t: float, nodes: torch.Tensor) -> torch.Tensor:
        step = torch.from_numpy(step_code(t, d))
        return model.cell(State(nodes, *rest), graph.neighbours, graph.share, step, 1.0).nodes - nodes

    random = np.random.default_rng(0)
    for _ in range(250):  # match the velocity on and around the trajectory
        optimizer.zero_grad()
        loss = torch.zeros(())
        for t in random.random(6):
            near = there_and_back(t, direction) + 0.3 * torch.randn(6, d)
            loss = loss + (velocity(t, near) - direction * np.pi * np.cos(np.pi * t)).square().mean() / 6
        loss.backward()
        optimizer.step()

    def error(budget: int) -> float:
        """The largest distance from the trajectory over all steps, relative to its extent."""
        nodes, worst = torch.zeros(6, d), 0.0
        for now, then in pairwise(times(budget)):
            nodes = nodes + velocity(now, nodes).detach() * (then - now)
            worst = max(worst, float((nodes - there_and_back(then, direction)).norm() / direction.norm()))
        return worst

    errors = [error(budget) for budget in (4, 8, 16, 32)]
    if step_info:
        assert all(0.4 < after / before < 0.65 for before, after in pairwise(errors)), errors
    else:
        assert min(errors) > 0.9
