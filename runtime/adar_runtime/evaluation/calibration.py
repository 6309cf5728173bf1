"""Choose the exit on validation labels, without fitting noise.

The exit is the peak of the alignment if it is within one standard error of the calibrated time, else the end
(t = 1) if that is, else the rule with the least regret. The calibrated time is the best of many times, so its
gain is measured by cross-validation: the time is chosen on four fifths of the outputs and scored on the rest.
Graphs with one label each are scored where each one stops, as in a run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from adar_runtime.evaluation.curves import Curve, Steps
from adar_runtime.evaluation.output_sample import FOLDS
from adar_runtime.loop.stopping import RULES, Final, make_rule

PEAK, END, TIME = "peak", "final", "time"
Groups = Sequence[Sequence[Curve]]
"""The curves of each budget: one for each graph."""


class Metric(NamedTuple):
    """The metric of a curve, over all outputs or some of them."""

    by_step: Any  # [steps]
    at: Callable[[Steps], float]  # at a step, or at the own step of each graph


Table = list[list[Metric]]
"""The metric of each curve of each group."""


@dataclass(frozen=True)
class Exit:
    """A calibrated exit, and what each stop rule loses on validation data."""

    rule: dict[str, Any]  # the chosen rule, in the manifest's form
    time: float  # the calibrated time; 1 if no earlier time is better by more than one standard error
    best_time: float  # the best time on validation data, which may be noise
    regret: dict[str, float]  # of each rule, the mean over budgets of (best step's metric - the rule's)
    error: dict[str, float]  # of each rule, the standard error of its difference from the best time
    gain: dict[str, float]  # of each rule, the cross-validated gain of a calibrated time over it
    reason: str  # why this rule

    def to_dict(self) -> dict[str, Any]:
        """The fields of metrics.json."""
        known = {
            name: {rule: value if math.isfinite(value) else None for rule, value in values.items()}
            for name, values in (("exit_error", self.error), ("exit_gain", self.gain))
        }
        return {
            "exit": self.rule,
            "exit_reason": self.reason,
            "exit_time": self.time,
            "exit_best_time": self.best_time,
            "exit_regret": self.regret,
            **known,
        }


def calibrate(groups: Groups, part: str = "val") -> Exit:
    """Choose the exit by the validation metric; no other labels are used.

    Args:
        groups: The curves of each budget, one for each graph. Graphs without labels in `part` do not count.
        part: The part of the split to calibrate on.

    Returns:
        The rule, and the numbers that it was chosen by.
    """
    groups = [[curve for curve in curves if part in curve.metrics[0]] for curves in groups]
    table = [
        [Metric(np.array(curve.metric(part)), partial(curve.metric_at, part)) for curve in curves]
        for curves in groups
    ]
    best_time = _best_time(groups, table)
    at_best = _steps_at(groups, best_time)
    gain_over = _cross_validation(groups, table)
    end: list[list[Steps]] = [[curve.answer_step(Final()) for curve in curves] for curves in groups]
    time = 1.0 if gain_over(end) <= _error(groups, at_best, end) else best_time
    settings = {name: kind.candidate(best_time if name == TIME else time) for name, kind in RULES.items()}
    rules = {name: {"rule": name} | one for name, one in settings.items() if one is not None}
    steps = {
        name: [[curve.answer_steps(make_rule(rule)) for curve in curves] for curves in groups]
        for name, rule in rules.items()
    }
    regret = {name: _regret(table, chosen) for name, chosen in steps.items()}
    error = {name: _error(groups, at_best, chosen) for name, chosen in steps.items()}
    gain = {name: gain_over(chosen) for name, chosen in steps.items() if name != TIME}
    simple = next((name for name in (PEAK, END) if gain[name] <= error[name]), None)
    if all(_last_step(curve) == 1 for curves in groups for curve in curves):
        simple = END
    name = simple or min(regret, key=lambda name: regret[name])
    reason = _reason(name, regret, error, gain, best_time, rise=_rise_to_the_end(groups))
    lost = {name: 0.0 if value < 0 else value for name, value in regret.items()}
    return Exit(rules[name], time, best_time, lost, error, gain, reason)


def _reason(
    name: str,
    regret: dict[str, float],
    error: dict[str, float],
    gain: dict[str, float],
    best_time: float,
    *,
    rise: str,
) -> str:
    """One sentence that says why a rule was chosen."""
    at_end = f"; {rise}, so its peak is the end (t = 1)" if rise else ""
    if name == PEAK:
        return f"peak: {_closeness(regret, error, PEAK)}{at_end}"
    costs = f"stopping at the peak costs {_points(gain[PEAK])} (standard error {_points(error[PEAK])})"
    if name == END:
        if gain[PEAK] <= error[PEAK]:
            return "final: the model has one step"
        return f"final: {_closeness(regret, error, END)}; {costs}"
    better = f"better than t = 1 by {_points(gain[END])} (standard error {_points(error[END])})"
    if name == TIME:
        return f"time: t = {best_time:.2g} is {better}; {costs}"
    return f"{name}: the least regret; {costs}"


def _closeness(regret: dict[str, float], error: dict[str, float], name: str) -> str:
    if regret[name] <= min(regret.values()):
        return "no rule is better"
    if not math.isfinite(error[name]):
        return "too few validation labels to tell the rules apart"
    return f"within one standard error ({_points(error[name])}) of the best rule"


def _points(value: float) -> str:
    return f"{100 * value:.1f} points" if abs(value) >= 5e-4 else f"{100 * value:.2g} points"


def _rise_to_the_end(groups: Groups) -> str:
    """How the alignment reaches its maximum at the end; empty if the maximum is earlier."""
    curves = [trace for group in groups for curve in group for trace in curve.traces()]
    if not all(curve[-1] >= max(curve) > curve[0] for curve in curves):
        return ""
    only_rises = all(now <= then for curve in curves for now, then in pairwise(curve))
    return "the alignment only rises" if only_rises else "the alignment is highest at the end"


def _best_time(groups: Groups, table: Table) -> float:
    """The time with the best worst budget (mean over graphs); the latest of equal times."""
    budgets = [_last_step(curves[0]) for curves in groups]
    times = np.unique([step / budget for budget in budgets for step in range(1, budget + 1)])
    worst = np.full(len(times), np.inf)
    for budget, metrics in zip(budgets, table, strict=True):
        steps = np.maximum(1, np.round(times * budget)).astype(int)
        worst = np.minimum(worst, np.mean([one.by_step for one in metrics], axis=0)[steps])
    return float(times[np.flatnonzero(worst == worst.max())[-1]]) if not np.isnan(worst).any() else 1.0


def _last_step(curve: Curve) -> int:
    """Index of the state at t = 1. A baseline has one step, whatever the budget."""
    return len(curve.alignment) - 1


def _steps_at(groups: Groups, time: float) -> list[list[Steps]]:
    return [[max(1, round(time * _last_step(curve))) for curve in curves] for curves in groups]


def _regret(table: Table, steps: list[list[Steps]]) -> float:
    """What a rule loses against the best step, as a mean over budgets and graphs.

    It is negative where graphs with one label each are better at their own steps than at any common one.
    """
    lost = [
        float(metrics.by_step.max()) - metrics.at(step)
        for curves, chosen in zip(table, steps, strict=True)
        for metrics, step in zip(curves, chosen, strict=True)
    ]
    return float(np.mean(lost))


def _error(groups: Groups, first: list[list[Steps]], second: list[list[Steps]]) -> float:
    """The standard error of the difference of two rules, as a mean over budgets and graphs.

    All budgets share the validation outputs, so the differences of an output are averaged over budgets first.
    """
    variance = 0.0
    graphs = len(groups[0])
    for graph in range(graphs):
        sample = groups[0][graph].sample
        if sample is None:
            continue
        differences = np.mean(
            [
                curves[graph].sample.contributions(a[graph])  # type: ignore[union-attr]
                - curves[graph].sample.contributions(b[graph])  # type: ignore[union-attr]
                for curves, a, b in zip(groups, first, second, strict=True)
            ],
            axis=0,
        )
        variance += sample.error(differences) ** 2 if differences.any() else 0.0
    return math.sqrt(variance) / graphs


def _cross_validation(groups: Groups, table: Table) -> Callable[[list[list[Steps]]], float]:
    """A function that gives the gain of a calibrated time over the steps of another rule.

    Without samples of outputs, it is the gain on the outputs that the time was chosen by.
    """
    if any(curve.sample is None for curves in groups for curve in curves):
        folds = [(table, table)]
    else:
        folds = [(_metrics(groups, fold, held_out=False), _metrics(groups, fold)) for fold in range(FOLDS)]
    chosen = [(_steps_at(groups, _best_time(groups, rest)), held_out) for rest, held_out in folds]

    def gain_over(steps: list[list[Steps]]) -> float:
        gains = [
            metrics.at(a) - metrics.at(b)
            for at_time, held_out in chosen
            for curves, firsts, seconds in zip(held_out, at_time, steps, strict=True)
            for metrics, a, b in zip(curves, firsts, seconds, strict=True)
        ]
        known = [gain for gain in gains if math.isfinite(gain)]  # a fold may be too small for the metric
        return float(np.mean(known)) if known else 0.0

    return gain_over


def _metrics(groups: Groups, fold: int, *, held_out: bool = True) -> Table:
    """The metric over one fold, or over all others."""
    return [[_of_fold(curve.sample, fold, held_out=held_out) for curve in curves] for curves in groups]


def _of_fold(sample: Any, fold: int, *, held_out: bool) -> Metric:
    rows = (sample.folds() == fold) == held_out
    return Metric(sample.metrics(rows), partial(sample.metric_at, rows=rows))
