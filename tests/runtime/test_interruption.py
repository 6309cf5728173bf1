"""A caller stops the preparation of a graph at one of its interruption points."""

from pathlib import Path

import numpy as np

from adar_runtime import Graph, load
from adar_runtime.errors import AdarError
from adar_runtime.in_context.discriminant import Analysis, Joined
from adar_runtime.interruption import interruptible


class StopError(AdarError):
    """The deadline of a caller."""


def points(work) -> int:
    """How often a computation may be stopped. It is stopped once at each place."""
    found = 0

    def count() -> None:
        nonlocal found
        found += 1

    with interruptible(count):
        work()

    def stop_at(wanted: int) -> bool:
        left = wanted

        def check() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise StopError

        try:
            with interruptible(check):
                work()
        except StopError:
            return True
        return False

    assert all(map(stop_at, range(1, found + 1)))
    return found


def test_the_preparation_for_a_trained_model_is_interrupted(board: Graph, bundle_folder: Path) -> None:
    """A server with a graph of a million nodes did not look at its limit of time until the first step."""
    bundle = load(bundle_folder, threads=1)
    assert points(lambda: bundle.loop(board, 3)) >= 8


def test_the_analysis_of_a_pretrained_start_has_points() -> None:
    """Several passes over all nodes followed each other without one: 6 s for 400,000 nodes."""
    rows = np.arange(12, dtype=np.float32).reshape(4, 3) % 5
    joined, analysis = Joined(rows, rows[:2]), Analysis(rows - rows.mean(axis=0))
    assert points(lambda: joined.analysed(analysis, np.full(4, -1))) >= 10
