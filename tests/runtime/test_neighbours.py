import numpy as np
import pytest

from adar_runtime.graph.neighbours import Neighbours


@pytest.mark.parametrize("edges", [0, 1, 30, 400])
def test_neighbourhoods_are_sets_as_in_the_paper(edges: int) -> None:
    random = np.random.default_rng(edges)
    edge_index = random.integers(0, 12, (2, edges))
    neighbours = Neighbours.of(edge_index, 13)  # the last node has none
    expected = [sorted({int(s) for s, t in edge_index.T if t == node}) for node in range(13)]
    assert [part.tolist() for part in np.split(neighbours.sources, neighbours.starts[1:-1])] == expected
    assert neighbours.counts.tolist() == [len(sources) for sources in expected]
    assert np.allclose(neighbours.share[:, 0], [1 / (len(sources) + 1) for sources in expected])


def test_reversing_twice_gives_the_same_edges() -> None:
    neighbours = Neighbours.of(np.random.default_rng(0).integers(0, 9, (2, 30)), 9)
    there = neighbours.reversed()
    assert set(zip(there.targets, there.sources, strict=True)) == set(
        zip(neighbours.sources, neighbours.targets, strict=True)
    )
    assert np.array_equal(there.reversed().sources, neighbours.sources)
