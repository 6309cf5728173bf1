"""Episodes: small tasks that are parts of a graph, reproducible by their seed."""

from dataclasses import replace

import numpy as np
import pytest

from adar_runtime import Graph
from adar_train.data.context_episodes import draw_episode
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


def chain_of_classes() -> EpisodeSource:
    """Nodes of one class are neighbours, and one class is large."""
    random, nodes = np.random.default_rng(0), 6000
    labels = np.sort(random.choice(8, nodes, p=[0.65, *[0.05] * 7]))
    links = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])
    features = random.standard_normal((nodes, 4)).astype(np.float32)
    graph = Graph(
        features, np.concatenate([links, links[::-1]], axis=1), labels, target_features=features[:8]
    )
    return EpisodeSource(graph, np.arange(nodes))


def largest_share(episode: Graph) -> float:
    """The nodes of the largest class, relative to equal classes."""
    assert episode.labels is not None
    return float(np.bincount(episode.labels).max() / episode.nodes * episode.targets)


def test_classes_of_patches_are_more_even_than_those_around_one_seed() -> None:
    """Without quotas, an episode would mostly have the largest class."""
    source = chain_of_classes()

    def largest(*, patches: bool) -> float:
        drawn = [source.draw(np.random.default_rng(seed), (300, 400), patches=patches) for seed in range(12)]
        return float(np.mean([largest_share(each) for each in drawn]))

    assert largest(patches=True) < 3 < largest(patches=False)


def test_some_episodes_of_the_pretraining_are_around_one_seed() -> None:
    """They have no quotas, so some have a larger class than all episodes of patches."""
    sources, counts = [(chain_of_classes(), True)], []
    for seed in range(60):
        episode = draw_episode(sources, np.random.default_rng(seed), labelled=False)
        if episode.width == 4:  # not a generated one
            assert episode.labels is not None
            counts.append(np.bincount(episode.labels).max() / episode.nodes)
    assert 0.05 < np.mean(np.array(counts) > 0.63) < 0.25  # of patches only: none of them


def test_a_set_of_classes_has_all_their_nodes_and_edges() -> None:
    graph = described(5, nodes=60)
    assert graph.labels is not None
    found = EpisodeSource(graph, np.arange(60)).of_classes(np.array([1, 3]))
    nodes = np.flatnonzero(np.isin(graph.labels, [1, 3]))
    np.testing.assert_array_equal(found.labels, graph.labels[nodes] // 2)
    np.testing.assert_array_equal(found.rows(0, found.nodes), graph.rows(0, 60)[nodes])
    assert found.edge_index.shape[1] == np.isin(graph.edge_index, nodes).all(axis=0).sum()
