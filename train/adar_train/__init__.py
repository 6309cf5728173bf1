"""Train AdaR with PyTorch, and keep what came of it."""

from adar_train.cell import ModelConfig, State
from adar_train.config import TrainConfig
from adar_train.data import load
from adar_train.fit import Epoch, Fitted, Trainer, fit
from adar_train.model import AdaR
from adar_train.runs import Run, load_run, save_run
from adar_train.tensors import GraphTensors

__all__ = [
    "AdaR",
    "Epoch",
    "Fitted",
    "GraphTensors",
    "ModelConfig",
    "Run",
    "State",
    "TrainConfig",
    "Trainer",
    "fit",
    "load",
    "load_run",
    "save_run",
]
