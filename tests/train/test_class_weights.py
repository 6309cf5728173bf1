"""`class_weights="balanced"`: every class has the same total weight in the loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from adar_runtime import Graph
from adar_runtime.errors import UsageError
from adar_runtime.loop.schedule import times
from adar_train import GraphTensors, ModelConfig, TrainConfig, fit
from adar_train.class_weights import BalancedClasses, balanced_weights
from adar_train.losses import class_gradient, task_gradient, task_loss
from adar_train.objective import WholeGraphs
from tests.helpers import awake, random_graph


def test_weights_are_scikit_learns() -> None:
    labels = np.repeat([0, 1, 3], [60, 5, 20])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    assert np.allclose(balanced_weights(torch.from_numpy(labels), 4)[[0, 1, 3]], expected)


def drawn(graphs: list[Graph], config: ModelConfig) -> list[tuple[GraphTensors, torch.Tensor]]:
    masked = [replace(graph, train_mask=np.ones(graph.outputs, bool)) for graph in graphs]
    batches = WholeGraphs(masked, [GraphTensors.of(graph) for graph in masked], 0)
    return BalancedClasses(batches, awake(config)).draw(1, np.random.default_rng(0))


@pytest.mark.parametrize("level", ["node", "edge"])
def test_graphs_with_the_same_classes_are_counted_together(level: str) -> None:
    graphs = [random_graph(20, 40, seed=seed, level=level) for seed in range(2)]
    labels = np.concatenate([graph.labels for graph in graphs])
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    for tensors, _ in drawn(graphs, ModelConfig(6, 3, 8, 4, level=level)):
        assert np.allclose(tensors.class_weights, expected)


def test_labels_of_whole_graphs_are_counted_together() -> None:
    """One graph has one label, so a mean by weights within a graph would have no effect."""
    graphs = [replace(random_graph(9, 20, seed=i, level="graph"), labels=[int(i == 0)]) for i in range(5)]
    config = ModelConfig(6, 2, 8, 4, level="graph")
    batches, model = drawn(graphs, config), awake(config)
    rare, frequent = batches[0], batches[1]
    assert np.allclose(rare[0].class_weights, [5 / (2 * 4), 5 / (2 * 1)])
    for (tensors, chosen), factor in ((rare, 5 / 2), (frequent, 5 / 8)):
        *_, state = model.trajectory(tensors, times(2))
        plain = task_loss(model, state, replace(tensors, class_weights=None), chosen)
        assert torch.allclose(task_loss(model, state, tensors, chosen), factor * plain)


def test_graphs_that_describe_their_classes_are_counted_alone() -> None:
    graphs = [random_graph(40, 90, classes=classes) for classes in (2, 5)]
    for graph, (tensors, _) in zip(graphs, drawn(graphs, ModelConfig(6, None, 8, 4)), strict=True):
        expected = compute_class_weight("balanced", classes=np.unique(graph.labels), y=graph.labels)
        assert np.allclose(tensors.class_weights, expected)


@pytest.mark.parametrize("variant", ["standard", "zero-shot"])
def test_the_weighted_loss_and_its_gradient(variant: str) -> None:
    graph = random_graph(30, 60)
    model = awake(ModelConfig(graph.width, None, 8, 4, variant=variant))
    ((tensors, chosen),) = drawn([graph], model.config)
    *_, state = model.trajectory(tensors, times(2))
    scores = model.products(state.nodes, state.targets)
    expected = functional.cross_entropy(scores, tensors.labels, tensors.class_weights)
    # The mean weight is 1, so PyTorch's mean by weights is the same.
    assert torch.allclose(task_loss(model, state, tensors, chosen), expected, rtol=1e-5)
    ours = class_gradient(model, state.nodes.detach(), state.targets.detach(), tensors, chosen)
    assert torch.allclose(ours, task_gradient(model, state, tensors, chosen)[chosen], atol=1e-6)


def test_a_rare_class_is_found_with_balanced_weights() -> None:
    """One noisy feature: without weights, the rare class is never the more probable one."""
    random = np.random.default_rng(0)
    labels = (random.random(1500) < 0.06).astype(np.int64)
    features = random.normal(size=(1500, 2))
    features[:, 0] += 1.2 * labels
    part = random.integers(0, 2, 1500)
    graph = Graph(features, np.zeros((2, 0), np.int64), labels, train_mask=part == 0, val_mask=part == 1)
    found = {}
    for weights in ("none", "balanced"):
        training = TrainConfig(
            epochs=60,
            evaluate_every=60,
            train_steps=2,
            select_budgets=(2,),
            exit_budgets=(2,),
            class_weights=weights,
        )
        found[weights] = fit([graph], ModelConfig(2, 2, 8, 2), training).metrics["class_metrics"]["val"]
    assert found["balanced"]["balanced_accuracy"] > found["none"]["balanced_accuracy"] + 0.1
    assert found["balanced"]["imbalance"] > 10


def test_numbers_have_no_classes_to_weigh() -> None:
    graph = random_graph(20, 40)
    part = np.arange(20) % 2 == 0
    graph = replace(
        graph,
        labels=np.random.default_rng(0).random((20, 1)),
        target_features=None,
        train_mask=part,
        val_mask=~part,
    )
    config = ModelConfig(graph.width, 1, 8, 4, regression=True)
    with pytest.raises(UsageError, match="class weights are for classes"):
        fit([graph], config, TrainConfig(epochs=1, class_weights="balanced"))
    with pytest.raises(UsageError, match="unknown class_weights 'some'"):
        TrainConfig(class_weights="some")
