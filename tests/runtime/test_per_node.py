import numpy as np
import pytest

from adar_runtime import Bundle, Final, Graph
from adar_runtime.errors import UsageError
from adar_runtime.loop.per_node import _OwnPeaks, freeze_at_own_peaks, margins

# Margins of four nodes over five steps: a peak, only up, only down, a second peak that comes too late.
CURVES = np.array(
    [
        [0, 3, 2, 1, 0],
        [0, 1, 2, 3, 4],
        [4, 3, 2, 1, 0],
        [0, 3, 1, 1, 9],
    ],
    np.float32,
)


def test_each_node_answers_from_its_own_peak() -> None:
    steps = CURVES.shape[1]
    own = _OwnPeaks(CURVES[:, 0], np.zeros((4, 1), np.float32), patience=2)
    for step in range(steps):
        own.watch(step, CURVES[:, step], np.full((4, 1), step, np.float32))
    assert own.answer()[:, 0].tolist() == [1, 4, 4, 1]


def test_a_margin_is_how_far_the_nearest_target_is_ahead() -> None:
    targets = np.array([[1, 0], [-1, 0]], np.float32)
    assert margins(np.array([[2, 0], [0, 5], [-3, 0]], np.float32), targets).tolist() == [1, 0, 1]


def test_a_bundle_can_be_run_so(bundle: Bundle, board: Graph) -> None:
    seen = []
    result = freeze_at_own_peaks(bundle.loop(board, 12, Final()), patience=3, on_step=seen.append)
    assert len(seen) == 13
    assert result.scores.shape == (board.nodes, 2)
    states = [step.scores() for step in bundle.loop(board, 12, Final())]
    assert all(
        any(np.array_equal(row, state[node]) for state in states) for node, row in enumerate(result.scores)
    )


@pytest.mark.parametrize("change", [{"level": "graph"}, {"regression": True}])
def test_it_is_for_classes_of_nodes(bundle: Bundle, board: Graph, change: dict) -> None:
    loop = bundle.loop(board, 4, Final())
    for name, value in change.items():
        loop.manifest = type(loop.manifest)(**(vars(loop.manifest) | {name: value}))
    with pytest.raises(UsageError, match="classes of nodes"):
        freeze_at_own_peaks(loop)
