"""Episodes: small tasks that are parts of a graph, reproducible by their seed."""

from dataclasses import replace

import numpy as np
import pytest

from adar_runtime import Graph
from adar_train.data.episodes import EpisodeSource
from adar_train.data.splits import with_split
from tests.helpers import random_graph


def described(classes: int, nodes: int = 3000) -> Graph:
    return with_split(random_graph(nodes, 4 * nodes, classes=classes, seed=classes))


@pytest.mark.parametrize("classes", [2, 4, 20])
def test_an_episode_is_a_part_of_the_graph(classes: int) -> None:
    graph = described(classes)
    source, random = EpisodeSource.of(graph, 0), np.random.default_rng(0)
    rows = {row.tobytes(): node for node, row in enumerate(graph.features)}
    edges = set(zip(*graph.edge_index.tolist(), strict=True))
    for _ in range(3):
        episode = source.draw(random)
        nodes = [rows[row.tobytes()] for row in episode.features]
        assert graph.train_mask[0][nodes].all()  # only training labels are used
        assert 2 <= len(episode.target_features) <= 12
        for node, label in zip(nodes, episode.labels, strict=True):
            assert np.array_equal(episode.target_features[label], graph.target_features[graph.labels[node]])
        assert all((nodes[a], nodes[b]) in edges for a, b in episode.edge_index.T)


def test_episodes_depend_on_the_seed_only() -> None:
    source = EpisodeSource.of(described(20), 0)
    first, again = (source.draw(np.random.default_rng(1)) for _ in range(2))
    assert np.array_equal(first.features, again.features)
    other = source.draw(np.random.default_rng(2))
    assert not np.array_equal(first.target_features, other.target_features)


def test_a_small_graph_with_one_large_class_gives_an_episode() -> None:
    graph = described(3, nodes=30)
    labels = np.where(np.arange(30) < 26, 0, graph.labels)
    episode = EpisodeSource.of(replace(graph, labels=labels), 0).draw(np.random.default_rng(0))
    assert episode.nodes > 1
