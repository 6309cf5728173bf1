"""Untrained models for benchmarks and for `adar-deploy doctor`."""

from pathlib import Path

import torch

from adar_runtime.graph import Graph
from adar_train.cell import ModelConfig
from adar_train.config import TrainConfig
from adar_train.model import AdaR
from adar_train.runs import Run, load_run, save_run
from adar_train.trainer import Fitted


def random_model(config: ModelConfig, std: float = 0.1, seed: int = 0) -> AdaR:
    """Return a model with random weights and velocities that are not zero; a seed gives equal weights."""
    torch.manual_seed(seed)
    model = AdaR(config)
    for name, weight in model.named_parameters():
        if name.endswith("out.weight"):
            torch.nn.init.normal_(weight, std=std)
    return model


def trial_run(path: Path, graph: Graph, config: ModelConfig, name: str = "nothing") -> Run:
    """Write and load a run with a random model, as if the model had been trained on the graph."""
    fitted = Fitted(random_model(config), {"metric": "accuracy", "split": 0}, [])
    save_run(path, fitted, graph, [name], TrainConfig())
    return load_run(path)
