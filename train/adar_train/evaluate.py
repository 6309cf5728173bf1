"""Evaluate PyTorch models: every step of every budget, model selection, and the calibration of the exit."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from adar_runtime.evaluation.calibration import calibrate
from adar_runtime.evaluation.curves import AtExit, Curve, Moment, measure, measure_together
from adar_runtime.evaluation.metrics import metric_name, pooled_metrics, split_metrics
from adar_runtime.evaluation.uncertainty import Estimate, mean_class_metrics, mean_estimate
from adar_runtime.graph import GRAPH, PARTS, Floats, Graph
from adar_runtime.loop.schedule import times
from adar_runtime.loop.stopping import make_rule
from adar_train.graph_batch import members_of
from adar_train.model import Model
from adar_train.tensors import GraphTensors

NOT_CALIBRATED = "final: the exit was not calibrated"


def exit_metrics(
    model: Model,
    graphs: Sequence[Graph],
    tensors: Sequence[GraphTensors],
    budgets: Sequence[int],
    split: int,
) -> dict[str, Any]:
    """Calibrate the exit rule on every step of the budgets; return the rule and the metrics at the exit.

    "train", "val" and "test" are the metrics of the largest budget; "intervals" has their 95 % intervals
    and the numbers of labels, "class_metrics" their balanced accuracy and macro-F1. With several
    graphs, they are means over the graphs with labels in that part, and "graphs" has the metrics of each.
    """
    found = {
        budget: curves(model, graphs, tensors, budget, split, intervals=budget == max(budgets), sample="val")
        for budget in budgets
    }
    return _metrics_at_exit(model, graphs, found, calibrate(list(found.values())).to_dict())


def final_exit_metrics(
    model: Model, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], budget: int, split: int
) -> dict[str, Any]:
    """The metrics at t = 1 of one budget, with the exit at t = 1: the same fields as `exit_metrics`."""
    found = {budget: curves(model, graphs, tensors, budget, split, intervals=True)}
    return _metrics_at_exit(model, graphs, found, {"exit": {"rule": "final"}, "exit_reason": NOT_CALIBRATED})


def _metrics_at_exit(
    model: Model, graphs: Sequence[Graph], found: dict[int, list[Curve]], chosen: dict[str, Any]
) -> dict[str, Any]:
    rule = make_rule(chosen["exit"])
    exits = {budget: [curve.at_exit(rule) for curve in group] for budget, group in found.items()}
    at_exit = {budget: [one.metrics for one in group] for budget, group in exits.items()}
    by_budget = {budget: _mean_metrics(of_graphs) for budget, of_graphs in at_exit.items()}
    targets = model.config.targets or graphs[0].targets
    of_graphs = at_exit[max(at_exit)]
    return {
        "metric": metric_name(targets, regression=graphs[0].regression),
        **by_budget[max(by_budget)],
        "intervals": _intervals(exits[max(exits)]),
        **_class_metrics(exits[max(exits)]),
        **chosen,
        "budgets": {str(budget): scores for budget, scores in by_budget.items()},
        **({"graphs": of_graphs} if len(of_graphs) > 1 else {}),
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
    if graphs[0].level == GRAPH:
        runs = _moments_by_graph(model, tensors, budget, len(graphs))
        return [measure_together(runs, graphs, budget, split, intervals=intervals, sample=sample)]
    return [
        measure(moments(model, tensor, budget), graph, budget, split, intervals=intervals, sample=sample)
        for tensor, graph in zip(tensors, graphs, strict=True)
    ]


def _moments_by_graph(
    model: Model, tensors: Sequence[GraphTensors], budget: int, count: int
) -> list[Iterator[Moment]]:
    """The moments of each graph, also of graphs that are in a batch. They are kept as arrays."""
    found: list[Iterator[Moment]] = [iter(()) for _ in range(count)]
    for tensor, members in zip(tensors, members_of(tensors), strict=True):
        clock, alignment, scores = zip(*_answers(model, tensor, budget), strict=True)
        alignments, answers = np.reshape(alignment, (len(clock), -1)), np.stack(scores)
        for row, member in enumerate(members):
            found[member] = _moments_of(clock, alignments[:, row], answers[:, row : row + 1])
    return found


def _moments_of(clock: Sequence[float], alignment: Floats, scores: Floats) -> Iterator[Moment]:
    for time, aligned, answer in zip(clock, alignment, scores, strict=True):
        yield Moment(time, float(aligned), answer)


def moments(model: Model, tensors: GraphTensors, budget: int) -> Iterator[Moment]:
    """Time, alignment and scores at every step; for a model of fixed depth, at its input and its output."""
    for time, alignment, scores in _answers(model, tensors, budget):
        yield Moment(time, float(alignment), scores)


@torch.no_grad()
def _answers(model: Model, tensors: GraphTensors, budget: int) -> Iterator[tuple[float, Floats, Floats]]:
    """Time, alignment and scores at every step; the alignment of a batch has one number for each graph."""
    model.eval()
    clock = times(budget, unit_step=model.config.unit_step)
    states = model.trajectory(tensors, clock)
    if not model.any_budget:
        first, *_, last = states
        clock, states = times(1), iter([first, last])
    for time, state in zip(clock, states, strict=True):
        alignment = tensors.averaged(model.alignment(state, tensors.shares()))
        scores = tensors.gathered(model.scores(state, tensors))
        yield float(time), alignment.cpu().numpy(), scores.cpu().numpy()


@torch.no_grad()
def final_metrics(
    model: Model, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], budget: int, split: int, part: str
) -> list[float]:
    """The metric at the last step: one per graph; if each graph has one label, one for all graphs.

    Graphs without labels in `part`, or where the metric is undefined, are left out.
    """
    model.eval()
    chosen: list[Graph] = []
    scores = []
    for tensor, members in zip(tensors, members_of(tensors), strict=True):
        if graphs[members[0]].labelled(part, split) is None:  # then no graph of a batch has such labels
            continue
        *_, last = model.trajectory(tensor, times(budget, unit_step=model.config.unit_step))
        answers = tensor.gathered(model.scores(last, tensor)).cpu().numpy()
        chosen += [graphs[index] for index in members]
        scores += np.split(answers, len(members)) if len(members) > 1 else [answers]
    if graphs[0].level == GRAPH:
        return [pooled_metrics(chosen, scores, split, [part])[part]]
    found = [split_metrics(g, s, split, [part]) for g, s in zip(chosen, scores, strict=True)]
    return [metrics[part] for metrics in found if part in metrics]


def _mean_metrics(of_graphs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The metric of each part of the split, as the mean over the graphs that have it."""
    return {
        part: float(np.mean([metrics[part] for metrics in of_graphs if part in metrics]))
        for part in PARTS
        if any(part in metrics for metrics in of_graphs)
    }


def _intervals(group: Sequence[AtExit]) -> dict[str, Any]:
    """The 95 % interval and the number of labels of each metric at the exit."""
    return {part: mean_estimate(found).to_dict() for part, found in _estimates(group).items()}


def _class_metrics(group: Sequence[AtExit]) -> dict[str, Any]:
    """Balanced accuracy and macro-F1 of each part, as means over graphs; nothing for regression."""
    means = {part: mean_class_metrics(found) for part, found in _estimates(group).items()}
    known = {part: mean.to_dict() for part, mean in means.items() if mean is not None}
    return {"class_metrics": known} if known else {}


def _estimates(group: Sequence[AtExit]) -> dict[str, list[Estimate]]:
    """The metrics at the exit of each part: one for each graph with labels in this part."""
    known = {part: [one.estimates[part] for one in group if part in one.estimates] for part in PARTS}
    return {part: found for part, found in known.items() if found}
