"""Compare the sides of a benchmark: time per step, time per inference and peak memory of each."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adar_runtime.backends import Capture, Lookahead
from adar_runtime.backends.tensorrt.cuda import used_gpu_memory
from adar_runtime.benchmarking.race import Turn, Worker, peak_bytes, race
from adar_runtime.bundle.bundle import load
from adar_runtime.errors import BackendError
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.formats import read_graph
from adar_runtime.loop.stopping import Final

State = TypeVar("State")
PYTORCH = "pytorch"
CLOSE = 0.01  # allowed difference of regression outputs, as a fraction of their standard deviation
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Case:
    """A graph to measure on. It is in a file so that every process can read it."""

    name: str
    path: Path
    nodes: int
    edges: int


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a backend with its settings."""

    build: Callable[..., Turn]  # called in its own process, with this side and the budget
    folder: Path  # of a bundle or of a training run
    backend: str
    solver: str
    threads: int
    precision: str
    trusted: bool = False  # also load TensorRT engines that were not built on this machine
    device: int = 0  # number of the CUDA device

    @property
    def label(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.backend} {self.solver} {self.precision}, {threads}"


@dataclass
class Timing:
    """The measurements of one side on one graph."""

    side: Side
    case: Case
    runs: list[float] = field(default_factory=list)  # seconds per inference, from features to scores
    steps: list[float] = field(default_factory=list)  # seconds of every cell call of all inferences
    calls: int = 0  # cell calls per inference
    peak: int = 0  # peak memory of its process, in bytes
    speedup: list[float] | None = None  # speed-up over PyTorch, turn by turn
    same: float | None = None  # share of outputs with the same prediction as the first side
    capture: Capture | None = None  # whether steps ran as one CUDA graph; None without CUDA graphs
    gpu_bytes: int | None = None  # GPU memory in use after a run, by all processes; None without a GPU
    problem: str | None = None  # why there are no measurements

    def to_dict(self) -> dict[str, Any]:
        """The measurements as JSON values."""
        side, case = self.side, self.case
        where = {"graph": case.name, "nodes": case.nodes, "edges": case.edges}
        how = {"backend": side.backend, "solver": side.solver, "threads": side.threads}
        how |= {"precision": side.precision}
        if self.problem:
            return where | how | {"problem": self.problem}
        return (
            where
            | how
            | {
                "cell_calls": self.calls,
                "step_seconds": quantiles(self.steps),
                "run_seconds": quantiles(self.runs),
                "runs": self.runs,
                "peak_bytes": self.peak,
                "times_pytorch": None if self.speedup is None else quantiles(self.speedup),
                "same_predictions": self.same,
                "gpu_bytes": self.gpu_bytes,
                "captured": None if self.capture is None else self.capture.captured,
                **({"not_captured": self.capture.why} if self.capture and self.capture.why else {}),
            }
        )


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """The quantiles p50, p90 and p99 by name."""
    return {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}


def runtime_turn(side: Side, budget: int) -> Turn:
    """A turn of one inference in this runtime."""
    bundle = load(side.folder, side.backend, side.threads, trust_engines=side.trusted, device=side.device)

    def turn(graph: Path) -> tuple[float, Any]:
        loaded = opened(graph)
        started = time.perf_counter()
        loop = bundle.loop(loaded, budget, Final(), side.solver)
        _, steps = timed(loop)
        if isinstance(loop.recurrence, Lookahead):  # such a backend runs steps in blocks,
            steps = [sum(steps) / len(steps)] * len(steps)  # so only the mean time per step is known
        result = loop.result()
        seconds = time.perf_counter() - started
        found = answer(steps, result.scores, regression=bundle.manifest.regression)
        used = None if result.capture is None else used_gpu_memory(side.device)
        return seconds, found | {"capture": result.capture, "gpu_bytes": used}

    return turn


@lru_cache(1)
def opened(path: Path) -> Graph:
    """Read a graph file, once for all turns."""
    return read_graph(path)


def answer(steps: list[float], scores: Floats, *, regression: bool) -> dict[str, Any]:
    """The results of a turn beside its time."""
    predictions = scores if regression else scores.argmax(axis=1)
    return {"steps": steps, "predictions": predictions, "peak": peak_bytes()}


def timed(states: Iterator[State]) -> tuple[State, list[float]]:
    """The last state, and the seconds of every step. The first state is the input and takes no step."""
    last, found, before = next(states), [], time.perf_counter()
    for state in states:
        now = time.perf_counter()
        found.append(now - before)
        last, before = state, now
    return last, found


def measure(
    cases: Sequence[Case],
    sides: Sequence[Side],
    budget: int,
    repeats: int,
    on_turn: Callable[[Case, Side], None] = lambda *_: None,
) -> list[Timing]:
    """Measure all sides on every graph, the smallest first. Each side has one warm-up turn per graph."""
    workers = {side.label: Worker(side.build, side, budget) for side in sides}
    try:
        found: list[Timing] = []
        for case in sorted(cases, key=lambda case: case.edges):  # a process does not give memory back
            timings = {side.label: Timing(side, case) for side in sides}
            _race(timings, workers, case, repeats, on_turn)
            _compare([one for one in timings.values() if one.runs])
            found += timings.values()
        return found
    finally:
        for worker in workers.values():
            worker.end()


def _race(
    timings: Mapping[str, Timing],
    workers: Mapping[str, Worker],
    case: Case,
    repeats: int,
    on_turn: Callable[[Case, Side], None],
) -> None:
    predictions: dict[str, Any] = {}
    for label, timing in timings.items():
        try:
            _, answer = workers[label].turn(case.path)
            predictions[label], timing.calls = answer["predictions"], len(answer["steps"])
            timing.capture, timing.gpu_bytes = answer.get("capture"), answer.get("gpu_bytes")
        except BackendError as error:
            timing.problem = str(error)
        on_turn(case, timing.side)

    def note(label: str, answer: Mapping[str, Any]) -> None:
        timings[label].steps += answer["steps"]
        timings[label].peak = answer["peak"]
        on_turn(case, timings[label].side)

    def give_up(label: str, error: BackendError) -> None:
        timings[label].problem = str(error)

    working = {label: workers[label] for label in predictions}
    raced = race(working, repeats, case.path, on_turn=note, on_problem=give_up)
    for label, seconds in raced.items():
        timings[label].runs = seconds
        timings[label].same = _same(predictions[label], next(iter(predictions.values())))


def _same(one: NDArray[Any], first: NDArray[Any]) -> float:
    """Share of outputs with the same class or, for regression, within `CLOSE`."""
    if not np.issubdtype(first.dtype, np.floating):
        return float((one == first).mean())
    spread = first.std(axis=0, dtype=np.float64)  # float32 sums of a million rows round too much
    return float(np.isclose(one, first, rtol=1e-5, atol=CLOSE * spread).mean())


def _compare(timings: Sequence[Timing]) -> None:
    """Set the speed-up over PyTorch with the same number of threads, if PyTorch was measured."""
    for reference in (one for one in timings if one.side.backend == PYTORCH):
        for one in timings:
            if one.side.threads == reference.side.threads:
                one.speedup = np.divide(reference.runs, one.runs).tolist()
