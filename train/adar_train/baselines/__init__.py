"""Models to compare AdaR with: through the same trainer, loss, metrics and model selection.

Each class in BASELINES is used like AdaR: built from a ModelConfig, run by `trajectory`, scored by
`scores`. Each function in TRAINING_FREE takes a graph and gives scores [n, c] at once.
"""

from collections.abc import Callable
from functools import partial

from adar_runtime.graph import Floats, Graph
from adar_train.baselines.appnp import APPNP
from adar_train.baselines.base import Baseline
from adar_train.baselines.cosine import cosine, smoothed_cosine
from adar_train.baselines.gat import GAT
from adar_train.baselines.gcn import GCN
from adar_train.baselines.gcnii import GCNII
from adar_train.baselines.n2 import N2
from adar_train.baselines.sage import SAGE

BASELINES: dict[str, type[Baseline]] = {
    "gcn": GCN,
    "gat": GAT,
    "sage": SAGE,
    "gcnii": GCNII,
    "appnp": APPNP,
    "n2": N2,
}
"""Models that are trained, by name."""

TRAINING_FREE: dict[str, Callable[[Graph], Floats]] = {
    "cosine": cosine,
    "smoothed-cosine": smoothed_cosine,
    "centred-smoothed-cosine": partial(smoothed_cosine, centred=True),
}
"""Scores that cost nothing, for graphs with described targets. A model has to beat them to be of use."""

__all__ = ["BASELINES", "TRAINING_FREE", "Baseline"]
