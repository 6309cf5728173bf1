"""Evaluate PyTorch models: every step of every budget, model selection, and the calibration of the exit."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from adar_runtime.evaluation.calibration import calibrate
from adar_runtime.evaluation.curves import Curve, Moment, measure, measure_together
from adar_runtime.evaluation.metrics import metric_name, pooled_metrics, split_metrics
from adar_runtime.evaluation.uncertainty import mean_estimate
from adar_runtime.graph import GRAPH, PARTS, Graph
from adar_runtime.loop.schedule import times
from adar_runtime.loop.stopping import StopRule, make_rule
from adar_train.model import Model
from adar_train.tensors import GraphTensors


def exit_metrics(
    model: Model,
    graphs: Sequence[Graph],
    tensors: Sequence[GraphTensors],
    budgets: Sequence[int],
    split: int,
) -> dict[str, Any]:
    """Calibrate the exit rule on every step of the budgets; return the rule and the metrics at the exit.

    "train", "val" and "test" are the metrics of the largest budget; "intervals" has their 95 % intervals and
    the numbers of labels.
    """
    found = {
        budget: curves(model, graphs, tensors, budget, split, intervals=budget == max(budgets), sample="val")
        for budget in budgets
    }
    chosen = calibrate(list(found.values()))
    rule = make_rule(chosen.rule)
    by_budget = {budget: _at_exit(group, rule) for budget, group in found.items()}
    targets = model.config.targets or graphs[0].targets
    return {
        "metric": metric_name(targets, regression=graphs[0].regression),
        **by_budget[max(by_budget)],
        "intervals": _intervals(found[max(found)], rule),
        **chosen.to_dict(),
        "budgets": {str(budget): scores for budget, scores in by_budget.items()},
    }


def worst_metric(
    model: Model,
    graphs: Sequence[Graph],
    tensors: Sequence[GraphTensors],
    budgets: Sequence[int],
    split: int,
    part: str,
) -> float:
    """The lowest metric over the budgets at t = 1; for each budget, the mean over graphs."""
    metrics = [final_metrics(model, graphs, tensors, budget, split, part) for budget in budgets]
    return min(float(np.mean(of_graphs)) for of_graphs in metrics)


def curves(
    model: Model,
    graphs: Sequence[Graph],
    tensors: Sequence[GraphTensors],
    budget: int,
    split: int = 0,
    *,
    intervals: bool = False,
    sample: str | None = None,
) -> list[Curve]:
    """One curve per graph; if each graph has one label, one curve for all graphs together."""
    runs = [moments(model, tensor, budget) for tensor in tensors]
    if graphs[0].level == GRAPH:
        return [measure_together(runs, graphs, budget, split, intervals=intervals, sample=sample)]
    return [
        measure(run, graph, budget, split, intervals=intervals, sample=sample)
        for run, graph in zip(runs, graphs, strict=True)
    ]


@torch.no_grad()
def moments(model: Model, tensors: GraphTensors, budget: int) -> Iterator[Moment]:
    """Time, alignment and scores at every step; for a model of fixed depth, at its input and its output."""
    model.eval()
    clock = times(budget, unit_step=model.config.unit_step)
    states = model.trajectory(tensors, clock)
    if not model.any_budget:
        first, *_, last = states
        clock, states = times(1), iter([first, last])
    for time, state in zip(clock, states, strict=True):
        yield Moment(float(time), float(model.alignment(state)), model.scores(state, tensors).cpu().numpy())


@torch.no_grad()
def final_metrics(
    model: Model, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], budget: int, split: int, part: str
) -> list[float]:
    """The metric at the last step: one per graph; if each graph has one label, one for all graphs."""
    model.eval()
    scores = []
    for tensor in tensors:
        *_, last = model.trajectory(tensor, times(budget, unit_step=model.config.unit_step))
        scores.append(model.scores(last, tensor).cpu().numpy())
    if graphs[0].level == GRAPH:
        return [pooled_metrics(graphs, scores, split, [part])[part]]
    return [split_metrics(g, s, split, [part])[part] for g, s in zip(graphs, scores, strict=True)]


def _at_exit(group: Sequence[Curve], rule: StopRule) -> dict[str, float]:
    """The metric of each part of the split at the exit, as the mean over graphs."""
    at = [curve.metrics[curve.answer_step(rule)] for curve in group]
    return {
        part: float(np.mean([m[part] for m in at if part in m]))
        for part in PARTS
        if any(part in m for m in at)
    }


def _intervals(group: Sequence[Curve], rule: StopRule) -> dict[str, Any]:
    """The 95 % interval and the number of labels of each metric in `_at_exit`."""
    at = [curve.estimates[curve.answer_step(rule)] for curve in group]
    known = {part: [found[part] for found in at if part in found] for part in PARTS}
    return {part: mean_estimate(found).to_dict() for part, found in known.items() if found}
