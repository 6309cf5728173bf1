"""Parity: a bundle against PyTorch, names, then shapes, then values, over many steps of several graphs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from adar_runtime import signature
from adar_runtime.bundle import Bundle
from adar_runtime.errors import ExportError
from adar_runtime.graph import ALL, Floats, Graph
from adar_runtime.metrics import split_metrics
from adar_runtime.schedule import times
from adar_runtime.stopping import Final, answer_step
from adar_train.model import AdaR, State
from adar_train.tensors import GraphTensors

STEPS = (1, 10, 100, 300)
DRIFT = (1, 2, 5, 10, 20, 50, 100, 150, 200, 250)  # steps at which the largest budget is looked at too
TOLERANCES = {"fp32": 1e-3, "int8": 5e-2, "fp16": 2e-2, "bf16": 1e-1}
"""Largest difference in a state, relative to its largest entry. Rounding adds up over the steps: what is
measured in fp32 after 300 of them is around 1e-5, so this leaves room for other machines and no more."""


@dataclass(frozen=True)
class Check:
    """One comparison: a graph, a number of steps, and how far the two lie apart at their end."""

    graph: str
    backend: str
    steps: int
    absolute: float  # largest difference of an entry of any of the four states
    relative: float  # the same, over the largest entry of that state
    predictions: int  # outputs whose predicted class differs
    stop: int  # the step that the bundle's exit rule answers from
    reference_stop: int  # and from PyTorch's alignments
    metric: float | None  # of all labels at the last step, where there are any
    reference_metric: float | None
    drift: dict[int, float] = field(default_factory=dict)  # the relative difference after so many steps


@dataclass(frozen=True)
class Report:
    """All comparisons of one bundle."""

    tolerance: float
    checks: list[Check]

    @property
    def needed(self) -> float:
        """The tolerance that would have passed."""
        return max((check.relative for check in self.checks), default=0.0)

    def problems(self) -> list[str]:
        """What does not agree, all of it."""
        return [
            f"{check.relative:.1e} on {check.graph} after {check.steps} steps"
            for check in self.checks
            if not check.relative <= self.tolerance  # a NaN is a problem too
        ]

    def to_dict(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "reference": "PyTorch",
            "tolerance": self.tolerance,
            "needed": self.needed,
            "checks": [asdict(check) for check in self.checks],
        }


def compare(
    model: AdaR,
    bundle: Bundle,
    graphs: Mapping[str, Graph],
    steps: Sequence[int] = STEPS,
    on_check: Callable[[Check], None] = lambda _: None,
) -> Report:
    """Run both sides on every graph for every number of steps; whether they agree is the report's to say."""
    checks = []
    for name, graph in graphs.items():
        tensors = GraphTensors.of(graph)
        for budget in steps:
            looked_at = [step for step in DRIFT if step < budget] if budget == max(steps) else []
            checks.append(_check(model, bundle, name, graph, tensors, [*looked_at, budget]))
            on_check(checks[-1])
    return Report(TOLERANCES[bundle.manifest.precision], checks)


def refuse(bundle: Bundle, report: Report) -> None:
    """Raise an ExportError that lists every name, shape and value that is not as it should be."""
    found = signature.problems(bundle.manifest, bundle.backend.ports) + report.problems()
    if found:
        raise ExportError(
            f"the bundle and PyTorch disagree by more than {report.tolerance:.0e} "
            f"({report.needed:.1e} would pass): {'; '.join(found)}"
        )


class _Reference(NamedTuple):
    """PyTorch's side of a comparison: one run, looked at where it will be compared."""

    states: dict[int, State]
    alignment: list[float]
    scores: Floats


@torch.no_grad()
def _reference(model: AdaR, tensors: GraphTensors, budget: int, looked_at: Sequence[int]) -> _Reference:
    states, alignment = {}, []
    for step, state in enumerate(model.trajectory(tensors, times(budget, unit_step=model.config.unit_step))):
        alignment.append(float(model.alignment(state)))
        if step in looked_at:
            states[step] = state
    return _Reference(states, alignment, model.scores(state, tensors).numpy())


def _check(
    model: AdaR, bundle: Bundle, name: str, graph: Graph, tensors: GraphTensors, looked_at: Sequence[int]
) -> Check:
    """Compare after the last of the steps, which is the budget, and note the distance at the others."""
    budget = looked_at[-1]
    # One side after the other: each has threads of its own, which would wait for each other.
    reference = _reference(model, tensors, budget, looked_at)
    trace: list[float] = []
    distances: dict[int, tuple[float, float]] = {}
    for step in bundle.loop(graph, budget, Final()):
        trace.append(step.alignment)
        if step.index in looked_at:
            distances[step.index] = _distance(reference.states[step.index], step.state())
    rule, got = bundle.stop_rule(), step.scores()
    return Check(
        graph=name,
        backend=bundle.backend.name,
        steps=budget,
        absolute=distances[budget][0],
        relative=distances[budget][1],
        predictions=int((reference.scores.argmax(axis=1) != got.argmax(axis=1)).sum()),
        stop=answer_step(rule, trace),
        reference_stop=answer_step(rule, reference.alignment),
        metric=_metric(graph, got),
        reference_metric=_metric(graph, reference.scores),
        drift={step: relative for step, (_, relative) in distances.items()},
    )


def _distance(expected: State, got: Mapping[str, Floats]) -> tuple[float, float]:
    """The largest absolute and the largest relative difference over the parts of a state."""
    absolute = relative = 0.0
    for name, tensor in expected._asdict().items():
        difference = float(np.abs(tensor.numpy() - got[name]).max())
        absolute = max(absolute, difference)
        relative = max(relative, difference / max(float(tensor.abs().max()), 1e-12))
    return absolute, relative


def _metric(graph: Graph, scores: Floats) -> float | None:
    return split_metrics(graph, scores, parts=[ALL]).get(ALL)
