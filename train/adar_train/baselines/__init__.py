"""Models to compare AdaR with: through the same trainer, loss, metrics and model selection.

Each class in BASELINES is used like AdaR: built from a ModelConfig, run by `trajectory`, scored by
`scores`. What needs no training to compare with is in `adar_runtime.evaluation.zero_shot_baselines`.
"""

from adar_train.baselines.appnp import APPNP
from adar_train.baselines.base import Baseline
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

__all__ = ["BASELINES", "Baseline"]
