"""Parity: compare a bundle with PyTorch (names, shapes, values) over many steps on several graphs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from adar_export.onnx_files import parsed, ports_of
from adar_runtime.backends.prepared_graph import prepare
from adar_runtime.bundle import signature
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.fit import check_fits
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import DivergedError, ExportError, LabelsError
from adar_runtime.evaluation.metrics import split_metrics
from adar_runtime.graph import ALL, EDGE, Floats, Graph
from adar_runtime.graph.labels import align_labels
from adar_runtime.loop.schedule import times
from adar_runtime.loop.solvers import REFERENCE_SOLVER
from adar_runtime.loop.stopping import Final, answer_step
from adar_train.cell import ModelConfig, State
from adar_train.tensors import GraphTensors

STEPS = (1, 10, 100, 300)
DRIFT = (1, 2, 5, 10, 20, 50, 100, 150, 200, 250)  # steps of the largest budget that are compared too
TOLERANCES = {"fp32": 1e-3, "int8": 5e-2, "fp16": 2e-2, "bf16": 1e-1}
"""The largest difference allowed in a state or in the scores, relative to its largest entry. Rounding adds
up over the steps, in fp32 to about 1e-5 after 300 steps. The rest is a margin for other machines."""


DIFFERING = {"fp32": 1e-3, "int8": 5e-2, "fp16": 2e-2, "bf16": 5e-2}
"""The largest fraction of predictions that may differ."""


@dataclass(frozen=True)
class Check:
    """One comparison of a bundle with PyTorch: one graph and one number of steps.

    Attributes:
        graph: Name of the graph.
        backend: Name of the backend that ran the bundle.
        steps: Number of steps.
        absolute: Largest difference of an entry of the four states or of the scores after the last step.
        relative: The same, relative to the largest entry of that state or of the scores.
        predictions: Number of outputs whose predicted class differs.
        stop: Step from which the bundle's stop rule takes the result.
        reference_stop: The same, with PyTorch's alignments.
        metric: The bundle's metric over all labels after the last step. None without labels.
        reference_metric: The same, of PyTorch.
        drift: Relative difference of the states after each compared number of steps.
        outputs: Number of predictions.

    Example:
        >>> def show(found: Check | Trial) -> None:
        ...     if isinstance(found, Check):
        ...         print(found.graph, found.steps, found.relative)
        >>> export_bundle(run, Path("bundle"), on_progress=show)  # doctest: +SKIP
    """

    graph: str
    backend: str
    steps: int
    absolute: float
    relative: float
    predictions: int
    stop: int
    reference_stop: int
    metric: float | None
    reference_metric: float | None
    drift: dict[int, float] = field(default_factory=dict)
    outputs: int = 1


@dataclass(frozen=True)
class Report:
    """All comparisons of one bundle on one backend.

    Attributes:
        tolerance: Largest relative difference that is allowed.
        checks: The comparisons.
        precision: Precision of the bundle. It decides how many predictions may differ.

    Example:
        >>> Report(1e-3, []).problems()  # empty: bundle and PyTorch agree
        []
    """

    tolerance: float
    checks: list[Check]
    precision: str = "fp32"

    @property
    def needed(self) -> float:
        """The largest relative difference of all comparisons; NaN if one of them is NaN."""
        return _largest(check.relative for check in self.checks)

    def problems(self) -> list[str]:
        """Describe everything that does not agree.

        Returns:
            One line per disagreement, with graph, steps and backend; empty if bundle and PyTorch agree.
        """
        return [
            f"{found} on {check.graph} after {check.steps} steps ({check.backend})"
            for check in self.checks
            for found in self._wrong(check)
        ]

    def _wrong(self, check: Check) -> Iterator[str]:
        if not check.relative <= self.tolerance:  # true for NaN too
            yield f"{check.relative:.1e}"
        if check.predictions > self._ties(check.outputs):
            yield f"{check.predictions} of {check.outputs} predictions differ"

    def _ties(self, outputs: int) -> int:
        """Return how many predictions may differ: near a tie between two classes, rounding decides."""
        allowed = int(DIFFERING[self.precision] * outputs)
        return allowed if self.precision == "fp32" else max(1, allowed)

    def to_dict(self) -> dict[str, Any]:
        """Convert to the manifest's field `parity`.

        Returns:
            Plain JSON values.
        """
        return {
            "reference": "PyTorch",
            "tolerance": self.tolerance,
            "needed": self.needed,
            "checks": [asdict(check) for check in self.checks],
        }


class Reference(Protocol):
    """A model of PyTorch, as the comparison uses it, with graphs as the model reads them."""

    config: ModelConfig

    def trajectory(self, graph: Any, times: Iterable[float]) -> Iterator[State]: ...
    def scores(self, state: State, graph: Any) -> torch.Tensor: ...
    def alignment(self, state: State) -> torch.Tensor: ...


def compare(
    model: Reference,
    bundle: Bundle,
    graphs: Mapping[str, Graph],
    steps: Sequence[int] = STEPS,
    on_check: Callable[[Check], None] = lambda _: None,
    as_tensors: Callable[[Graph], Any] = GraphTensors.of,
) -> Report:
    """Run bundle and PyTorch on every graph for every number of steps. `refuse` decides about the report."""
    checks = []
    for name, given in graphs.items():
        graph = _of_level(given, bundle.manifest.level)
        tensors = as_tensors(graph)
        for budget in steps:
            earlier = [step for step in DRIFT if step < budget] if budget == max(steps) else []
            try:
                checks.append(_check(model, bundle, name, graph, tensors, [*earlier, budget]))
            except DivergedError as error:
                raise ExportError(
                    f"these weights make the recurrence diverge ({error}, on {name}): "
                    "train with a smaller --lr"
                ) from error
            on_check(checks[-1])
    precision = bundle.manifest.precision
    return Report(TOLERANCES[precision], checks, precision)


def _of_level(graph: Graph, level: str) -> Graph:
    """The graph as the bundle reads it, whose predictions are for its own level: without other labels."""
    if level in (graph.level, EDGE):  # pairs cannot be made up: `check_fits` refuses a graph without them
        return graph
    unlabelled = replace(graph, labels=None, train_mask=None, val_mask=None, test_mask=None)
    return replace(unlabelled, level=level, pairs=None)


def check_ports(path: Path) -> None:
    """Raise an ExportError that lists every wrong name and shape of the inputs and outputs."""
    manifest, contents = read_bundle(path, allow_unknown_model=True, whole=True)
    real = {name: ports_of(parsed(name, content)) for name, content in contents.items()}
    found = signature.problems(manifest, real)
    if found:
        raise ExportError(f"{path}: {'; '.join(found)}: export the run again")


def refuse(*reports: Report) -> None:
    """Raise an ExportError that lists every disagreement, of all backends."""
    found = [problem for report in reports for problem in report.problems()]
    if found:
        raise ExportError(f"the bundle and PyTorch {_verdict(reports)}: {'; '.join(found)}")


def _verdict(reports: Sequence[Report]) -> str:
    """Describe the kind of disagreement."""
    needed, tolerance = _largest(report.needed for report in reports), reports[0].tolerance
    if needed <= tolerance:
        return f"predict different classes, although their values agree (allowed difference {tolerance:.0e})"
    return f"disagree (allowed difference {tolerance:.0e}, largest difference {needed:.1e})"


class _Reference(NamedTuple):
    """The result of PyTorch: the states at the compared steps, all alignments and the last scores."""

    states: dict[int, State]
    alignment: list[float]
    scores: Floats


@torch.no_grad()
def _reference(model: Reference, tensors: Any, budget: int, compared: Sequence[int]) -> _Reference:
    states, alignment = {}, []
    for step, state in enumerate(model.trajectory(tensors, times(budget, unit_step=model.config.unit_step))):
        alignment.append(float(model.alignment(state)))
        if step in compared:
            states[step] = state
    return _Reference(states, alignment, model.scores(state, tensors).numpy())


def _check(
    model: Reference, bundle: Bundle, name: str, graph: Graph, tensors: Any, compared: Sequence[int]
) -> Check:
    """Compare after the last step, the budget, and measure the drift at the earlier steps."""
    budget = compared[-1]
    check_fits(graph, bundle.manifest)
    # Not `bundle.prepare`: a pretrained model would check its moves with hidden labels.
    prepared = prepare(graph, bundle.manifest, by_row=bundle.by_row)
    loop = bundle.loop(prepared, budget, Final(), REFERENCE_SOLVER)
    # One after the other: both have threads, which would compete for the cores.
    reference = _reference(model, tensors, budget, compared)
    trace: list[float] = []
    distances: dict[int, tuple[float, float]] = {}
    for step in loop:
        trace.append(step.alignment)
        if step.index in compared:
            distances[step.index] = _distance(reference.states[step.index], step.state())
    rule, got = bundle.stop_rule(), step.scores()
    of_scores = _difference(reference.scores, got)
    return Check(
        graph=name,
        backend=bundle.backend.name,
        steps=budget,
        absolute=_largest([distances[budget][0], of_scores[0]]),
        relative=_largest([distances[budget][1], of_scores[1]]),
        predictions=differing(bundle.manifest, reference.scores, got),
        stop=answer_step(rule, trace),
        reference_stop=answer_step(rule, reference.alignment),
        metric=_metric(bundle.manifest, graph, got),
        reference_metric=_metric(bundle.manifest, graph, reference.scores),
        drift={step: relative for step, (_, relative) in distances.items()},
        outputs=len(got),
    )


def _distance(expected: State, got: Mapping[str, Floats]) -> tuple[float, float]:
    """Return the largest absolute and the largest relative difference over the parts of a state."""
    parts = [_difference(tensor.numpy(), got[name]) for name, tensor in expected._asdict().items()]
    return _largest(absolute for absolute, _ in parts), _largest(relative for _, relative in parts)


def _difference(expected: Floats, got: Floats) -> tuple[float, float]:
    """Return the largest difference of an entry, absolute and relative to the largest entry."""
    with np.errstate(invalid="ignore"):  # infinity - infinity is NaN, which the report shows
        absolute = float(np.abs(expected - got).max())
    return absolute, absolute / max(float(np.abs(expected).max()), 1e-12)


def _largest(values: Iterable[float]) -> float:
    """Return the maximum; NaN if one value is NaN, which Python's max would ignore."""
    return float(np.max([0.0, *values]))


def differing(manifest: Manifest, a: Floats, b: Floats) -> int:
    """Count the outputs with another class in `a` than in `b`; 0 for regression."""
    return 0 if manifest.regression else int((a.argmax(axis=1) != b.argmax(axis=1)).sum())


def _metric(manifest: Manifest, graph: Graph, scores: Floats) -> float | None:
    """Return the metric of all labels; None without labels, or if their classes are not the model's."""
    try:
        return split_metrics(align_labels(manifest, graph), scores, parts=[ALL]).get(ALL)
    except LabelsError:
        return None
