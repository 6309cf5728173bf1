"""Every task of the problem setup is trained, exported and run; all share one head, o(Z Cᵀ)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import adar_runtime
from adar_export import export_bundle
from adar_runtime import Graph, read_graph, write_graph
from adar_runtime.errors import GraphError
from adar_train import TrainConfig, fit, load_run, save_run
from adar_train.data.splits import link_graph, split_graphs, with_split
from adar_train.prepare import model_config, prepare
from tests.helpers import random_graph

SHORT = TrainConfig(epochs=60, train_steps=3, select_budgets=(3,), exit_budgets=(3, 6))


def node_numbers() -> list[Graph]:
    """Regression: each node's first feature, averaged with its neighbours'."""
    graph = random_graph(120, 400, seed=1)
    total = np.zeros(120)
    np.add.at(total, graph.edge_index[1], graph.features[graph.edge_index[0], 0])
    values = (graph.features[:, :1] + total[:, None] / 4).astype(np.float32)
    return [with_split(replace(graph, labels=values, target_features=None))]


def links() -> list[Graph]:
    """Two communities with links inside each; noisy features indicate the community."""
    random = np.random.default_rng(0)
    side = np.arange(80) % 2
    pairs = random.integers(0, 80, (2, 1200))
    features = np.eye(2)[side] + 0.3 * random.normal(size=(80, 2))
    return [link_graph(Graph(features, pairs[:, side[pairs[0]] == side[pairs[1]]]))]


def whole_graphs(numbers: bool) -> list[Graph]:
    """Graphs with one label each: whether many or few nodes are of one kind."""
    random = np.random.default_rng(0)
    graphs = []
    for index in range(24):
        share = 0.2 if index % 2 else 0.8
        features = np.eye(2)[(random.random(20) < share).astype(int)]
        label = features[:, :1].mean(axis=0, keepdims=True) if numbers else np.array([index % 2])
        graphs.append(Graph(features, random.integers(0, 20, (2, 50)), labels=label, level="graph"))
    return split_graphs(graphs)


@pytest.mark.parametrize(
    ("graphs", "metric", "outputs"),
    [
        (node_numbers(), "r2", 120),
        (links(), "roc_auc", links()[0].outputs),
        (whole_graphs(numbers=False), "roc_auc", 1),
        (whole_graphs(numbers=True), "r2", 1),
    ],
    ids=["node regression", "link classification", "graph classification", "graph regression"],
)
def test_a_task_is_trained_exported_and_run(
    graphs: list[Graph], metric: str, outputs: int, tmp_path: Path
) -> None:
    fitted = fit(graphs, model_config(graphs, hidden=16, proxies=4, dropout=0.0), SHORT)
    assert fitted.metrics["metric"] == metric
    assert fitted.metrics["val"] > 0.6
    save_run(tmp_path / "run", fitted, graphs[0], ["graphs"], SHORT)
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle")
    write_graph(tmp_path / "graph.npz", graphs[0])
    bundle = adar_runtime.load(tmp_path / "bundle")
    assert bundle.manifest.exit == fitted.metrics["exit"]
    result = bundle.run(read_graph(tmp_path / "graph.npz"), budget=6)
    assert len(result.scores) == outputs
    if metric == "r2":
        assert result.probabilities is None
        assert np.array_equal(result.predictions, result.scores)


def test_unknown_regression_targets_are_ignored() -> None:
    """An unknown target in a mask has the same effect as one outside all masks."""
    (whole,) = node_numbers()
    unknown = np.arange(whole.nodes) % 3 == 0
    masks = ("train_mask", "val_mask", "test_mask")
    holes = replace(whole, labels=np.where(unknown[:, None], np.nan, whole.labels))
    outside = replace(whole, **{name: getattr(whole, name) & ~unknown for name in masks})
    brief = replace(SHORT, epochs=3)
    metrics = [
        fit([one], model_config([one], hidden=8, proxies=2), brief).metrics["val"] for one in (holes, outside)
    ]
    assert np.isfinite(metrics[0])
    assert metrics[0] == metrics[1]
    drawn = with_split(replace(holes, train_mask=None, val_mask=None, test_mask=None))
    assert not any((getattr(drawn, name) & unknown).any() for name in masks)


def test_links_of_val_and_test_are_not_edges_of_the_graph() -> None:
    (graph,) = links()
    kept = {tuple(sorted(edge)) for edge in graph.edge_index.T.tolist()}
    for (one, other), label, train in zip(
        graph.pairs.T.tolist(), graph.labels, graph.train_mask[0], strict=True
    ):
        assert ((one, other) in kept) == bool(label and train)
    assert 0.4 < graph.labels.mean() < 0.6
    assert all(mask.any() for mask in (graph.train_mask, graph.val_mask, graph.test_mask))
    both = {tuple(edge) for edge in graph.edge_index.T.tolist()}
    assert both == {edge[::-1] for edge in both}


def test_edges_changed_for_link_prediction_are_reported(tmp_path: Path) -> None:
    one_way = np.stack([np.arange(29), np.arange(1, 30)])
    both = np.concatenate([one_way, one_way[::-1]], axis=1)
    notes: list[str] = []
    for edges in (np.concatenate([one_way, [[3], [3]]], axis=1), both):
        write_graph(tmp_path / "g.npz", Graph(np.eye(30), edges))
        prepare([str(tmp_path / "g.npz")], "edge", on_note=notes.append)
    changed, *drawn = notes
    assert "29 one-way edges now go both ways and 1 self-loops are removed" in changed
    assert all("the pairs to classify are 29 edges and 29 random pairs" in note for note in drawn)
    assert len(drawn) == 2


def test_a_bundle_for_links_needs_pairs(tmp_path: Path) -> None:
    graphs = links()
    quick = replace(SHORT, epochs=1)
    fitted = fit(graphs, model_config(graphs, hidden=8, proxies=2), quick)
    save_run(tmp_path / "run", fitted, graphs[0], ["links"], quick)
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle")
    with pytest.raises(GraphError, match="no pairs"):
        adar_runtime.load(tmp_path / "bundle").run(Graph(np.ones((3, 2)), np.zeros((2, 0), np.int64)))


def test_a_graph_without_masks_gets_a_random_split(tmp_path: Path) -> None:
    graph = random_graph(50, 100)
    write_graph(tmp_path / "g.npz", graph)
    (prepared,) = prepare([str(tmp_path / "g.npz")])
    assert [mask.sum() for mask in (prepared.train_mask, prepared.val_mask, prepared.test_mask)] == [
        30,
        10,
        10,
    ]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (random_graph(9, 9, features=4), "features"),
        (random_graph(9, 9, level="graph"), "different tasks"),
        (replace(random_graph(9, 9), target_features=None), "target_x"),
    ],
)
def test_graphs_that_do_not_fit_together_are_refused(second: Graph, message: str, tmp_path: Path) -> None:
    write_graph(tmp_path / "a.npz", random_graph(9, 9))
    write_graph(tmp_path / "b.npz", second)
    with pytest.raises(GraphError, match=message):
        prepare([str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])


def test_several_graphs_with_their_own_classes_train_one_model() -> None:
    graphs = [with_split(random_graph(40, 90, classes=classes, seed=classes)) for classes in (2, 5)]
    fitted = fit(graphs, model_config(graphs, hidden=8, proxies=2), replace(SHORT, epochs=2))
    assert fitted.model.targets is None
    assert 0 <= fitted.metrics["val"] <= 1
