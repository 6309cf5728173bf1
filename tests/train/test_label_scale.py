"""Regression does not depend on the mean or unit of the targets; scores are in the units of the labels."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import adar_runtime
from adar_export import export_bundle
from adar_export.onnx_models import build_onnx_models
from adar_export.plain_cell import PlainAdaR
from adar_runtime import Graph
from adar_runtime.evaluation.metrics import split_metrics
from adar_train import GraphTensors, ModelConfig, TrainConfig, Trainer, fit, load_run, save_run
from adar_train.baselines import BASELINES
from adar_train.data.splits import with_split
from adar_train.initialisation import scale_labels
from adar_train.untrained import random_model
from tests.helpers import random_graph

SHORT = TrainConfig(epochs=40, train_steps=3, select_budgets=(3,), exit_budgets=(3, 6))
CONFIG = ModelConfig(5, 2, 8, 4, regression=True, dropout=0.0)


def years(offset: float = 2000.0, scale: float = 5.0) -> Graph:
    """Two regression targets per node, both linear in the first feature, with opposite signs."""
    graph = random_graph(120, 300, features=5)
    values = graph.features[:, :1] * [1.0, -2.0]
    return with_split(Graph(graph.features, graph.edge_index, labels=(offset + scale * values)))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path, graph = tmp_path_factory.mktemp("numbers") / "run", years()
    save_run(path, fit([graph], CONFIG, SHORT), graph, ["years"], SHORT)
    return path


def test_targets_far_from_zero_are_learned(run: Path) -> None:
    assert load_run(run).metrics["test"] > 0.8


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (0.0, 1e-4), (-3e4, 1e3)])
def test_the_loss_does_not_depend_on_mean_and_unit(offset: float, scale: float) -> None:
    first = fit([years()], CONFIG, SHORT).history[:5]
    other = fit([years(offset, scale)], CONFIG, SHORT).history[:5]
    assert [row["loss"] for row in other] == pytest.approx([row["loss"] for row in first], rel=1e-2)


def test_the_scale_comes_from_the_training_labels_only() -> None:
    graph = years()
    labels = graph.labels.copy()
    labels[~graph.train_mask[0]] *= 100
    trainer = Trainer([Graph(**(vars(graph) | {"labels": labels}))], random_model(CONFIG), SHORT)
    known = graph.labels[graph.train_mask[0]]
    assert trainer.model.label_offset.numpy() == pytest.approx(known.mean(axis=0))
    assert trainer.model.label_scale.numpy() == pytest.approx(known.std(axis=0), rel=1e-5)


def test_the_scale_of_constant_labels_and_described_targets() -> None:
    model = random_model(CONFIG)
    scale_labels(model, [np.array([[7, 1], [7, 3]], np.float32)])
    assert model.label_scale.tolist() == [1, 1]
    assert model.label_offset.tolist() == [7, 2]
    described = random_model(ModelConfig(5, None, 8, 4, regression=True))
    scale_labels(described, [np.array([[1, 3]], np.float32)])
    assert (described.label_offset.tolist(), described.label_scale.tolist()) == ([2], [1])


@pytest.mark.parametrize("plain", [False, True])
def test_a_bundle_gives_scores_in_the_units_of_the_labels(run: Path, tmp_path: Path, plain: bool) -> None:
    export_bundle(load_run(run), tmp_path / "bundle", plain=plain, steps=(1, 6))
    graph, trained = years(), load_run(run)
    bundle = adar_runtime.Bundle(tmp_path / "bundle", made_here=True)  # a plain export is not a known model
    result = bundle.run(graph, budget=6, stop=bundle.stop_rule("final"))
    tensors = GraphTensors.of(graph)
    for model in (trained.model, PlainAdaR(trained.model)):
        *_, last = model.trajectory(tensors, np.linspace(0, 1, 7).tolist())
        assert np.allclose(result.scores, model.scores(last, tensors).detach(), atol=5e-3)
    assert split_metrics(graph, result.scores)["test"] > 0.8


def test_a_baseline_learns_regression() -> None:
    torch.manual_seed(0)
    one_pass = TrainConfig(epochs=60, select_budgets=(1,), exit_budgets=(1,), step_weight=0, full_weight=0)
    fitted = Trainer([years()], BASELINES["sage"](CONFIG), one_pass).run()
    assert fitted.metrics["test"] > 0.6


def test_an_older_run_without_label_scale_keeps_its_scores(run: Path, tmp_path: Path) -> None:
    """Without offset and scale among the weights, the inner products are the scores."""
    for file in run.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(run / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("label_")}
    assert len(weights) - len(kept) == 2
    save_file(kept, tmp_path / "model.safetensors")
    config = json.loads((run / "config.json").read_text())
    config["weights"] = sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, tensors = load_run(tmp_path).model, GraphTensors.of(years())
    state = model.encode(tensors.features)
    assert torch.equal(model.scores(state, tensors), state.nodes @ state.targets.T)
    export_bundle(load_run(tmp_path), tmp_path / "bundle", steps=(1,))


def test_a_classification_model_has_no_label_scale() -> None:
    model = random_model(ModelConfig(5, 2, 8, 4))
    assert not any(name.startswith("label_") for name in model.state_dict())
    head = build_onnx_models(model, 17)["head"]
    assert not any(weight.name.startswith("label_") for weight in head.graph.initializer)
    (last,) = [node for node in head.graph.node if "scores" in node.output]
    assert last.op_type == "Gemm"
