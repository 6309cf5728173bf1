"""The normalised first state: the same in PyTorch and in a bundle, whatever the length of a feature row."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_export import export_bundle
from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import OLDEST
from adar_export.samples import random_graph
from adar_runtime import load
from adar_runtime.bundle.known_models import FILE
from adar_train import ModelConfig, TrainConfig, load_run
from adar_train.job import Job
from adar_train.tensors import GraphTensors
from tests.helpers import awake


@pytest.mark.parametrize("targets", [3, None])
def test_a_bundle_normalises_nodes_like_pytorch(targets: int | None, tmp_path: Path) -> None:
    config = ModelConfig(features=5, targets=targets, hidden=8, proxies=4, input_norm=True)
    graph = random_graph(config)
    features = graph.features.copy()
    features[0] *= 1000  # a text of a thousand times the length
    mask = np.ones((1, graph.nodes), np.bool_)
    labels = np.random.default_rng(0).integers(0, 3, graph.nodes)
    graph = replace(graph, features=features, labels=labels, train_mask=mask, val_mask=mask)
    Job(["graph"], [graph], config, TrainConfig(epochs=2, exit_budgets=(4,)), tmp_path / "run").run("cpu")
    run = load_run(tmp_path / "run")
    export_bundle(run, tmp_path / "bundle", steps=(1, 10))
    first = next(load(tmp_path / "bundle").loop(graph, 1)).state()
    with torch.no_grad():
        expected = run.model.first_state(GraphTensors.of(graph))
        plain = type(run.model)(replace(config, input_norm=False))
        plain.load_state_dict(run.model.state_dict())
        longest = plain.eval().first_state(GraphTensors.of(graph)).nodes[0]
    assert np.allclose(first["nodes"], expected.nodes, atol=1e-5)
    assert np.allclose(first["targets"], expected.targets, atol=1e-5)
    assert np.allclose(first["nodes"].mean(axis=1), 0, atol=1e-5)
    assert np.abs(first["nodes"][0]).max() < np.sqrt(
        8
    )  # the largest entry that a row of unit spread can have
    assert longest.abs().max() > 10


def test_the_encoder_alone_differs() -> None:
    """The norm is in the encoder: cell, head and their list of known models stay as they are."""
    config = ModelConfig(features=5, targets=3, hidden=8, proxies=4)
    plain, normed = (build_onnx_models(awake(replace(config, input_norm=on)), OLDEST) for on in (False, True))
    assert [name for name in plain if plain[name] != normed[name]] == ["encoder"]
    assert "normalised input" in FILE.read_text()
