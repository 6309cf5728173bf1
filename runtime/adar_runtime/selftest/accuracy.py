"""Compare a backend with ONNX Runtime on the CPU."""

import time
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from adar_runtime.bundle.bundle import Bundle
from adar_runtime.graph import Graph
from adar_runtime.loop.result import Result
from adar_runtime.loop.stopping import Final, StopReason, StopRule, answer
from adar_runtime.selftest.findings import Findings, OnStep

BLOCK = 16  # steps that are timed together: the GPU's loop runs as many at once
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


class Measured(NamedTuple):
    """A run of a whole budget."""

    result: Result
    speeds: list[float]  # of the nodes, at every step
    times: list[float]  # microseconds per step, in each block of BLOCK steps


class Reference:
    """Results of ONNX Runtime on all cores of the CPU. Each is computed once for all backends."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self._runs: dict[tuple[str, int], Measured] = {}

    def run(self, graph_name: str, graph: Graph, steps: int, on_step: OnStep) -> Measured:
        """Run all steps."""
        key = graph_name, steps
        if key not in self._runs:
            self._runs[key] = _measure(self.bundle, graph, steps, on_step)
        return self._runs[key]


def compare_backend(
    name: str,
    bundle: Bundle,
    reference: Reference,
    graphs: Mapping[str, Graph],
    findings: Findings,
) -> None:
    """Check a backend on every graph: numbers after each of STEPS, the stop of the rule, and times."""
    limits = LIMITS[bundle.manifest.precision]
    for graph_name, graph in graphs.items():
        for steps in STEPS:
            what = f"{name}, {graph_name} graph, {steps} steps"
            with findings.failing(what):
                theirs = reference.run(graph_name, graph, steps, findings.stepper(f"{what}, reference"))
                ours = _measure(bundle, graph, steps, findings.stepper(what))
                _compare(what, ours.result, theirs.result, limits, findings)
                if steps == STEPS[-1]:
                    _report_times(f"{name}, {graph_name} graph, microseconds a step", ours, theirs, findings)
        what = f"{name}, {graph_name} graph, stop rule"
        with findings.failing(what):
            stopped = _run(bundle, graph, STEPS[-1], bundle.stop_rule(), findings.stepper(what)).result
            theirs = reference.run(graph_name, graph, STEPS[-1], findings.stepper(what))
            best, why = answer(reference.bundle.stop_rule(), theirs.result.alignment, theirs.speeds)
            _compare_stops(what, stopped, theirs.result, best, why, findings)


def _measure(bundle: Bundle, graph: Graph, steps: int, on_step: OnStep) -> Measured:
    return _run(bundle, graph, steps, Final(), on_step)


def _run(bundle: Bundle, graph: Graph, steps: int, stop: StopRule, on_step: OnStep) -> Measured:
    """One cell call per step, whatever solver the bundle prefers."""
    loop = bundle.loop(graph, steps, stop, "euler")
    speeds, marks = [], []
    for step in loop:
        speeds.append(step.motion.speed)
        if step.index % BLOCK == 0 or loop.ended:
            marks.append((step.index, time.perf_counter()))
            on_step(step.index)
    times = [
        1e6 * (end - start) / (last - first)
        for (first, start), (last, end) in pairwise(marks)
        if last > first
    ]
    return Measured(loop.result(), speeds, times)


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


def _compare_stops(
    what: str, ours: Result, theirs: Result, best: int, why: StopReason, findings: Findings
) -> None:
    """Same reason, and the same step or one that rounding can exchange for it.

    If two curves differ by at most e at every step, then the peak of one is at most 2e below the peak of the
    other. A flat peak may therefore move by some steps, and a sharp one may not.
    """
    curve = np.asarray(theirs.alignment, np.float64)
    rounding = float(np.abs(np.asarray(ours.alignment) - curve[: len(ours.alignment)]).max())
    lost = float(abs(curve[best] - curve[ours.best_step]))
    passed = ours.stop_reason is why and (ours.best_step == best or lost <= 2 * rounding)
    detail = f"step {ours.best_step} of {ours.steps}, {ours.stop_reason.value}"
    if (ours.best_step, ours.stop_reason) != (best, why):
        detail += (
            f"; the reference: step {best}, {why.value}; alignment {lost:.1e} apart, rounding {rounding:.1e}"
        )
    findings.check(what, passed, detail, best_step=ours.best_step, reference_best_step=best)


def _report_times(what: str, ours: Measured, theirs: Measured, findings: Findings) -> None:
    """Time per step beside that of the CPU. A comparison, not a test of speed."""
    (p50, p90), (cpu_p50, cpu_p90) = (np.quantile(one.times, (0.5, 0.9)).tolist() for one in (ours, theirs))
    detail = f"p50 {p50:.0f}, p90 {p90:.0f}; CPU, all cores: {cpu_p50:.0f}, {cpu_p90:.0f}"
    findings.check(what, True, detail, p50=p50, p90=p90, cpu_p50=cpu_p50, cpu_p90=cpu_p90)
