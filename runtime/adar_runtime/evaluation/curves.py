"""How good a model is at every step of every budget, and which exit that calls for."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from adar_runtime.bundle.bundle import Bundle
from adar_runtime.evaluation.metrics import pooled_metrics
from adar_runtime.graph import PARTS, Floats, Graph
from adar_runtime.loop.stopping import AtTime, Final, Peak, StopRule, answer_step

PAPER_BUDGETS = (8, 20, 50, 100, 150, 200, 250, 300)


class Moment(NamedTuple):
    """One step of a run, whoever ran it."""

    time: float
    alignment: float
    scores: Floats  # [k, c]
    speed: float = math.nan  # of the nodes, where whoever ran it knows


@dataclass(frozen=True)
class Curve:
    """What a budget gives at each of its steps, from the untouched input (step 0) to t = 1."""

    budget: int
    times: list[float] = field(default_factory=list)
    alignment: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)  # of each part of the split
    speeds: list[float] | None = None  # of the nodes, where they are known

    def step_at(self, time: float) -> int:
        """The step that `AtTime` answers from."""
        return self.answer_step(AtTime(time))

    def answer_step(self, rule: StopRule) -> int:
        """The step that a rule answers from."""
        return answer_step(rule, self.alignment, self.speeds)

    def metric(self, part: str) -> list[float]:
        return [metrics[part] for metrics in self.metrics]


def run_moments(bundle: Bundle, graph: Graph, budget: int) -> Iterator[Moment]:
    """Run a bundle to the end and tell of every step."""
    for step in bundle.loop(graph, budget, Final()):
        yield Moment(step.time, step.alignment, step.scores(), step.motion.speed)


def measure(
    moments: Iterable[Moment], graph: Graph, budget: int, split: int = 0, parts: Sequence[str] = PARTS
) -> Curve:
    """Score every step of one budget."""
    return measure_together([moments], [graph], budget, split, parts)


def measure_together(
    runs: Sequence[Iterable[Moment]],
    graphs: Sequence[Graph],
    budget: int,
    split: int = 0,
    parts: Sequence[str] = PARTS,
) -> Curve:
    """Score every step of one budget over all graphs at once."""
    speeds: list[float] = []
    curve = Curve(budget, speeds=speeds)
    for now in zip(*runs, strict=True):
        speeds.append(float(np.mean([moment.speed for moment in now])))
        curve.times.append(now[0].time)
        curve.alignment.append(float(np.mean([moment.alignment for moment in now])))
        curve.metrics.append(pooled_metrics(graphs, [moment.scores for moment in now], split, parts))
    return curve


@dataclass(frozen=True)
class Exit:
    """How to stop, and what each way of stopping costs against the best step on validation data."""

    rule: dict[str, Any]  # the one with the least regret, as a manifest has it
    time: float  # the best calibrated time
    regret: dict[str, float]  # of each rule, the mean over budgets of (best step's metric - the rule's)


def calibrate(groups: Sequence[Sequence[Curve]], part: str = "val") -> Exit:
    """Choose the exit by the validation metric: no other label is looked at.

    A group is one budget's curves, one a graph.
    """
    time = _best_time(groups, part)
    rules: dict[str, tuple[dict[str, Any], Callable[[], StopRule]]] = {
        "time": ({"t": time}, lambda: AtTime(time)),
        "peak": ({"patience": Peak.patience, "fallback": time}, lambda: Peak(fallback=time)),
        "final": ({}, Final),
    }
    regret = {name: _regret(groups, part, make) for name, (_, make) in rules.items()}
    least = min(regret, key=lambda name: regret[name])
    return Exit({"rule": least} | rules[least][0], time, regret)


def _best_time(groups: Sequence[Sequence[Curve]], part: str) -> float:
    """The time whose worst budget, each the mean over graphs, is best; the later one of equals."""
    candidates = sorted(
        {step / c.budget for curves in groups for c in curves for step in range(1, c.budget + 1)}
    )

    def worst(time: float) -> float:
        return min(float(np.mean([c.metric(part)[c.step_at(time)] for c in curves])) for curves in groups)

    return max(candidates, key=lambda time: (worst(time), time))


def _regret(groups: Sequence[Sequence[Curve]], part: str, make: Callable[[], StopRule]) -> float:
    """Mean over budgets and graphs of what the rule loses against the best step."""
    curves = [curve for group in groups for curve in group]
    lost = [max(c.metric(part)) - c.metric(part)[c.answer_step(make())] for c in curves]
    return float(np.mean(lost))
