"""What running a model on a graph shows: every step of every budget, the answers, and how long they take."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adar_deploy.report.sources import Sources
from adar_runtime.run_files import METRICS

if TYPE_CHECKING:
    from adar_runtime import Bundle, Graph
    from adar_runtime.evaluation.evaluate import Subject

MOST_CLASSES = 40  # that a confusion matrix is shown for
REPEATS = 3  # of every solver, which take turns: that many at most
LONG = 10.0  # seconds after which no new turn is begun
WARM_UP = 3  # steps that are not counted
Progress = Callable[[str, int], None]
"""What was done, and how many calls of the cell it took."""


def work(sources: Sources, budgets: Sequence[int]) -> int:
    """About how many calls of the cell it will take; how many a solver needs is what it finds out."""
    solved = 1.4 * REPEATS if sources.bundle else 0
    return sum(budgets) + round(max(budgets) * (1 + solved))


def measure_on(
    sources: Sources,
    name: str,
    graph: "Graph",
    budgets: Sequence[int],
    notes: list[str],
    on_progress: Progress,
) -> dict[str, Any]:
    """What running the model on the graph shows."""
    from adar_deploy.commands.evaluate import open_subject
    from adar_runtime import load
    from adar_runtime.graph import ALL
    from adar_runtime.graph import GRAPH as WHOLE

    subject = open_subject(sources.model)
    facts: dict[str, Any] = {}
    if graph.level == WHOLE:
        notes.append("Predictions about whole graphs are scored over many: adar-deploy evaluate does that.")
    elif graph.labelled(ALL) is None:
        notes.append("The graph has no labels, so there is nothing to score: the alignment is all there is.")
        facts["curves"] = _unscored(subject, graph, budgets, on_progress)
    else:
        facts |= _scored(subject, name, graph, budgets, _split(sources, graph), on_progress)
    if sources.bundle:
        bundle = load(sources.bundle)
        facts["latency"] = latency(bundle, graph, max(budgets), on_progress)
    elif subject.any_budget:  # which a baseline is not, nor is it exported
        notes.append("Latency, agreement with PyTorch and solvers are measured on bundles: export the run.")
    return facts


def _split(sources: Sources, graph: "Graph") -> int:
    """The split that the model was trained on, where the graph has it."""
    from adar_runtime.graph.labels import split_trained_on

    manifest = sources.manifest()
    return split_trained_on(sources.read(METRICS) or (manifest.training if manifest else {}), graph)


def _unscored(
    subject: "Subject", graph: "Graph", budgets: Sequence[int], on_progress: Progress
) -> list[dict[str, Any]]:
    from adar_runtime.evaluation.curves import measure

    found = []
    for budget in budgets:
        curve = measure(subject.run(graph, budget), graph, budget, parts=[])
        step = curve.answer_step(subject.make_rule())
        found.append({"budget": budget, "t": curve.times, "alignment": curve.alignment, "exit_step": step})
        on_progress(f"budget {budget}", budget)
    return found


def _scored(
    subject: "Subject",
    name: str,
    graph: "Graph",
    budgets: Sequence[int],
    split: int,
    on_progress: Progress,
) -> dict[str, Any]:
    from adar_runtime.evaluation.evaluate import evaluate
    from adar_runtime.graph.labels import fill_names

    done = evaluate(
        name, [graph], subject, budgets, split, lambda budget: on_progress(f"budget {budget}", budget)
    )
    curves: list[dict[str, Any]] = [
        {
            "budget": curve.budget,
            "t": curve.times,
            "alignment": curve.alignment,
            "metric": curve.metric(done.part),
            "exit_step": step,
        }
        for curve, step in zip(done.curves, done.exits, strict=True)
    ]
    largest = max(range(len(curves)), key=lambda i: curves[i]["budget"])
    scores = next(
        moment.scores
        for step, moment in enumerate(subject.run(graph, curves[largest]["budget"]))
        if step == done.exits[largest]
    )
    on_progress("answer", curves[largest]["budget"])
    names = fill_names(subject.class_names or graph.class_names, scores.shape[1])
    return {
        "curves": curves,
        "evaluation": done.to_dict() | {"split": split},
        "answers": _answers(subject.check(name, graph), names, scores, done.part, split),
    }


def _answers(graph: "Graph", names: list[str], scores: Any, part: str, split: int) -> dict[str, Any]:
    """What was answered for what: a confusion matrix and, of two classes, the ROC; numbers beside numbers."""
    import numpy as np

    from adar_runtime.evaluation.metrics import confusion, roc_points

    mask = graph.labelled(part, split)
    assert mask is not None
    assert graph.labels is not None
    labels, scores = graph.labels[mask], scores[mask]
    if graph.regression:
        return {"numbers": [[float(a), float(b)] for a, b in zip(labels[:, 0], scores[:, 0], strict=True)]}
    classes = scores.shape[1]
    facts: dict[str, Any] = {"classes": names}
    if classes <= MOST_CLASSES:
        facts["confusion"] = confusion(scores.argmax(axis=1), labels.astype(np.int64), classes).tolist()
    if classes == 2:
        misses, hits = roc_points(scores[:, 1] - scores[:, 0], labels == 1)
        every = max(1, len(hits) // 400)
        facts["roc"] = [
            [float(a), float(b)]
            for a, b in zip([*misses[:-1:every], 1.0], [*hits[:-1:every], 1.0], strict=True)
        ]
    return facts


def latency(
    bundle: "Bundle", graph: "Graph", budget: int, on_progress: Progress = lambda _, __: None
) -> dict[str, Any]:
    """Whole answers of every solver that the bundle was measured for, in turns, after a few steps unseen."""
    from adar_runtime.errors import UsageError
    from adar_runtime.loop.solvers import SOLVERS

    rows: list[dict[str, Any]] = []
    solvers = {}
    for name in SOLVERS:
        try:
            solvers[name] = bundle.solver(name)
        except UsageError as error:
            rows.append({"solver": name, "refused": str(error)})
    results: dict[str, list[Any]] = {name: [] for name in solvers}
    bundle.run(graph, min(budget, WARM_UP))
    started = time.perf_counter()
    while len(results["euler"]) < REPEATS and time.perf_counter() - started < LONG:
        for name, solver in solvers.items():
            result = bundle.run(graph, budget, solver=solver)
            on_progress(f"{name}, {result.seconds:.2f} s", result.cell_calls)
            results[name].append(result)
    reference = results["euler"][0].predictions
    for name, of_solver in results.items():
        seconds = [result.seconds for result in of_solver]
        last = of_solver[-1]
        rows.append(
            {
                "solver": name,
                "calls": last.cell_calls,
                "seconds": statistics.median(seconds),
                "spread": [min(seconds), max(seconds)],
                "phases": {
                    phase: statistics.median(result.timings[phase] for result in of_solver)
                    for phase in last.timings
                },
                "same": None if last.regression else float((last.predictions == reference).mean()),
                "best_time": last.best_time,
            }
        )
    return {"budget": budget, "backend": bundle.backend.name, "repeats": len(results["euler"]), "rows": rows}
