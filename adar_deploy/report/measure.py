"""Measurements on a graph: every step of every budget, the predictions, and the latency."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from adar_deploy.model_folders import ModelFolders, open_subject

if TYPE_CHECKING:
    from adar_runtime import Bundle, Graph
    from adar_runtime.evaluation.evaluate import Subject
    from adar_runtime.graph import Floats

MOST_CLASSES = 40  # in a confusion matrix
REPEATS = 3  # runs of every solver at most; the solvers take turns
LONG = 10.0  # seconds after which no further turn starts
WARM_UP = 3  # steps before the measurement
OnProgress = Callable[[str, int], None]
"""Receives what was done, and the number of cell calls."""


class NamedGraphs(NamedTuple):
    """The graphs that are measured together: one, or several with one label each."""

    name: str
    graphs: "list[Graph]"


def estimated_calls(folders: ModelFolders, budgets: Sequence[int]) -> int:
    """The approximate number of cell calls; the exact number of a solver is known only afterwards."""
    solved = 1.4 * REPEATS if folders.bundle else 0
    return sum(budgets) + round(max(budgets) * (1 + solved))


def measure_on(
    folders: ModelFolders,
    measured: NamedGraphs,
    budgets: Sequence[int],
    notes: list[str],
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Run the model on the graphs: curves, predictions and latency."""
    from adar_runtime import load
    from adar_runtime.graph import ALL
    from adar_runtime.graph import GRAPH as WHOLE

    bundle = load(folders.bundle) if folders.bundle else None
    subject = open_subject(folders.model) if bundle is None else bundle.subject()
    largest = max(measured.graphs, key=lambda graph: graph.nodes)
    split = subject.split_for(largest)
    facts: dict[str, Any] = {"labelled": _label_counts(measured.graphs, split)}
    if len(measured.graphs) == 1 and largest.level == WHOLE:
        notes.append("One graph has one label, which is not enough to score: give many graphs.")
    elif all(graph.labelled(ALL) is None for graph in measured.graphs):
        notes.append("The graph has no labels: the report shows the alignment and no metric.")
        facts["curves"] = _unscored(subject, largest, budgets, on_progress)
    else:
        facts |= _scored(subject, measured, budgets, split, on_progress)
        notes.extend(facts["evaluation"]["warnings"])
    if bundle is not None:
        facts["latency"] = latency(bundle, largest, max(budgets), on_progress)
    elif subject.any_budget:  # not for a baseline, which cannot be exported
        notes.append("Latency, agreement with PyTorch and solvers are measured on a bundle: export the run.")
    return facts


def _label_counts(graphs: "Sequence[Graph]", split: int) -> dict[str, int]:
    """The number of labels in each part of the split."""
    from adar_runtime.graph import PARTS

    masks = {part: [graph.labelled(part, split) for graph in graphs] for part in PARTS}
    known = {part: [mask for mask in found if mask is not None] for part, found in masks.items()}
    return {part: sum(int(mask.sum()) for mask in found) for part, found in known.items() if found}


def _unscored(
    subject: "Subject", graph: "Graph", budgets: Sequence[int], on_progress: OnProgress
) -> list[dict[str, Any]]:
    from adar_runtime.evaluation.curves import measure

    found = []
    for budget in budgets:
        curve = measure(subject.run(graph, budget), graph, budget, parts=[])
        at = curve.at_exit(subject.make_rule())
        row = {"budget": budget, "t": curve.times, "alignment": curve.alignment, "exit_step": at.step}
        found.append(row | {"at_exit": {"alignment": at.alignment}})
        on_progress(f"budget {budget}", budget)
    return found


def _scored(
    subject: "Subject",
    measured: NamedGraphs,
    budgets: Sequence[int],
    split: int,
    on_progress: OnProgress,
) -> dict[str, Any]:
    from adar_runtime.evaluation.evaluate import evaluate
    from adar_runtime.graph.labels import fill_names

    name, graphs = measured
    done = evaluate(
        name, graphs, subject, budgets, split, lambda budget: on_progress(f"budget {budget}", budget)
    )
    curves: list[dict[str, Any]] = [
        {
            "budget": curve.budget,
            "t": curve.times,
            "alignment": curve.alignment,
            "metric": curve.metric(done.part),
            "exit_step": at.step,
            "at_exit": {"alignment": at.alignment, "metric": at.metrics[done.part]},
        }
        for curve, at in zip(done.curves, done.exits, strict=True)
    ]
    largest = max(range(len(curves)), key=lambda i: curves[i]["budget"])
    scores = [
        _scores_at(subject, graph, curves[largest]["budget"], done.exits[largest].step_of(index))
        for index, graph in enumerate(done.graphs)
    ]
    on_progress("predictions", curves[largest]["budget"])
    names = fill_names(subject.class_names or graphs[0].class_names, scores[0].shape[1])
    return {
        "labelled": _label_counts(done.graphs, split),
        "curves": curves,
        "evaluation": done.to_dict() | {"split": split},
        "answers": _predictions(done.graphs, names, scores, done.part, split),
        "baseline": _baseline(done.graphs[0], done.part, split),
    }


def _scores_at(subject: "Subject", graph: "Graph", budget: int, step: int) -> "Floats":
    """The scores after this step of the budget."""
    return next(moment.scores for at, moment in enumerate(subject.run(graph, budget)) if at == step)


def _baseline(graph: "Graph", part: str, split: int) -> dict[str, Any] | None:
    """The metric of a simple model on the same outputs; None where it cannot be trained on the graph."""
    from adar_runtime.evaluation.linear_baseline import NAME, linear_baseline

    started = time.perf_counter()
    found = linear_baseline(graph, part, split)
    if found is None:
        return None
    seconds = time.perf_counter() - started
    return {"name": NAME, "value": found.value, "seconds": seconds, **found.to_dict()}


def _predictions(
    graphs: "Sequence[Graph]", names: list[str], found: "list[Floats]", part: str, split: int
) -> dict[str, Any]:
    """Confusion matrix and, for two classes, ROC curve; for regression, pairs of label and prediction."""
    import numpy as np

    from adar_runtime.evaluation.class_report import class_report, reliability
    from adar_runtime.evaluation.metrics import confusion, roc_points

    pairs = [
        (graph.labels[mask], scores[mask])
        for graph, scores in zip(graphs, found, strict=True)
        if (mask := graph.labelled(part, split)) is not None and graph.labels is not None
    ]
    labels, scores = (np.concatenate(one) for one in zip(*pairs, strict=True))
    if graphs[0].regression:
        return {"numbers": [[float(a), float(b)] for a, b in zip(labels[:, 0], scores[:, 0], strict=True)]}
    classes = scores.shape[1]
    known = labels.astype(np.int64)
    facts: dict[str, Any] = {
        "classes": names,
        "by_class": class_report(scores, known),
        "reliability": reliability(scores, known),
    }
    if classes <= MOST_CLASSES:
        facts["confusion"] = confusion(scores.argmax(axis=1), known, classes).tolist()
    if classes == 2:
        misses, hits = roc_points(scores[:, 1] - scores[:, 0], labels == 1)
        every = max(1, len(hits) // 400)
        facts["roc"] = [
            [float(a), float(b)]
            for a, b in zip([*misses[:-1:every], 1.0], [*hits[:-1:every], 1.0], strict=True)
        ]
    return facts


def latency(
    bundle: "Bundle", graph: "Graph", budget: int, on_progress: OnProgress = lambda _, __: None
) -> dict[str, Any]:
    """Time whole runs of every solver that the export measured. The solvers take turns after a warm-up."""
    from adar_runtime.errors import UsageError
    from adar_runtime.loop.solvers import DEFAULT_SOLVER, SOLVERS

    rows: list[dict[str, Any]] = []
    solvers = {}
    for name in SOLVERS:
        try:
            solvers[name] = bundle.solver(name)
        except UsageError as error:
            rows.append({"solver": name, "refused": str(error)})
    if bundle.manifest.proof:
        solvers[DEFAULT_SOLVER] = bundle.solver(DEFAULT_SOLVER, budget)
    results: dict[str, list[Any]] = {name: [] for name in solvers}
    bundle.run(graph, min(budget, WARM_UP))
    started = time.perf_counter()
    while len(results["euler"]) < REPEATS and time.perf_counter() - started < LONG:
        for name, solver in solvers.items():
            result = bundle.run(graph, budget, solver=solver)
            on_progress(f"{name}, {result.seconds:.2f} s", result.cell_calls)
            results[name].append(result)
    reference = results["euler"][0].predictions
    for name, runs in results.items():
        seconds = [result.seconds for result in runs]
        last = runs[-1]
        rows.append(
            {
                "solver": name,
                "proof": last.proof,
                "calls": last.cell_calls,
                "seconds": statistics.median(seconds),
                "spread": [min(seconds), max(seconds)],
                "phases": {
                    phase: statistics.median(result.timings[phase] for result in runs)
                    for phase in last.timings
                },
                "same": None if last.regression else float((last.predictions == reference).mean()),
                "best_time": last.best_time,
            }
        )
    return {"budget": budget, "backend": bundle.backend.name, "repeats": len(results["euler"]), "rows": rows}
