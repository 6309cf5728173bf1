"""Sides of a benchmark that die or predict numbers."""

import os
from pathlib import Path

import numpy as np

from adar_runtime.benchmarking.race import Turn
from adar_runtime.benchmarking.sides import Case, Side, _same, answer, measure

NUMBERS = np.arange(10, dtype=np.float32)[:, None]


def steady(side: Side, budget: int) -> Turn:
    """Predicts numbers; the side named half is wrong for every other output."""
    wrong = np.where(np.arange(10) % 2, 1, 0)[:, None] if side.backend == "half" else 0
    found = answer([0.1] * budget, NUMBERS + 1e-4 + wrong, regression=True)
    return lambda _: (0.5, found)


def dying(_: Side, budget: int) -> Turn:
    """Dies after its warm-up and one turn."""
    turns = []

    def turn(path: Path) -> tuple[float, object]:
        turns.append(path)
        return (0.5, answer([0.1] * budget, NUMBERS, regression=True)) if len(turns) < 3 else os._exit(3)

    return turn


def test_a_side_that_dies_does_not_end_the_benchmark() -> None:
    sides = [
        Side(build, Path(), name, "euler", 1, "fp32")
        for name, build in (("dying", dying), ("whole", steady), ("half", steady))
    ]
    cases = [Case(name, Path(name), 10, edges) for name, edges in (("small", 1), ("large", 2))]
    found = {(one.case.name, one.side.backend): one for one in measure(cases, sides, 2, 3)}
    for case in ("small", "large"):
        assert "died" in (found[case, "dying"].problem or "")
        assert found[case, "dying"].runs == []
        assert found[case, "whole"].runs == found[case, "half"].runs == [0.5] * 3
    assert (found["small", "whole"].same, found["small", "half"].same) == (1.0, 0.5)
    assert found["small", "dying"].to_dict()["problem"] == found["small", "dying"].problem


def test_numbers_of_a_million_rows_are_as_close_as_those_of_few() -> None:
    numbers = np.random.default_rng(0).normal(2000, 5, (1_000_000, 2)).astype(np.float32)
    assert _same(numbers + 0.02, numbers) == 1
    assert _same(numbers + 0.1, numbers) == 0  # more than a hundredth of the spread
