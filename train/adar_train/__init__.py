"""Train AdaR with PyTorch, and write and read training runs.

The public names are those in `__all__`. The modules behind them:

- `cell`, `model`, `losses`, `initialisation`: the model, in the order of the paper's appendix
- `data/`: data sets, splits, episodes and checks of graphs; `prepare`: from names of data to a training
- `config`: settings and presets; `fit`: training in one call
- `trainer`: the training loop; `objective`: what an epoch optimises; `evaluate`: metrics of PyTorch models
- `job`: a training as `adar-deploy train` runs it; `runs`, `checkpoints`: the files
- `baselines/`: models to compare AdaR with
"""

from adar_train.cell import ModelConfig, State
from adar_train.config import TrainConfig
from adar_train.data import load
from adar_train.fit import fit
from adar_train.model import AdaR
from adar_train.runs import Run, load_run, save_run
from adar_train.tensors import GraphTensors
from adar_train.trainer import Epoch, Fitted, Trainer

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
