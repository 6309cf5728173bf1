"""Parity: a bundle against PyTorch, names, then shapes, then values, over many steps of several graphs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from adar_export.onnx_files import parsed, ports_of
from adar_runtime.bundle import signature
from adar_runtime.bundle.bundle import Bundle, read_bundle
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import DivergedError, ExportError, LabelsError
from adar_runtime.evaluation.metrics import split_metrics
from adar_runtime.graph import ALL, Floats, Graph
from adar_runtime.graph.labels import align_labels
from adar_runtime.loop.schedule import times
from adar_runtime.loop.stopping import Final, answer_step
from adar_train.cell import State
from adar_train.model import AdaR
from adar_train.tensors import GraphTensors

STEPS = (1, 10, 100, 300)
DRIFT = (1, 2, 5, 10, 20, 50, 100, 150, 200, 250)  # steps at which the largest budget is looked at too
TOLERANCES = {"fp32": 1e-3, "int8": 5e-2, "fp16": 2e-2, "bf16": 1e-1}
"""Largest difference in a state or in the scores, relative to its largest entry. Rounding adds up over the
steps: what is measured in fp32 after 300 of them is around 1e-5, so this leaves room for other machines and
no more."""


DIFFERING = {"fp32": 1e-3, "int8": 5e-2, "fp16": 2e-2, "bf16": 5e-2}
"""Largest share of predictions that may differ."""


@dataclass(frozen=True)
class Check:
    """One comparison: a graph, a number of steps, and how far the two lie apart at their end."""

    graph: str
    backend: str
    steps: int
    absolute: float  # largest difference of an entry of any of the four states, or of the scores
    relative: float  # the same, over the largest entry of that state
    predictions: int  # outputs whose predicted class differs
    stop: int  # the step that the bundle's exit rule answers from
    reference_stop: int  # and from PyTorch's alignments
    metric: float | None  # of all labels at the last step, where there are any
    reference_metric: float | None
    drift: dict[int, float] = field(default_factory=dict)  # of the states, relative, after so many steps
    outputs: int = 1  # that were predicted


@dataclass(frozen=True)
class Report:
    """All comparisons of one bundle."""

    tolerance: float
    checks: list[Check]
    precision: str = "fp32"

    @property
    def needed(self) -> float:
        """The tolerance that would have passed."""
        return _largest(check.relative for check in self.checks)

    def problems(self) -> list[str]:
        """What does not agree, all of it."""
        return [
            f"{found} on {check.graph} after {check.steps} steps ({check.backend})"
            for check in self.checks
            for found in self._wrong(check)
        ]

    def _wrong(self, check: Check) -> Iterator[str]:
        if not check.relative <= self.tolerance:  # a NaN is a problem too
            yield f"{check.relative:.1e}"
        if check.predictions > self._ties(check.outputs):
            yield f"{check.predictions} of {check.outputs} predictions differ"

    def _ties(self, outputs: int) -> int:
        """How many predictions may differ: so many may lie so near to a tie that rounding decides."""
        allowed = int(DIFFERING[self.precision] * outputs)
        return allowed if self.precision == "fp32" else max(1, allowed)

    def to_dict(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "reference": "PyTorch",
            "tolerance": self.tolerance,
            "needed": self.needed,
            "checks": [asdict(check) for check in self.checks],
        }


def compare(
    model: AdaR,
    bundle: Bundle,
    graphs: Mapping[str, Graph],
    steps: Sequence[int] = STEPS,
    on_check: Callable[[Check], None] = lambda _: None,
) -> Report:
    """Run both sides on every graph for every number of steps; whether they agree is the report's to say."""
    checks = []
    for name, graph in graphs.items():
        tensors = GraphTensors.of(graph)
        for budget in steps:
            looked_at = [step for step in DRIFT if step < budget] if budget == max(steps) else []
            try:
                checks.append(_check(model, bundle, name, graph, tensors, [*looked_at, budget]))
            except DivergedError as error:
                what = f"these weights make the recurrence blow up ({error}, on {name})"
                raise ExportError(f"{what}: train with a smaller --lr") from error
            on_check(checks[-1])
    precision = bundle.manifest.precision
    return Report(TOLERANCES[precision], checks, precision)


def check_ports(path: Path) -> None:
    """Raise an ExportError that lists every name and shape that is not as it should be."""
    manifest, contents = read_bundle(path, allow_unknown_model=True)
    real = {name: ports_of(parsed(name, content)) for name, content in contents.items()}
    found = signature.problems(manifest, real)
    if found:
        raise ExportError(f"{path}: {'; '.join(found)}: export the run again")


def refuse(*reports: Report) -> None:
    """Raise an ExportError that lists every value, of any backend, that is not as it should be."""
    found = [problem for report in reports for problem in report.problems()]
    if found:
        raise ExportError(f"the bundle and PyTorch {_verdict(reports)}: {'; '.join(found)}")


def _verdict(reports: Sequence[Report]) -> str:
    """In what they disagree."""
    needed, tolerance = _largest(report.needed for report in reports), reports[0].tolerance
    if needed <= tolerance:
        return f"predict different classes, though they agree within the tolerance of {tolerance:.0e}"
    passing = f"{needed:.1e} would pass" if np.isfinite(needed) else "none would pass: look for a NaN"
    return f"disagree by more than the tolerance of {tolerance:.0e} ({passing})"


class _Reference(NamedTuple):
    """PyTorch's side of a comparison: one run, looked at where it will be compared."""

    states: dict[int, State]
    alignment: list[float]
    scores: Floats


@torch.no_grad()
def _reference(model: AdaR, tensors: GraphTensors, budget: int, looked_at: Sequence[int]) -> _Reference:
    states, alignment = {}, []
    for step, state in enumerate(model.trajectory(tensors, times(budget, unit_step=model.config.unit_step))):
        alignment.append(float(model.alignment(state)))
        if step in looked_at:
            states[step] = state
    return _Reference(states, alignment, model.scores(state, tensors).numpy())


def _check(
    model: AdaR, bundle: Bundle, name: str, graph: Graph, tensors: GraphTensors, looked_at: Sequence[int]
) -> Check:
    """Compare after the last of the steps, which is the budget, and note the distance at the others."""
    budget = looked_at[-1]
    loop = bundle.loop(graph, budget, Final())  # first, since it refuses a graph that does not fit
    # One side after the other: each has threads of its own, which would wait for each other.
    reference = _reference(model, tensors, budget, looked_at)
    trace: list[float] = []
    distances: dict[int, tuple[float, float]] = {}
    for step in loop:
        trace.append(step.alignment)
        if step.index in looked_at:
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
    """The largest absolute and the largest relative difference over the parts of a state."""
    parts = [_difference(tensor.numpy(), got[name]) for name, tensor in expected._asdict().items()]
    return _largest(absolute for absolute, _ in parts), _largest(relative for _, relative in parts)


def _difference(expected: Floats, got: Floats) -> tuple[float, float]:
    """The largest difference of an entry, and the same over the largest entry."""
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, which the report tells of
        absolute = float(np.abs(expected - got).max())
    return absolute, absolute / max(float(np.abs(expected).max()), 1e-12)


def _largest(values: Iterable[float]) -> float:
    """NaN if one of them is: Python's own max would pass it over."""
    return float(np.max([0.0, *values]))


def differing(manifest: Manifest, a: Floats, b: Floats) -> int:
    """How many outputs are of another class in `a` than in `b`; numbers are of none."""
    return 0 if manifest.regression else int((a.argmax(axis=1) != b.argmax(axis=1)).sum())


def _metric(manifest: Manifest, graph: Graph, scores: Floats) -> float | None:
    """Of all labels; None where there are none, or they are of other classes than the model's."""
    try:
        return split_metrics(align_labels(manifest, graph), scores, parts=[ALL]).get(ALL)
    except LabelsError:
        return None
