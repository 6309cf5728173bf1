"""What a model is worth on a graph: every step of every budget, its own exit, and what costs nothing."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adar_runtime.cosine import TRAINING_FREE
from adar_runtime.curves import Curve, Moment, measure
from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph import ALL, Graph
from adar_runtime.metrics import metric_name, split_metrics
from adar_runtime.stopping import StopRule, answer_step

Runner = Callable[[Graph, int], Iterable[Moment]]
"""Runs a graph for a budget and tells of every step."""


@dataclass(frozen=True)
class Evaluation:
    """One graph's figures."""

    graph: str
    part: str  # which labels were scored: "test", or "all" where there is no test mask
    metric: str
    curves: list[Curve]  # one a budget
    exits: list[int]  # the step that the model's own rule answers from, one a budget
    free: dict[str, float]  # the metric of what needs no model, where classes are described

    def budgets(self) -> list[dict[str, Any]]:
        """A row for each budget."""
        return [
            {
                "budget": curve.budget,
                "exit_step": step,
                "at_exit": curve.metric(self.part)[step],
                "at_end": curve.metric(self.part)[-1],
                "best": max(curve.metric(self.part)),
                "alignment_at_exit": curve.alignment[step],
            }
            for curve, step in zip(self.curves, self.exits, strict=True)
        ]

    def steps(self) -> list[dict[str, Any]]:
        """A row for each step of each budget."""
        return [
            {"graph": self.graph, "budget": c.budget, "step": s, "t": t, "alignment": a, self.metric: m}
            for c in self.curves
            for s, (t, a, m) in enumerate(zip(c.times, c.alignment, c.metric(self.part), strict=True))
        ]

    def better_for_free(self) -> dict[str, float]:
        """What needs no model and scores at least as well as the model's best budget does at its exit."""
        reached = max(row["at_exit"] for row in self.budgets())
        return {name: value for name, value in self.free.items() if value >= reached}

    def to_dict(self) -> dict[str, Any]:
        named = {"graph": self.graph, "metric": self.metric, "part": self.part}
        return named | {
            "budgets": self.budgets(),
            "free": self.free,
            "beats_free": not self.better_for_free(),
        }


def evaluate(
    name: str,
    graph: Graph,
    run: Runner,
    make_rule: Callable[[], StopRule],
    budgets: Sequence[int],
    split: int = 0,
    on_budget: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Run a graph for each of the budgets; labels are used for the score and nothing else."""
    part = ALL if graph.test_mask is None else "test"
    if graph.labelled(part, split) is None:
        raise GraphError(f"{name}: there are no labels to score against")
    curves = []
    for budget in budgets:
        curves.append(measure(run(graph, budget), graph, budget, split, [part]))
        on_budget(budget)
    described = graph.target_features is not None and graph.level == "node"
    free = {key: score(graph) for key, score in TRAINING_FREE.items()} if described else {}
    return Evaluation(
        graph=name,
        part=part,
        metric=metric_name(graph.targets, regression=graph.regression),
        curves=curves,
        exits=[answer_step(make_rule(), curve.alignment) for curve in curves],
        free={key: split_metrics(graph, scores, split, [part])[part] for key, scores in free.items()},
    )


def table_writer(path: Path) -> Callable[[Sequence[Evaluation]], bytes]:
    """How every step of every budget becomes a file of this suffix."""
    writers = {".csv": _csv, ".json": _json}
    if path.suffix not in writers:
        raise UsageError(
            f"{path}: an evaluation is written as .csv or .json, not {path.suffix or 'nothing'!r}"
        )
    return writers[path.suffix]


def _csv(evaluations: Sequence[Evaluation]) -> bytes:
    rows = [row for evaluation in evaluations for row in evaluation.steps()]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, dict.fromkeys(key for row in rows for key in row), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().encode()


def _json(evaluations: Sequence[Evaluation]) -> bytes:
    return json.dumps([e.to_dict() | {"steps": e.steps()} for e in evaluations]).encode()
