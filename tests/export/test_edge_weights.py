"""Edge weights: a weighted mean over neighbours, the same in every form of the model."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_export import export_bundle
from adar_export.samples import part_of
from adar_runtime import Bundle, Final, Graph, load
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import AdarWarning
from adar_runtime.loop.schedule import step_code, times
from adar_train import AdaR, Fitted, GraphTensors, ModelConfig, TrainConfig, fit, load_run, save_run
from adar_train.baselines import BASELINES
from adar_train.data.episodes import EpisodeSource
from adar_train.data.splits import link_graph
from adar_train.graph_batch import GraphBatch
from adar_train.prepare import model_config
from tests.helpers import awake, random_graph
from tests.train.test_model import Paper


def weighted_graph(nodes: int, edges: int, *, seed: int = 0, level: str = "node") -> Graph:
    """A graph with integer weights from 1 to 4 as float32, and without repeated edges."""
    graph = random_graph(nodes, edges, seed=seed, level=level)
    distinct = np.unique(graph.edge_index, axis=1)
    weights = np.random.default_rng(seed).integers(1, 5, distinct.shape[1])
    return replace(graph, edge_index=distinct, edge_weight=weights)


def repeated(graph: Graph) -> Graph:
    """The same graph with each edge repeated as often as its weight says, with weights of 1."""
    assert graph.edge_weight is not None
    edges = np.repeat(graph.edge_index, graph.edge_weight.astype(int), axis=1)
    return replace(graph, edge_index=edges, edge_weight=np.ones(edges.shape[1]))


def without_weights(graph: Graph) -> Graph:
    return replace(graph, edge_weight=None)


class Multiset(Paper):
    """The paper's step with lists of neighbours instead of sets: a repeated edge counts repeatedly."""

    def __init__(self, model: AdaR, graph: Graph) -> None:
        super().__init__(model, graph)
        self.neighbours = [
            [int(s) for s, t in graph.edge_index.T if t == node] for node in range(graph.nodes)
        ]


@pytest.mark.parametrize("seed", range(4))
def test_an_integer_weight_equals_a_repeated_edge_in_the_papers_equations(seed: int) -> None:
    graph = weighted_graph(12, 12 * seed, seed=seed)
    model = awake(ModelConfig(graph.width, 3, hidden=8, proxies=5, edge_weights=True), seed)
    paper, clock = Multiset(model, repeated(graph)), [0.0, 0.3, 0.45]
    for given in (graph, repeated(graph)):
        with torch.no_grad():
            states = list(model.trajectory(GraphTensors.of(given), clock))
        for (now, then), (before, after) in zip(pairwise(clock), pairwise(states), strict=True):
            arrays = [x.detach().double().numpy() for x in before]
            expected = paper.step(*arrays, step_code(now, 8), then - now)
            for name, ours, theirs in zip(after._fields, after, expected, strict=True):
                assert np.abs(ours.numpy() - theirs).max() < 1e-5, name


def save_awake(path: Path, graph: Graph, config: ModelConfig) -> Path:
    """A run of an untrained model with random velocities."""
    metrics = {"metric": "accuracy", "split": 0}
    save_run(path, Fitted(awake(config), metrics, []), graph, ["random"], TrainConfig())
    return path


CONFIGS = {
    "standard": {"targets": 3},
    "described": {"targets": None},
    "smoothing": {"targets": 3, "smoothing": 2},
    "zero-shot": {"targets": None, "variant": "zero-shot"},
    "edge": {"targets": 3, "level": "edge"},
    "graph": {"targets": 3, "level": "graph"},
}


@pytest.fixture(scope="module", params=CONFIGS)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AdaR, Bundle, Graph]:
    """A model with weights, its bundle, and a graph. `export_bundle` has compared the two."""
    folder, settings = tmp_path_factory.mktemp("weights"), CONFIGS[request.param]
    graph = weighted_graph(60, 400, level=settings.get("level", "node"))
    config = ModelConfig(graph.width, hidden=16, proxies=4, edge_weights=True, **settings)
    run = save_awake(folder / "run", graph, config)
    export_bundle(load_run(run), folder / "bundle", steps=(1, 10))
    return load_run(run).model, load(folder / "bundle", "onnxruntime-cpu"), graph


def scores(bundle: Bundle, graph: Graph) -> np.ndarray:
    return bundle.run(graph, 20, Final(), "euler").scores


def assert_close(one: np.ndarray, other: np.ndarray) -> None:
    assert np.abs(one - other).max() <= 2e-4 * np.abs(other).max()


def test_every_variant_and_level_of_a_bundle(exported: tuple[AdaR, Bundle, Graph]) -> None:
    """PyTorch, a repeated edge, a graph without weights, and other weights."""
    model, bundle, graph = exported
    assert bundle.manifest.edge_weights
    ours = scores(bundle, graph)
    with torch.no_grad():
        *_, last = model.trajectory(GraphTensors.of(graph), times(20))
        assert_close(ours, model.scores(last, GraphTensors.of(graph)).numpy())
    assert_close(scores(bundle, repeated(graph)), ours)
    plain = without_weights(graph)
    ones = replace(graph, edge_weight=np.ones(graph.edges))
    assert np.array_equal(scores(bundle, plain), scores(bundle, ones))
    assert np.abs(scores(bundle, plain) - ours).max() > 1e-2 * np.abs(ours).max()


def test_batches_of_small_graphs_take_the_weights(tmp_path: Path) -> None:
    """In PyTorch and in the bundle, beside a graph without weights; its repeated edges count once."""
    graphs = [
        replace(weighted_graph(n, 4 * n, seed=n, level="graph"), target_features=None) for n in (5, 9, 14)
    ]
    plain = replace(random_graph(8, 40, level="graph"), target_features=None)
    config = ModelConfig(plain.width, 3, hidden=8, proxies=4, level="graph", edge_weights=True, smoothing=1)
    run = save_awake(tmp_path / "run", graphs[0], config)
    export_bundle(load_run(run), tmp_path / "bundle", steps=(1,))
    bundle, model, everything = (
        load(tmp_path / "bundle", "onnxruntime-cpu"),
        load_run(run).model,
        [*graphs, plain],
    )
    together = [one.scores for one in bundle.run_many(everything, 20, Final(), "euler")]
    batch = GraphBatch.join(everything, range(4))
    with torch.no_grad():
        *_, last = model.trajectory(batch, times(20))
        in_torch = model.scores(last, batch).numpy()
    for graph, ours, theirs in zip(everything, together, in_torch, strict=True):
        assert_close(ours, scores(bundle, graph))
        assert_close(theirs[None], scores(bundle, graph))
        assert_close(ours, scores(bundle, repeated(graph) if graph.edge_weight is not None else graph))


def test_a_model_without_weights_ignores_them_and_says_so(
    described_bundle: Path, described_run: Path
) -> None:
    graph = weighted_graph(40, 200)
    bundle, model = load(described_bundle, "onnxruntime-cpu"), load_run(described_run).model
    with pytest.warns(AdarWarning, match="has edge weights, which this bundle does not use"):
        ours = scores(bundle, graph)
    assert np.array_equal(ours, scores(bundle, without_weights(graph)))
    with torch.no_grad():
        ends = [
            list(model.trajectory(GraphTensors.of(g), times(20)))[-1] for g in (graph, without_weights(graph))
        ]
    assert torch.equal(ends[0].nodes, ends[1].nodes)
    manifest = read_manifest(described_bundle)
    assert not manifest.edge_weights
    assert "edge_weights" not in manifest.to_dict()


def test_weights_of_one_give_the_cell_without_weights(
    tmp_path: Path, described_bundle: Path, described_run: Path
) -> None:
    run = load_run(described_run)
    settings = replace(run.model.config, edge_weights=True)
    save_awake(tmp_path / "run", run.graph(), settings)  # the weights of the model depend on the seed only
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", steps=(1,))
    graph = random_graph(90, 700, seed=3)
    weighted, plain = load(tmp_path / "bundle", "onnxruntime-cpu"), load(described_bundle, "onnxruntime-cpu")
    assert_close(scores(weighted, graph), scores(plain, graph))


@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="needs adar-deploy[rtx]")
def test_tensorrt_takes_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.runtime.simulated_gpu import load_on_simulated_gpu, with_engines

    graph = weighted_graph(70, 300)
    config = ModelConfig(graph.width, 3, hidden=16, proxies=4, edge_weights=True)
    run = save_awake(tmp_path / "run", graph, config)
    export_bundle(load_run(run), tmp_path / "bundle", steps=(1,))
    with_engines(tmp_path / "bundle", tmp_path / "engines")
    expected = scores(load(tmp_path / "bundle", "onnxruntime-cpu"), graph)
    on_gpu, _ = load_on_simulated_gpu(monkeypatch, tmp_path / "engines")
    assert_close(scores(on_gpu, graph), expected)
    assert_close(scores(on_gpu, repeated(graph)), expected)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_baselines_ignore_the_weights(name: str) -> None:
    graph = replace(weighted_graph(30, 120), target_features=None)
    torch.manual_seed(0)
    model = BASELINES[name](ModelConfig(graph.width, 3, hidden=8, proxies=4, edge_weights=True)).eval()
    with torch.no_grad():
        ends = [
            list(model.trajectory(GraphTensors.of(g), times(1)))[-1] for g in (graph, without_weights(graph))
        ]
    assert torch.allclose(ends[0].nodes, ends[1].nodes, atol=1e-6)


def test_training_uses_weights_if_one_graph_has_them() -> None:
    """Weights decide the label here: without them, both classes have the same neighbours."""
    random = np.random.default_rng(0)
    nodes = 400
    labels = random.integers(0, 2, nodes)
    features = np.zeros((nodes + 2, 2), np.float32)
    features[nodes:] = np.eye(2)  # two hubs; every node is joined to both
    source = np.repeat([nodes, nodes + 1], nodes)
    target = np.tile(np.arange(nodes), 2)
    weights = np.where((source - nodes) == labels[target], 3.0, 0.5)
    mask = np.append(random.random(nodes) < 0.5, [False, False])
    graph = Graph(
        features,
        np.stack([source, target]),
        np.append(labels, [-1, -1]),
        train_mask=mask,
        val_mask=~mask,
        edge_weight=weights,
    )
    training = TrainConfig(epochs=30, select_budgets=(4,), exit_budgets=(4,), train_steps=4)
    found = {}
    for given in (graph, without_weights(graph)):
        config = model_config([given, given], hidden=8, proxies=2)
        assert config.edge_weights == (given.edge_weight is not None)
        found[config.edge_weights] = fit([given], config, training).metrics["val"]
    assert found[True] > 0.99
    assert found[False] < 0.6


def test_links_and_episodes_keep_the_weights_of_their_edges() -> None:
    graph = weighted_graph(200, 1500)
    graph = replace(graph, features=np.arange(200.0)[:, None] * [[1, 1, 1, 1, 1, 1]])
    weight = dict(zip(map(tuple, graph.edge_index.T.tolist()), graph.edge_weight.tolist(), strict=True))
    links = link_graph(replace(graph, target_features=None), seed=1)
    for edge, value in zip(map(tuple, links.edge_index.T.tolist()), links.edge_weight, strict=True):
        assert value == np.mean([weight[one] for one in (edge, edge[::-1]) if one in weight])
    episode = EpisodeSource(graph, np.arange(200)).draw(np.random.default_rng(0))
    assert 20 < episode.edges < graph.edges
    node = episode.features[:, 0].astype(int)
    for (source, target), value in zip(episode.edge_index.T, episode.edge_weight, strict=True):
        assert weight[node[source], node[target]] == value


def test_a_part_of_a_graph_keeps_the_weights_of_its_edges() -> None:
    graph = weighted_graph(300, 1500)
    graph = replace(graph, features=np.arange(300.0)[:, None], target_features=None)
    weight = dict(zip(map(tuple, graph.edge_index.T.tolist()), graph.edge_weight.tolist(), strict=True))
    part = part_of(graph, 100)
    assert part.edges > 50
    for (source, target), value in zip(part.edge_index.T, part.edge_weight, strict=True):
        assert weight[int(part.features[source, 0]), int(part.features[target, 0])] == value
