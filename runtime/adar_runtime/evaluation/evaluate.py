"""Evaluates a model at every step of every budget and at its own exit, beside training-free baselines."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adar_runtime import summaries
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.errors import GraphError, LabelsError, UsageError, short
from adar_runtime.evaluation.curves import AtExit, Curve, Moment, measure_together, run_moments
from adar_runtime.evaluation.metrics import check_same_classes, metric_name, split_metrics
from adar_runtime.evaluation.scoring import choose_outputs, choose_unknown
from adar_runtime.evaluation.uncertainty import Estimate
from adar_runtime.evaluation.zero_shot_baselines import TRAINING_FREE
from adar_runtime.graph import ALL, GRAPH, NODE, FeatureEncoding, Graph
from adar_runtime.graph.feature_encoding import check_same_encoding
from adar_runtime.graph.labels import align_labels, split_trained_on
from adar_runtime.loop.registry import is_count
from adar_runtime.loop.stopping import StopRule

Runner = Callable[[Graph, int], Iterable[Moment]]
"""Runs a graph for a budget and yields every step."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one graph, or of several graphs together."""

    graph: str
    part: str  # the labels that are scored: "test", or "all" where there is no test mask
    metric: str
    curves: list[Curve]  # one per budget
    exits: list[AtExit]  # per budget, what the model's own rule answers
    free: dict[str, float]  # the metric of each training-free baseline, where classes are described
    scored: str = ""  # what is scored, for people: "test nodes of the training split"
    graphs: Sequence[Graph] = field(default=(), repr=False)  # with the masks of `part`
    recognised: bool = False  # the test part is that of the training split
    warnings: list[str] = field(default_factory=list)

    def budgets(self) -> list[dict[str, Any]]:
        """A row for each budget."""
        return [
            {
                "budget": curve.budget,
                "exit_step": at.step,
                **({"exit_steps": [min(at.steps), max(at.steps)]} if len(at.steps) > 1 else {}),
                "at_exit": at.metrics[self.part],
                "at_end": curve.metric(self.part)[-1],
                "best": max(curve.metric(self.part)),
                "alignment_at_exit": at.alignment,
                **(_details(at.estimates[self.part]) if at.estimates else {}),
            }
            for curve, at in zip(self.curves, self.exits, strict=True)
        ]

    def steps(self) -> list[dict[str, Any]]:
        """A row for each step of each budget."""
        return [
            {"graph": self.graph, "budget": c.budget, "step": s, "t": t, "alignment": a, self.metric: m}
            for c in self.curves
            for s, (t, a, m) in enumerate(zip(c.times, c.alignment, c.metric(self.part), strict=True))
        ]

    def better_for_free(self) -> dict[str, float]:
        """The training-free baselines that score no worse than the model at its largest budget's exit."""
        return {name: value for name, value in self.free.items() if value >= self.reached}

    @property
    def reached(self) -> float:
        """The metric at the exit of the largest budget."""
        return float(max(self.budgets(), key=lambda row: row["budget"])["at_exit"])

    def __repr__(self) -> str:
        return summaries.line("Evaluation", summaries.evaluation_facts(self))

    def _repr_html_(self) -> str:
        return summaries.table("Evaluation", summaries.evaluation_facts(self))

    @property
    def counted(self) -> str:
        """What is scored, with its number: "120 test nodes of the training split"."""
        count = self.curves[0].estimates[0][self.part].count if self.curves[0].estimates else 0
        return f"all {count:,} labels" if self.part == ALL else f"{count:,} {self.scored}"

    def to_dict(self) -> dict[str, Any]:
        named = {"graph": self.graph, "metric": self.metric, "part": self.part, "counted": self.counted}
        return named | {
            "training_split": self.recognised,
            "warnings": self.warnings,
            "budgets": self.budgets(),
            "free": self.free,
            "beats_free": not self.better_for_free(),
        }


class _PreparedOnce:
    """Runs a bundle. A graph that comes again with another budget is not prepared again.

    The start and the label check of a pretrained model take as long as a hundred steps.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._last: tuple[Graph, PreparedGraph] | None = None

    def __call__(self, graph: Graph, budget: int) -> Iterator[Moment]:
        if self._last is None or self._last[0] is not graph:
            self._last = None  # its memory is free for the next graph
            self._bundle.check(graph)
            self._last = graph, self._bundle.prepare(graph)
        yield from run_moments(self._bundle, self._last[1], budget)


@dataclass(frozen=True)
class Subject:
    """The model to evaluate: how to run it, its own stop rule, and the graphs that it accepts."""

    run: Runner
    make_rule: Callable[[], StopRule]
    features: int
    level: str
    regression: bool
    targets: int | None  # None where the graphs describe them
    class_names: tuple[str, ...] | None = None
    any_budget: bool = True  # False for a model of fixed depth
    training: Mapping[str, Any] = field(default_factory=dict)  # the manifest's `training`, or a run's
    feature_encoding: FeatureEncoding | None = None
    in_context: bool = False  # the model uses the labels of train_mask, and takes any features

    @classmethod
    def of(cls, bundle: Bundle) -> "Subject":
        """A loaded bundle."""
        manifest = bundle.manifest
        return cls(
            run=_PreparedOnce(bundle),
            make_rule=bundle.stop_rule,
            features=manifest.features,
            level=manifest.level,
            regression=manifest.regression,
            targets=manifest.targets,
            class_names=manifest.class_names,
            training=manifest.training,
            feature_encoding=manifest.feature_encoding,
            in_context=manifest.in_context,
        )

    def split_for(self, graph: Graph, split: int | None = None) -> int:
        """The split to score: the given one, or the one that the model was trained on."""
        return split_trained_on(self.training, graph) if split is None else split

    def check_width(self, name: str, graph: Graph) -> None:
        """Refuse a graph with another number of features."""
        if not self.in_context and graph.width != self.features:
            raise GraphError(f"{name} has {graph.width} features and the model takes {self.features}")

    def check(self, name: str, graph: Graph) -> Graph:
        """The graph with labels numbered as the model's classes; an error for a graph that does not fit."""
        if self.in_context:
            return graph
        try:
            check_same_encoding(self.feature_encoding, graph.feature_encoding)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from error
        try:
            return align_labels(self, graph)
        except LabelsError as error:
            raise LabelsError(f"{name}: {error}") from error


def grouped(graphs: Mapping[str, list[Graph]], level: str, title: str) -> dict[str, list[Graph]]:
    """The graphs that are scored together, by name. Graphs with one label each make one group, `title`."""
    if level == GRAPH:
        return {title: [graph for group in graphs.values() for graph in group]}
    return dict(graphs)


def evaluate(
    name: str,
    graphs: Sequence[Graph],
    subject: Subject,
    budgets: Sequence[int],
    split: int = 0,
    on_budget: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Run graphs for each budget and score them together. Labels are used only for scoring.

    A training graph without a test mask is scored on the test part of its training split.
    """
    if not is_count(split, 0):
        raise UsageError(f"split is {short(split)}: choose a whole number from 0 on")
    if subject.targets is None:
        check_same_classes(graphs)
    for graph in graphs:  # before their hashes are computed
        subject.check_width(name, graph)
    if subject.in_context:
        chosen, split = choose_unknown(subject.training, graphs, split), 0
    else:
        chosen = choose_outputs(subject.training, graphs, split)
    graphs, part = chosen.graphs, chosen.part
    if all(graph.labelled(part, split) is None for graph in graphs):
        known = ": the model is given those in train_mask" if subject.in_context else ""
        raise GraphError(f"{name}: there are no labels to score against{known}")
    described, graphs = graphs[0], [subject.check(name, graph) for graph in graphs]
    curves = []
    for budget in budgets if subject.any_budget else [1]:
        runs = [subject.run(graph, budget) for graph in graphs]
        curves.append(measure_together(runs, graphs, budget, split, [part], intervals=True))
        if part not in curves[-1].metrics[0]:
            alike = "equal" if subject.regression else "of one class"
            raise GraphError(f"{name}: the {part} labels are all {alike}, so there is no score")
        on_budget(budget)
    return Evaluation(
        graph=name,
        part=part,
        metric=metric_name(
            subject.targets or max(graph.targets for graph in graphs), regression=subject.regression
        ),
        curves=curves,
        exits=[curve.at_exit(subject.make_rule()) for curve in curves],
        free=_free(described, split, part),
        scored=chosen.title,
        graphs=graphs,
        recognised=chosen.recognised,
        warnings=chosen.warnings,
    )


def _details(found: Estimate) -> dict[str, Any]:
    """The interval of a metric and, for classes, the metrics in which every class counts the same."""
    return found.to_dict() | (found.classes.to_dict() if found.classes else {})


def _free(graph: Graph, split: int, part: str) -> dict[str, float]:
    """The metric of each training-free baseline, for nodes with described classes."""
    if graph.target_features is None or graph.level != NODE or graph.regression:
        return {}
    scores = {name: score(graph) for name, score in TRAINING_FREE.items()}
    return {name: split_metrics(graph, values, split, [part])[part] for name, values in scores.items()}


def table_writer(path: Path) -> Callable[[Sequence[Evaluation]], bytes]:
    """The function that turns evaluations into a file with this suffix."""
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
