"""Train a model in one call: build AdaR for the graphs, initialise it, run the trainer."""

from collections.abc import Callable, Sequence

import torch

from adar_runtime.graph import Graph
from adar_train.cell import ModelConfig
from adar_train.config import TrainConfig
from adar_train.data.checks import check_trainable
from adar_train.initialisation import start
from adar_train.model import AdaR
from adar_train.trainer import Epoch, Fitted, Trainer


def fit(
    graphs: Sequence[Graph],
    model_config: ModelConfig,
    config: TrainConfig,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    device: torch.device | str = "cpu",
) -> Fitted:
    """Build AdaR for the graphs, initialise it from their features, and train it.

    Args:
        graphs: Graphs with labels, a train_mask and a val_mask. Several graphs train one model together: they
            have the same features and either the same classes, or descriptions of their own classes.
        model_config: Sizes and variant of the model.
        config: Settings of the training.
        on_epoch: Called after every epoch, for example to show progress.
        device: PyTorch device to train on.

    Returns:
        The trained model with the best weights by validation, its metrics and its history.

    Raises:
        GraphError: If a graph has no labels to learn from, or none to select a model by.
        DivergedError: If the loss is no longer finite.

    Example:
        >>> from adar_train import ModelConfig, TrainConfig, fit, load
        >>> graph = load("minesweeper")
        >>> config = ModelConfig(features=graph.width, targets=graph.targets)
        >>> fitted = fit([graph], config, TrainConfig(epochs=200))  # doctest: +SKIP
        >>> fitted.metrics["test"]  # doctest: +SKIP
        0.95
    """
    check_trainable(graphs, config.split)
    model = build(graphs, model_config, config.seed, config.split)
    return Trainer(graphs, model, config, device).run(on_epoch)


def build(graphs: Sequence[Graph], config: ModelConfig, seed: int, split: int = 0) -> AdaR:
    """A new AdaR model, initialised from the features of the training graphs; reproducible by its seed."""
    torch.manual_seed(seed)
    model = AdaR(config)
    start(model, [graph for graph in graphs if graph.labelled("train", split) is not None])
    return model
