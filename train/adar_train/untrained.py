"""Models that nobody has trained: to measure with, and to see whether all parts work together."""

from pathlib import Path

import torch

from adar_runtime.graph import Graph
from adar_train.cell import ModelConfig
from adar_train.config import TrainConfig
from adar_train.model import AdaR
from adar_train.runs import Run, load_run, save_run
from adar_train.trainer import Fitted


def random_model(config: ModelConfig, std: float = 0.1, seed: int = 0) -> AdaR:
    """The same for the same seed; velocities are not zero, as they are before training."""
    torch.manual_seed(seed)
    model = AdaR(config)
    for name, weight in model.named_parameters():
        if name.endswith("out.weight"):
            torch.nn.init.normal_(weight, std=std)
    return model


def trial_run(path: Path, graph: Graph, config: ModelConfig, name: str = "nothing") -> Run:
    """A run of such a model, as if it had been trained on the graph."""
    fitted = Fitted(random_model(config), {"metric": "accuracy", "split": 0}, [])
    save_run(path, fitted, graph, [name], TrainConfig())
    return load_run(path)
