"""The loop, driven by hand."""

from pathlib import Path

import numpy as np
import pytest

import adar_runtime
from adar_runtime import Final, Graph, Peak, StopReason
from adar_runtime.errors import UsageError
from adar_runtime.stopping import AtTime


def test_a_loop_goes_on_where_it_was_left(bundle_folder: Path, board: Graph) -> None:
    bundle = adar_runtime.load(bundle_folder)
    whole = bundle.run(board, 8, Final())
    loop = bundle.loop(board, 8, Final())
    for step in loop:
        if step.index == 3:
            break
    assert loop.result().steps == 3
    assert loop.result().stop_reason is StopReason.CANCELLED
    assert [step.index for step in loop] == [4, 5, 6, 7, 8]
    assert list(loop) == []
    assert loop.result().alignment == whole.alignment
    assert np.array_equal(loop.result().scores, whole.scores)


def test_a_rule_can_be_used_for_a_second_run(bundle_folder: Path, board: Graph) -> None:
    bundle, rule = adar_runtime.load(bundle_folder), Peak(patience=2)
    first, second = (bundle.run(board, 20, rule) for _ in range(2))
    assert (first.best_step, first.alignment) == (second.best_step, second.alignment)
    assert rule == Peak(patience=2)


def test_a_cancelled_run_says_which_step_its_scores_are_from(bundle_folder: Path, board: Graph) -> None:
    loop = adar_runtime.load(bundle_folder).loop(board, 10, AtTime(0.9))
    with pytest.raises(UsageError, match="not been started"):
        loop.result()
    for step in loop:
        assert loop.result().best_step == step.index


def test_no_budget_is_too_large_to_begin_with(bundle_folder: Path, board: Graph) -> None:
    bundle = adar_runtime.load(bundle_folder)
    loop = bundle.loop(board, 10**12, Final())
    assert [next(loop).index, next(loop).time] == [0, 1e-12]
    with pytest.raises(UsageError, match="smaller"):
        bundle.loop(board, 10**25)
