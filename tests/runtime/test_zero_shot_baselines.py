from dataclasses import replace

import numpy as np
import pytest

from adar_runtime import Graph, read_graph
from adar_runtime.errors import GraphError
from adar_runtime.evaluation.metrics import metric
from adar_runtime.evaluation.zero_shot_baselines import TRAINING_FREE, cosine, smoothed_cosine
from tests.helpers import SHARED_DATA, random_graph
from tests.runtime.test_graph import sparse


def plain(x: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in c] for a in x])


def smoothed(graph: Graph, rounds: int) -> np.ndarray:
    x = graph.features.astype(float)
    sets = [
        {node} | {int(s) for s, t in graph.edge_index.T if t == node} for node in range(graph.nodes)
    ]  # fmt: skip
    for _ in range(rounds):
        x = np.stack([x[sorted(nodes)].mean(axis=0) for nodes in sets])
    return x


@pytest.mark.parametrize("edges", [0, 3, 40])
@pytest.mark.parametrize("features", [6, 70])  # fewer and more columns than are averaged at a time
def test_against_plain_numpy(edges: int, features: int) -> None:
    graph = random_graph(11, edges, features=features)
    x, c = smoothed(graph, 3), graph.target_features
    assert np.allclose(cosine(graph), plain(graph.features, c), atol=1e-5)
    assert np.allclose(smoothed_cosine(graph, 3), plain(x, c), atol=1e-5)
    centred = smoothed_cosine(graph, 3, centred=True)
    assert np.allclose(centred, plain(x - x.mean(axis=0), c - c.mean(axis=0)), atol=1e-5)


def test_no_rounds_is_the_cosine_itself() -> None:
    graph = random_graph(11, 40)
    assert np.array_equal(smoothed_cosine(graph, 0), cosine(graph))


@pytest.mark.parametrize("name", TRAINING_FREE)
def test_bag_of_words_and_empty_texts(name: str) -> None:
    graph = random_graph(11, 0)
    graph.features[4] = 0
    scores = TRAINING_FREE[name](graph)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert np.allclose(scores, TRAINING_FREE[name](replace(graph, features=sparse(graph.features))))


@pytest.mark.parametrize("name", TRAINING_FREE)
def test_without_descriptions_it_says_what_is_missing(name: str) -> None:
    with pytest.raises(GraphError, match="target_x"):
        TRAINING_FREE[name](replace(random_graph(5, 5), target_features=None))


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no real data in {SHARED_DATA}")
@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("cosine", 61.2), ("smoothed-cosine", 66.8), ("centred-smoothed-cosine", 68.0)],
)
def test_the_figures_of_cora(name: str, accuracy: float) -> None:
    graph = read_graph(SHARED_DATA / "cora-text.npz")
    assert round(100 * metric(TRAINING_FREE[name](graph), graph.labels), 1) == accuracy
