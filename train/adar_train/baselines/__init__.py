"""Baselines: models to compare AdaR with, trained by the same trainer, loss, metrics and model selection.

Each class in BASELINES is used like AdaR: it is built from a ModelConfig, run by `trajectory` and scored by
`scores`. To add a baseline, write a class in one of the files here and add
one line to BASELINES. Baselines without training are in `adar_runtime.evaluation.zero_shot_baselines`.
"""

from adar_train.baselines.base import Baseline
from adar_train.baselines.heterophily import FAGCN, GPRGNN, H2GCN
from adar_train.baselines.n2 import N2
from adar_train.baselines.pyg_layers import APPNP, GAT, GCN, GCNII, SAGE, GraphGPS

BASELINES: dict[str, type[Baseline]] = {
    "gcn": GCN,
    "gat": GAT,
    "sage": SAGE,
    "gcnii": GCNII,
    "appnp": APPNP,
    "n2": N2,
    "fagcn": FAGCN,
    "gprgnn": GPRGNN,
    "h2gcn": H2GCN,
    "gps": GraphGPS,
}
"""Trained baselines by their name on the command line (`--baseline`) and in a run's config.json."""

__all__ = ["BASELINES", "Baseline"]
