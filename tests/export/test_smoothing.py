"""Smoothing of the nodes before the first step: equal in PyTorch and in every bundle."""

import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_export import export_bundle
from adar_export.bf16_emulation import opened
from adar_export.samples import random_graph
from adar_runtime import Final, Graph, load
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import BundleError, UsageError
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import EDGES_AT_ONCE, Smoothing
from adar_train import ModelConfig, TrainConfig, load_run
from adar_train.job import Job
from adar_train.tensors import GraphTensors

ROUNDS = 2
EXAMPLES = Path(__file__).parents[2] / "examples"


def propagation(graph: Graph) -> np.ndarray:
    """S = D^-1/2 (A + I) D^-1/2 as a dense matrix, from its definition."""
    a = np.eye(graph.nodes)
    a[graph.edge_index[1], graph.edge_index[0]] += 1
    loops = np.unique(graph.edge_index[0][graph.edge_index[0] == graph.edge_index[1]])
    a = np.minimum(a, 1)
    a[loops, loops] = 2  # its own neighbour, beside the identity
    root = 1 / np.sqrt(a.sum(axis=1))
    return root[:, None] * a * root


@pytest.fixture
def directed() -> Graph:
    """Directed, with isolated nodes, hubs, repeated edges and self-loops."""
    return random_graph(ModelConfig(features=5, targets=3))


def test_smoothing_is_the_propagation_of_gcn(directed: Graph) -> None:
    expected = np.linalg.matrix_power(propagation(directed), ROUNDS) @ directed.features
    neighbours = Neighbours.of(directed.edge_index, directed.nodes)
    assert np.allclose(Smoothing(neighbours, ROUNDS)(directed.features), expected, atol=1e-5)
    tensors = GraphTensors.of(directed)
    assert np.allclose(tensors.smoothed(torch.from_numpy(directed.features), ROUNDS), expected, atol=1e-5)


def test_a_hub_with_more_edges_than_a_block_is_summed_too() -> None:
    leaves = np.arange(1, EDGES_AT_ONCE + 10)
    neighbours = Neighbours.of(np.stack([leaves, np.zeros_like(leaves)]), len(leaves) + 1)
    nodes = np.ones((len(leaves) + 1, 1), np.float32)
    smoothed = Smoothing(neighbours, 1)(nodes)
    root = 1 / np.sqrt(len(leaves) + 1)
    assert np.allclose(smoothed[0], root * (len(leaves) + root))
    assert np.array_equal(smoothed[1:], nodes[1:])


def test_a_smoothing_out_of_range_is_refused() -> None:
    with pytest.raises(UsageError, match="smoothing is 9"):
        ModelConfig(features=1, targets=2, smoothing=9)


@pytest.fixture(scope="module")
def smoothed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smoothed")
    graph = random_graph(ModelConfig(features=5, targets=3))
    random = np.random.default_rng(0)
    mask = np.ones((1, graph.nodes), np.bool_)
    graph = replace(graph, labels=random.integers(0, 3, graph.nodes), train_mask=mask, val_mask=mask)
    config = ModelConfig(features=5, targets=3, hidden=8, proxies=4, smoothing=ROUNDS)
    training = TrainConfig(epochs=2, exit_budgets=(4,))
    Job(["graph"], [graph], config, training, folder / "run").run("cpu")
    export_bundle(load_run(folder / "run"), folder / "bundle", steps=(1, 10))
    return folder


def test_a_bundle_smooths_like_pytorch(smoothed_bundle: Path, directed: Graph) -> None:
    run, bundle = load_run(smoothed_bundle / "run"), load(smoothed_bundle / "bundle")
    assert bundle.manifest.smoothing == ROUNDS
    first = next(bundle.loop(directed, 1)).state()["nodes"]
    with torch.no_grad():
        expected = run.model.first_state(GraphTensors.of(directed)).nodes.numpy()
        alone = run.model.encode(torch.from_numpy(directed.features)).nodes.numpy()
    assert np.allclose(first, expected, atol=1e-5)
    assert np.abs(first - alone).max() > 0.1
    assert bundle.manifest.parity["needed"] < 1e-4


def test_the_plain_export_and_an_unknown_model_smooth_too(smoothed_bundle: Path, directed: Graph) -> None:
    run, expected = (
        load_run(smoothed_bundle / "run"),
        load(smoothed_bundle / "bundle").run(directed, 5).scores,
    )
    export_bundle(run, smoothed_bundle / "plain", plain=True, steps=(1,))
    with opened(smoothed_bundle / "plain", threads=1, made_here=True) as plain:
        assert np.allclose(plain.run(directed, 5).scores, expected, atol=1e-4)
    unknown = load(smoothed_bundle / "plain", allow_unknown_model=True)
    assert np.allclose(unknown.run(directed, 5).scores, expected, atol=1e-4)


def test_plain_onnxruntime_smooths_too(smoothed_bundle: Path, directed: Graph) -> None:
    function = runpy.run_path(str(EXAMPLES / "plain_onnxruntime.py"))["run_bundle"]
    neighbours = Neighbours.of(directed.edge_index, directed.nodes)
    edges = np.stack([neighbours.sources, neighbours.targets])
    expected = load(smoothed_bundle / "bundle").run(directed, 5, Final()).scores
    assert np.allclose(function(smoothed_bundle / "bundle", directed.features, edges, 5), expected, atol=1e-4)


def test_older_versions_refuse_a_bundle_with_smoothing(smoothed_bundle: Path) -> None:
    raw = json.loads((smoothed_bundle / "bundle" / manifests.FILE_NAME).read_text())
    assert raw["schema"] == manifests.SMOOTHING_SCHEMA
    without = replace(Manifest.from_json(json.dumps(raw)), smoothing=0).to_dict()
    assert without["schema"] == manifests.SCHEMA
    assert "smoothing" not in without


@pytest.mark.parametrize("rounds", [0, 9, -1, True, 2.0, None])
def test_a_manifest_with_another_smoothing_is_refused(smoothed_bundle: Path, rounds: object) -> None:
    raw = json.loads((smoothed_bundle / "bundle" / manifests.FILE_NAME).read_text())
    del raw[manifests.CHECKSUM]
    with pytest.raises(BundleError, match="smoothing"):
        Manifest.from_json(json.dumps(raw | {"smoothing": rounds}))


def test_the_memory_estimate_counts_the_edges_of_the_smoothing(
    smoothed_bundle: Path, directed: Graph
) -> None:
    manifest = load(smoothed_bundle / "bundle").manifest
    more = memory.needed_bytes(directed, manifest)
    assert more > memory.needed_bytes(directed, replace(manifest, smoothing=0))
