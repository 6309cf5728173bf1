"""The metric at every step of every budget, and the exit that fits these curves best."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from adar_runtime.bundle.bundle import Bundle
from adar_runtime.evaluation.metrics import pooled_metrics
from adar_runtime.graph import PARTS, Floats, Graph
from adar_runtime.loop.stopping import RULES, AtTime, Final, StopRule, answer_step, make_rule

PAPER_BUDGETS = (8, 20, 50, 100, 150, 200, 250, 300)


class Moment(NamedTuple):
    """One step of a run, by this runtime or by PyTorch."""

    time: float
    alignment: float
    scores: Floats  # [k, c]
    speed: float = math.nan  # of the nodes, where it is known


@dataclass(frozen=True)
class Curve:
    """Alignment and metrics at each step of one budget, from the untouched input (step 0) to t = 1."""

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
    """Run a bundle to the end and yield every step."""
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
    """A calibrated exit, and what each stop rule loses against the best step on validation data."""

    rule: dict[str, Any]  # the rule with the least regret, in the manifest's form
    time: float  # the best calibrated time
    regret: dict[str, float]  # of each rule, the mean over budgets of (best step's metric - the rule's)


def calibrate(groups: Sequence[Sequence[Curve]], part: str = "val") -> Exit:
    """Choose the exit by the validation metric; no other labels are used.

    A group holds the curves of one budget, one for each graph. Graphs without labels in `part` do not count.
    """
    groups = [[curve for curve in group if part in curve.metrics[0]] for group in groups]
    time = _best_time(groups, part)
    settings = {name: kind.candidate(time) for name, kind in RULES.items()}
    rules = {name: {"rule": name} | one for name, one in settings.items() if one is not None}
    regret = {name: _regret(groups, part, make_rule(rule)) for name, rule in rules.items()}
    return Exit(rules[min(regret, key=lambda name: regret[name])], time, regret)


def _best_time(groups: Sequence[Sequence[Curve]], part: str) -> float:
    """The time with the best worst budget (mean over graphs); the latest of equal times."""
    candidates = sorted(
        {step / c.budget for curves in groups for c in curves for step in range(1, c.budget + 1)}
    )

    def worst(time: float) -> float:
        return min(float(np.mean([c.metric(part)[c.step_at(time)] for c in curves])) for curves in groups)

    return max(candidates, key=lambda time: (worst(time), time))


def _regret(groups: Sequence[Sequence[Curve]], part: str, rule: StopRule) -> float:
    """What the rule loses against the best step, as a mean over budgets and graphs."""
    curves = [curve for group in groups for curve in group]
    lost = [max(c.metric(part)) - c.metric(part)[c.answer_step(rule)] for c in curves]
    return float(np.mean(lost))
