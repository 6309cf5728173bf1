"""The metric at every step of every budget."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.evaluation.metrics import pooled_metrics
from adar_runtime.evaluation.output_sample import OutputSample
from adar_runtime.evaluation.uncertainty import Estimate, pooled_estimates
from adar_runtime.graph import PARTS, Floats, Graph
from adar_runtime.loop.schedule import time_at
from adar_runtime.loop.solvers import REFERENCE_SOLVER
from adar_runtime.loop.stopping import AtTime, Final, StopRule, answer_step

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
    estimates: list[dict[str, Estimate]] = field(default_factory=list)  # with intervals, if asked for
    sample: OutputSample | None = None  # outputs of one part at every step, if asked for

    def step_at(self, time: float) -> int:
        """The step that `AtTime` answers from."""
        return self.answer_step(AtTime(time))

    def answer_step(self, rule: StopRule) -> int:
        """The step that a rule answers from."""
        return answer_step(rule, self.alignment, self.speeds)

    def metric(self, part: str) -> list[float]:
        return [metrics[part] for metrics in self.metrics]


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
    """
    speeds: list[float] = []
    outputs = OutputSample.of(graphs, sample, split) if sample else None
    curve = Curve(budget, speeds=speeds, sample=outputs)
    for now in zip(*runs, strict=True):
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
