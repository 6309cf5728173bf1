"""Part "theory": the order of convergence with and without step information (Lemma 3.2, Theorem 3.3).

The velocity of a small AdaR learns a known trajectory, out and back on one line, as in the lemma. The error
is the largest distance from the trajectory over all steps, relative to its extent.
"""

from itertools import pairwise

import numpy as np
import torch

from adar_runtime.graph import Graph
from adar_runtime.loop.schedule import step_code, times
from adar_train import AdaR, GraphTensors, ModelConfig, State
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import Part, Task, Work

PART_NAME = "theory"
SETS = ("sine",)
SEEDS = (0, 1, 2)
WITH, WITHOUT = "with step information", "without step information"
BUDGETS = (4, 8, 16, 32, 64, 128, 256)
UPDATES, QUICK_UPDATES = 600, 250
NODES, COLUMNS = 6, 16


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:  # noqa: ARG001
    """Both models, three seeds."""
    return [
        Task(Key(PART_NAME, name, 0, "adar", setting, seed), 40)
        for name in sets
        for seed in SEEDS
        for setting in (WITH, WITHOUT)
    ]


def measure(work: Work) -> Row:
    """Learn the velocity, then follow it with every budget."""
    torch.manual_seed(work.key.seed)
    random = np.random.default_rng(work.key.seed)
    edges = random.integers(0, NODES, (2, 2 * NODES))
    graph = GraphTensors.of(
        Graph(features=random.normal(size=(NODES, 6)).astype(np.float32), edge_index=edges)
    )
    config = ModelConfig(6, 2, COLUMNS, 2, dropout=0.0, step_info=work.key.setting == WITH)
    model = AdaR(config)
    direction = torch.randn(1, COLUMNS).expand(NODES, COLUMNS)
    rest = (model.targets.detach(), model.node_proxies.detach(), model.target_proxies.detach())  # type: ignore[union-attr]

    def velocity(t: float, nodes: torch.Tensor) -> torch.Tensor:
        step = torch.from_numpy(step_code(t, COLUMNS))
        return model.cell(State(nodes, *rest), graph.neighbours, graph.share, step, 1.0).nodes - nodes

    learned = [*model.cell.velocity.parameters(), *model.cell.message.parameters()]
    optimizer = torch.optim.Adam([weight for weight in learned if weight.requires_grad], 1e-2)
    updates = QUICK_UPDATES if work.quick else UPDATES
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for update in range(updates):  # match the velocity on and around the trajectory
        optimizer.zero_grad()
        loss = torch.zeros(())
        for t in random.random(6):
            near = direction * np.sin(np.pi * t) + 0.3 * torch.randn(NODES, COLUMNS)
            loss = loss + (velocity(t, near) - direction * np.pi * np.cos(np.pi * t)).square().mean() / 6
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if update % 50 == 0:
            work.report(update / updates, f"update {update} of {updates}")

    @torch.no_grad()
    def error(budget: int) -> float:
        nodes, worst = torch.zeros(NODES, COLUMNS), 0.0
        for now, then in pairwise(times(budget)):
            nodes = nodes + velocity(now, nodes) * (then - now)
            distance = (nodes - direction * np.sin(np.pi * then)).norm() / direction.norm()
            worst = max(worst, float(distance))
        return worst

    errors = {str(budget): error(budget) for budget in BUDGETS}
    return {"errors": errors, "settings": {"updates": updates, "hidden": COLUMNS, "nodes": NODES}}


PART = Part(PART_NAME, SETS, tasks, measure)
