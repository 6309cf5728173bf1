"""How long a bundle takes: a step, a whole run, and the memory for it, side by side with others."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adar_runtime.backends import Lookahead
from adar_runtime.benchmarking.race import Turn, Worker, peak_bytes, race
from adar_runtime.bundle.bundle import load
from adar_runtime.errors import BackendError
from adar_runtime.graph import Floats, Graph
from adar_runtime.graph.formats import read_graph
from adar_runtime.loop.stopping import Final

State = TypeVar("State")
PYTORCH = "pytorch"
CLOSE = 0.01  # of the spread of the numbers that are foretold
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Case:
    """A graph to measure on, in a file, so that every process can read it."""

    name: str
    path: Path
    nodes: int
    edges: int


@dataclass(frozen=True)
class Side:
    """One way to come to the answer."""

    build: Callable[
        ..., Turn
    ]  # called in a process of its own, with this side, the graph's file and the budget
    folder: Path  # of a bundle, or of a training run
    backend: str
    solver: str
    threads: int
    precision: str
    trusted: bool = False  # TensorRT engines of this bundle, whoever built them

    @property
    def label(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.backend} {self.solver} {self.precision}, {threads}"


@dataclass
class Timing:
    """What was measured of one side on one graph."""

    side: Side
    case: Case
    runs: list[float] = field(default_factory=list)  # seconds from features to scores
    steps: list[float] = field(default_factory=list)  # seconds of each call of the cell, of all runs
    calls: int = 0  # of the cell, in a run
    peak: int = 0  # bytes that its process held at most
    speedup: list[float] | None = None  # PyTorch's time over this one's, turn by turn
    same: float | None = None  # share of outputs with the prediction of the first side
    problem: str | None = None  # why there is nothing else

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
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
            }
        )


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """By name."""
    return {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}


def runtime_turn(side: Side, budget: int) -> Turn:
    """A whole run in this runtime."""
    bundle = load(side.folder, side.backend, side.threads, trust_engines=side.trusted)

    def turn(graph: Path) -> tuple[float, Any]:
        loaded = opened(graph)
        started = time.perf_counter()
        loop = bundle.loop(loaded, budget, Final(), side.solver)
        _, steps = timed(loop)
        if isinstance(loop.recurrence, Lookahead):  # a block of steps is done when the first is asked for:
            steps = [sum(steps) / len(steps)] * len(steps)  # a single one has no time of its own
        scores = loop.result().scores
        return time.perf_counter() - started, answer(steps, scores, regression=bundle.manifest.regression)

    return turn


@lru_cache(1)
def opened(path: Path) -> Graph:
    """The graph of a file, read once however many turns it is for."""
    return read_graph(path)


def answer(steps: list[float], scores: Floats, *, regression: bool) -> dict[str, Any]:
    """What a side says of a run, beside its time."""
    predictions = scores if regression else scores.argmax(axis=1)
    return {"steps": steps, "predictions": predictions, "peak": peak_bytes()}


def timed(states: Iterator[State]) -> tuple[State, list[float]]:
    """The last state, and the seconds until each but the first, which is the input."""
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
    """On every graph, the smallest first: one turn of each side that is not counted, then in turns."""
    workers = {side.label: Worker(side.build, side, budget) for side in sides}
    try:
        found: list[Timing] = []
        for case in sorted(cases, key=lambda case: case.edges):  # a process keeps what it once held
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
        except BackendError as error:
            timing.problem = str(error)
        on_turn(case, timing.side)

    def note(label: str, answer: Mapping[str, Any]) -> None:
        timings[label].steps += answer["steps"]
        timings[label].peak = answer["peak"]
        on_turn(case, timings[label].side)

    def give_up(label: str, error: BackendError) -> None:
        timings[label].problem = str(error)

    able = {label: workers[label] for label in predictions}
    raced = race(able, repeats, case.path, on_turn=note, on_problem=give_up)
    for label, seconds in raced.items():
        timings[label].runs = seconds
        timings[label].same = _same(predictions[label], next(iter(predictions.values())))


def _same(one: NDArray[Any], first: NDArray[Any]) -> float:
    """The share of outputs with the same class, or with numbers that differ by no more than `CLOSE`."""
    if not np.issubdtype(first.dtype, np.floating):
        return float((one == first).mean())
    spread = first.std(axis=0, dtype=np.float64)  # float32 loses a million rows in the rounding
    return float(np.isclose(one, first, rtol=1e-5, atol=CLOSE * spread).mean())


def _compare(timings: Sequence[Timing]) -> None:
    """With PyTorch on as many threads, where it was measured."""
    for reference in (one for one in timings if one.side.backend == PYTORCH):
        for one in timings:
            if one.side.threads == reference.side.threads:
                one.speedup = np.divide(reference.runs, one.runs).tolist()
