"""Compare a backend with ONNX Runtime on one thread of the CPU."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from adar_runtime.bundle.bundle import Bundle
from adar_runtime.graph import Graph
from adar_runtime.loop.result import Result
from adar_runtime.loop.stopping import Final
from adar_runtime.selftest.findings import Findings

STEPS = (1, 16, 17, 300)  # one step, a block of the GPU's loop, one more, and a whole run


class Limits(NamedTuple):
    """What a precision may differ."""

    error: float  # of scores and alignment, relative to the largest of them
    predictions: float  # share of outputs with the same prediction


LIMITS = {
    "fp32": Limits(1e-3, 0.999),
    "int8": Limits(1e-3, 0.999),
    "fp16": Limits(2e-2, 0.99),
    "bf16": Limits(1e-1, 0.95),
}


class Reference:
    """Results of ONNX Runtime on one thread of the CPU. Each is computed once for all backends."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._results: dict[tuple[str, int, bool], Result] = {}

    def run(self, graph_name: str, graph: Graph, steps: int, *, to_the_end: bool) -> Result:
        """Run all steps, or until the bundle's own rule stops."""
        key = graph_name, steps, to_the_end
        if key not in self._results:
            self._results[key] = self.bundle.run(graph, steps, Final() if to_the_end else None)
        return self._results[key]


def compare_backend(
    name: str,
    bundle: Bundle,
    reference: Reference,
    graphs: Mapping[str, Graph],
    findings: Findings,
) -> None:
    """Check a backend on every graph: numbers after each of STEPS, and the step at which the rule stops."""
    limits = LIMITS[bundle.manifest.precision]
    same_precision = bundle.manifest.precision == reference.bundle.manifest.precision
    for graph_name, graph in graphs.items():
        for steps in STEPS:
            what = f"{name}, {graph_name} graph, {steps} steps"
            with findings.failing(what):
                theirs = reference.run(graph_name, graph, steps, to_the_end=True)
                _compare(what, bundle.run(graph, steps, Final()), theirs, limits, findings)
        what = f"{name}, {graph_name} graph, stop rule"
        with findings.failing(what):
            theirs = reference.run(graph_name, graph, STEPS[-1], to_the_end=False)
            _compare_stops(what, bundle.run(graph, STEPS[-1]), theirs, findings, exact=same_precision)


def _compare(what: str, ours: Result, theirs: Result, limits: Limits, findings: Findings) -> None:
    figures = {}
    for name in ("scores", "alignment"):
        here, there = (np.asarray(getattr(one, name), np.float64) for one in (ours, theirs))
        largest = float(np.abs(here - there).max())
        figures[f"{name}_error"] = largest
        figures[f"{name}_relative_error"] = largest / max(float(np.abs(there).max()), 1e-30)
    same = ours.predictions == theirs.predictions
    figures["same_predictions"] = float(np.mean(same))
    worst = max(figures["scores_relative_error"], figures["alignment_relative_error"])
    passed = worst <= limits.error and figures["same_predictions"] >= limits.predictions
    detail = (
        f"scores {figures['scores_error']:.1e} ({figures['scores_relative_error']:.1e} relative), alignment "
        f"{figures['alignment_error']:.1e} ({figures['alignment_relative_error']:.1e}), "
        f"{figures['same_predictions']:.2%} same predictions"
    )
    findings.check(what, passed, detail, allowed=limits.error, **figures)


def _compare_stops(what: str, ours: Result, theirs: Result, findings: Findings, *, exact: bool) -> None:
    """Same reason and same best step; in another precision than the reference, a nearby step."""
    apart = abs(ours.best_time - theirs.best_time)
    passed = ours.stop_reason is theirs.stop_reason and apart <= (0.0 if exact else 0.1)
    detail = f"step {ours.best_step} of {ours.steps}, {ours.stop_reason.value}"
    if not passed:
        detail += f"; the reference: step {theirs.best_step} of {theirs.steps}, {theirs.stop_reason.value}"
    findings.check(what, passed, detail, best_step=ours.best_step, reference_best_step=theirs.best_step)
