"""The metric at every step of every budget."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.evaluation.metrics import pooled_metrics
from adar_runtime.evaluation.output_sample import OutputSample
from adar_runtime.evaluation.uncertainty import Estimate, pooled_estimates
from adar_runtime.graph import GRAPH, PARTS, Floats, Graph
from adar_runtime.loop.schedule import time_at
from adar_runtime.loop.solvers import REFERENCE_SOLVER
from adar_runtime.loop.stopping import AtTime, Final, StopRule, answer_step
from adar_runtime.loop.stopping_together import answer_steps

PAPER_BUDGETS = (8, 20, 50, 100, 150, 200, 250, 300)

Steps = int | list[int]
"""A step, or a step for each of several graphs."""


class Moment(NamedTuple):
    """One step of a run, by this runtime or by PyTorch."""

    time: float
    alignment: float
    scores: Floats  # [k, c]
    speed: float = math.nan  # of the nodes, where it is known


class AtExit(NamedTuple):
    """Where a rule answers from, and the metrics there."""

    steps: list[int]  # one, or one for each of several graphs
    alignment: float  # the mean over graphs
    metrics: dict[str, float]  # of each part of the split
    estimates: dict[str, Estimate]  # the same with intervals; empty if the curve has none

    @property
    def step(self) -> int:
        """The step; of several graphs, the median."""
        return median_low(self.steps)

    def step_of(self, graph: int) -> int:
        """The step of one of the graphs."""
        return self.steps[graph] if len(self.steps) > 1 else self.steps[0]


@dataclass(frozen=True)
class EachGraph:
    """The steps of several graphs with one label each. As in a run, each graph stops at its own step."""

    graphs: Sequence[Graph]
    split: int
    parts: Sequence[str]
    alignment: list[NDArray[np.float64]] = field(default_factory=list)  # [graphs] at each step
    speeds: list[NDArray[np.float64]] = field(default_factory=list)
    scores: list[Floats] = field(default_factory=list)  # [graphs, c]

    def add(self, now: Sequence[Moment]) -> None:
        """Keep one step of all graphs."""
        self.alignment.append(np.array([moment.alignment for moment in now]))
        self.speeds.append(np.array([moment.speed for moment in now]))
        self.scores.append(np.concatenate([moment.scores for moment in now]))

    def answer_steps(self, rule: StopRule) -> list[int]:
        """The step of each graph that a rule answers from."""
        return answer_steps(rule, np.array(self.alignment), np.array(self.speeds))

    def traces(self) -> list[list[float]]:
        """The alignment of each graph at every step."""
        found: list[list[float]] = np.transpose(self.alignment).tolist()
        return found

    def at(self, steps: list[int], *, intervals: bool) -> AtExit:
        """The metrics where each graph has its own step."""
        scores = [self.scores[step][[graph]] for graph, step in enumerate(steps)]
        alignment = float(np.mean([self.alignment[step][graph] for graph, step in enumerate(steps)]))
        given = self.graphs, scores, self.split, self.parts
        if not intervals:
            return AtExit(steps, alignment, pooled_metrics(*given), {})
        estimates = pooled_estimates(*given)
        return AtExit(steps, alignment, {part: one.value for part, one in estimates.items()}, estimates)


@dataclass(frozen=True)
class Curve:
    """Alignment and metrics at each step of one budget, from the untouched input (step 0) to t = 1.

    Of several graphs, the alignment is the mean, and the metrics at a step are those of all graphs there.
    """

    budget: int
    times: list[float] = field(default_factory=list)
    alignment: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)  # of each part of the split
    speeds: list[float] | None = None  # of the nodes, where they are known
    estimates: list[dict[str, Estimate]] = field(default_factory=list)  # with intervals, if asked for
    sample: OutputSample | None = None  # outputs of one part at every step, if asked for
    each: EachGraph | None = field(default=None, repr=False)  # of several graphs with one label each

    def step_at(self, time: float) -> int:
        """The step that `AtTime` answers from."""
        return self.answer_step(AtTime(time))

    def answer_step(self, rule: StopRule) -> int:
        """The step that a rule answers from."""
        return answer_step(rule, self.alignment, self.speeds)

    def answer_steps(self, rule: StopRule) -> Steps:
        """The step that a rule answers from, or the own step of each graph with one label, if they differ."""
        if self.each is None:
            return self.answer_step(rule)
        steps = self.each.answer_steps(rule)
        return steps[0] if len({*steps}) == 1 else steps

    def at_exit(self, rule: StopRule) -> AtExit:
        """What a rule answers; graphs with one label each stop at their own steps."""
        if self.each is not None:
            return self.each.at(self.each.answer_steps(rule), intervals=bool(self.estimates))
        step = self.answer_step(rule)
        estimates = self.estimates[step] if self.estimates else {}
        return AtExit([step], self.alignment[step], self.metrics[step], estimates)

    def metric(self, part: str) -> list[float]:
        return [metrics[part] for metrics in self.metrics]

    def metric_at(self, part: str, steps: Steps) -> float:
        """The metric at a step, or at the own step of each graph."""
        if isinstance(steps, int):
            return self.metrics[steps][part]
        assert self.each is not None
        return self.each.at(steps, intervals=bool(self.estimates)).metrics[part]

    def traces(self) -> list[list[float]]:
        """The alignment that a rule watches: one curve, or one for each of several graphs."""
        return [self.alignment] if self.each is None else self.each.traces()


def run_moments(bundle: Bundle, graph: Graph | PreparedGraph, budget: int) -> Iterator[Moment]:
    """Run a bundle to the end with Euler's method, and yield every step of the budget.

    Where the label check lets nothing move, all steps after the first one are copies of it.
    """
    loop = bundle.loop(graph, budget, Final(), REFERENCE_SOLVER)
    is_still = loop.check is not None and not loop.check.strength
    for step in loop:
        yield (now := Moment(step.time, step.alignment, step.scores(), step.motion.speed))
        if is_still and step.index:
            break
    if is_still:
        unit_step = bundle.manifest.unit_step
        yield from (now._replace(time=time_at(i, budget, unit_step=unit_step)) for i in range(2, budget + 1))


def measure(
    moments: Iterable[Moment],
    graph: Graph,
    budget: int,
    split: int = 0,
    parts: Sequence[str] = PARTS,
    *,
    intervals: bool = False,
    sample: str | None = None,
) -> Curve:
    """Score every step of one budget."""
    return measure_together([moments], [graph], budget, split, parts, intervals=intervals, sample=sample)


def measure_together(
    runs: Sequence[Iterable[Moment]],
    graphs: Sequence[Graph],
    budget: int,
    split: int = 0,
    parts: Sequence[str] = PARTS,
    *,
    intervals: bool = False,
    sample: str | None = None,
) -> Curve:
    """Score every step of one budget over all graphs at once.

    `intervals` adds 95 % intervals; `sample` names the part whose outputs are kept for calibration.
    Graphs with one label each run one after the other, so that only one run is open.
    """
    speeds: list[float] = []
    outputs = OutputSample.of(graphs, sample, split) if sample else None
    one_label_each = len(graphs) > 1 and graphs[0].level == GRAPH
    each = EachGraph(graphs, split, parts) if one_label_each else None
    curve = Curve(budget, speeds=speeds, sample=outputs, each=each)
    for now in _one_by_one(runs) if each else zip(*runs, strict=True):
        if each:
            each.add(now)
        scores = [moment.scores for moment in now]
        speeds.append(float(np.mean([moment.speed for moment in now])))
        curve.times.append(now[0].time)
        curve.alignment.append(float(np.mean([moment.alignment for moment in now])))
        if intervals:
            curve.estimates.append(pooled_estimates(graphs, scores, split, parts))
            curve.metrics.append({part: one.value for part, one in curve.estimates[-1].items()})
        else:
            curve.metrics.append(pooled_metrics(graphs, scores, split, parts))
        if outputs:
            outputs.add(scores)
    return curve


def _one_by_one(runs: Sequence[Iterable[Moment]]) -> Iterator[list[Moment]]:
    """The moments of all graphs at each step. Each run ends before the next one starts."""
    times: list[float] = []
    kept = []  # arrays: the moments of 100,000 graphs would take some gigabytes
    for run in runs:
        clock, alignment, scores, speeds = zip(*run, strict=True)
        times = times or [*clock]
        kept.append((np.array(alignment), np.stack(scores), np.array(speeds)))
    for step, time in enumerate(times):
        yield [Moment(time, float(a[step]), scores[step], float(v[step])) for a, scores, v in kept]
