"""Parity: the bundle against PyTorch, over many steps, on more than one graph."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from adar_runtime.bundle import Bundle
from adar_runtime.errors import ExportError
from adar_runtime.graph import EDGE, Graph
from adar_runtime.schedule import times
from adar_runtime.stopping import Final
from adar_train.model import AdaR, ModelConfig
from adar_train.tensors import GraphTensors

STEPS = (1, 10, 100)
TOLERANCE = 1e-3
"""Largest difference of a score, relative to the largest score. Rounding adds up over the steps: what
is measured after 100 of them is around 1e-5, so this leaves room for other machines and no more."""


@dataclass(frozen=True)
class Check:
    """One comparison: a graph, a number of steps, and how far the scores lie apart."""

    graph: str
    steps: int
    absolute: float
    relative: float  # to the largest score
    predictions: int  # nodes whose predicted class differs

    @property
    def agrees(self) -> bool:
        return self.relative <= TOLERANCE


def compare(
    model: AdaR,
    bundle: Bundle,
    graphs: Mapping[str, Graph],
    on_check: Callable[[Check], None] = lambda _: None,
) -> list[Check]:
    """Run both sides on every graph and for every number of steps; an ExportError lists what disagrees."""
    checks = []
    for name, graph in graphs.items():
        tensors = GraphTensors.of(graph)
        for steps in STEPS:
            check = _check(
                name, steps, _torch_scores(model, tensors, steps), bundle.run(graph, steps, Final()).scores
            )
            on_check(check)
            checks.append(check)
    wrong = [c for c in checks if not c.agrees]
    if wrong:
        found = ", ".join(f"{c.relative:.1e} on {c.graph} after {c.steps} steps" for c in wrong)
        raise ExportError(f"the bundle and PyTorch disagree by more than {TOLERANCE:.0e}: {found}")
    return checks


def report(checks: Iterable[Check]) -> dict[str, Any]:
    """The comparison as the manifest keeps it."""
    return {"reference": "PyTorch", "tolerance": TOLERANCE, "checks": [asdict(check) for check in checks]}


def random_graph(config: ModelConfig, seed: int = 0) -> Graph:
    """A small graph unlike any that a model was trained on: directed, with isolated nodes, hubs and loops."""
    features = config.features
    random = np.random.default_rng(seed)
    nodes, edges = 60, 240
    target = np.minimum(random.geometric(0.1, edges) - 1, nodes - 10)  # many edges end at the first nodes
    return Graph(
        features=random.normal(size=(nodes, features)).astype(np.float32),
        edge_index=np.stack([random.integers(0, nodes - 5, edges), target]),
        target_features=None if config.targets else random.normal(size=(4, features)).astype(np.float32),
        pairs=random.integers(0, nodes, (2, 30)) if config.level == EDGE else None,
        level=config.level,
    )


@torch.no_grad()
def _torch_scores(model: AdaR, tensors: GraphTensors, steps: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    *_, last = model.trajectory(tensors, times(steps, unit_step=model.config.unit_step))
    return model.scores(last, tensors).numpy()


def _check(name: str, steps: int, expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> Check:
    difference = float(np.abs(expected - got).max())
    scale = float(np.abs(expected).max()) or 1.0
    differing = int((expected.argmax(axis=1) != got.argmax(axis=1)).sum())
    return Check(name, steps, difference, difference / scale, differing)
