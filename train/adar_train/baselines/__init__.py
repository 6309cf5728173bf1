"""Baselines: models to compare AdaR with, trained by the same trainer, loss, metrics and model selection.

Each class in BASELINES is used like AdaR: it is built from a ModelConfig, run by `trajectory` and scored by
`scores`. To add a baseline, write a class in one of the files here and add
one line to BASELINES. Baselines without training are in `adar_runtime.evaluation.zero_shot_baselines`.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from adar_train.baselines.base import Baseline


class _Baselines(Mapping[str, type[Baseline]]):
    """Classes by name. A class is imported when it is looked up: PyG takes longer to import than PyTorch."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places  # module and class

    def __getitem__(self, name: str) -> type[Baseline]:
        module, _, kind = self._places[name].partition(".")
        found: type[Baseline] = getattr(import_module(f"{__name__}.{module}"), kind)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


BASELINES: Mapping[str, type[Baseline]] = _Baselines(
    {
        "gcn": "pyg_layers.GCN",
        "gat": "pyg_layers.GAT",
        "sage": "pyg_layers.SAGE",
        "gcnii": "pyg_layers.GCNII",
        "appnp": "pyg_layers.APPNP",
        "n2": "n2.N2",
        "fagcn": "heterophily.FAGCN",
        "gprgnn": "heterophily.GPRGNN",
        "h2gcn": "heterophily.H2GCN",
        "gps": "pyg_layers.GraphGPS",
    }
)
"""Trained baselines by their name on the command line (`--baseline`) and in a run's config.json."""

__all__ = ["BASELINES", "Baseline"]
