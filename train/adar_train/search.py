"""Choose the regularisation of a training by successive halving on the validation labels."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from adar_runtime.graph import Graph, SparseRows
from adar_train.trainer import Epoch, Trainer

Settings = dict[str, Any]
"""Fields of ModelConfig and TrainConfig, with the values of a candidate."""

ROUND = 20  # epochs of a round with sparse features; with dense features, differences appear later
DENSE_ROUND = 40
MARGIN = 0.25  # standard errors; two models are validated on the same outputs, so their scores differ by less

SPARSE: list[Settings] = [  # bags of words have many columns and few labels
    {"feature_scaling": "common", "weight_decay": 1e-3, "dropout": 0.3},
    {"feature_scaling": "common", "weight_decay": 1e-4, "dropout": 0.5, "input_dropout": 0.8},
    {"feature_scaling": "common", "weight_decay": 1e-2, "dropout": 0.3},
    {"feature_scaling": "common", "weight_decay": 1e-5, "dropout": 0.2},
    {"feature_scaling": "column", "weight_decay": 1e-6, "dropout": 0.2},
]
DENSE: list[Settings] = [
    {"weight_decay": 1e-6, "dropout": 0.2},
    {"weight_decay": 1e-6, "dropout": 0.3, "label_smoothing": 0.1, "train_steps": 4},
    {"weight_decay": 1e-3, "dropout": 0.3},
]


@dataclass(frozen=True)
class Tried:
    """A candidate: the epochs and seconds that it was trained for, and its best validation metric by then."""

    settings: Settings
    epochs: int
    seconds: float
    val: float


def candidates(graph: Graph, given: Container[str] = ()) -> list[Settings]:
    """The candidates for the features of this graph. Settings that the user has `given` are not searched."""
    kind = SPARSE if isinstance(graph.features, SparseRows) else DENSE
    free = [{name: value for name, value in one.items() if name not in given} for one in kind]
    return [one for index, one in enumerate(free) if one not in free[:index]]


def round_epochs(graph: Graph) -> int:
    """The number of epochs of a round for the features of this graph."""
    return ROUND if isinstance(graph.features, SparseRows) else DENSE_ROUND


def halve(
    choices: Sequence[Settings],
    make: Callable[[Settings], Trainer],
    epochs: int,
    on_epoch: Callable[[Settings, Epoch], None] = lambda *_: None,
) -> tuple[Settings, Trainer, list[Tried]]:
    """Train all candidates for some epochs, keep the better half, and repeat until one is left.

    A candidate that is kept continues where it stopped; the trainer of the last one is returned. The first
    candidate suits most graphs: another one counts as better only by more than `MARGIN` standard errors.
    """
    alive = [(settings, make(settings)) for settings in choices]
    first = alive[0][1]

    def rank(one: tuple[Settings, Trainer]) -> float:
        val = _best(one[1])
        return val if one[1] is first else val - MARGIN * standard_error(one[1], val)

    dropped: list[Tried] = []
    while len(alive) > 1:
        for settings, trainer in alive:
            trainer.advance(epochs, partial(on_epoch, settings))
        alive.sort(key=rank, reverse=True)
        kept = len(alive) // 2
        dropped += [_tried(*one) for one in alive[kept:]]
        alive = alive[:kept]
    ((settings, trainer),) = alive
    return settings, trainer, [_tried(settings, trainer), *reversed(dropped)]


def standard_error(trainer: Trainer, val: float) -> float:
    """The standard error of a validation metric: binomial for accuracy, of Hanley and McNeil for ROC-AUC."""
    known = [
        graph.labels[mask]
        for graph in trainer.graphs
        if (mask := graph.labelled("val", trainer.config.split)) is not None and graph.labels is not None
    ]
    labels = np.concatenate(known)
    if trainer.model.config.regression or not math.isfinite(val):
        return 0.0
    if max(graph.targets for graph in trainer.graphs) != 2:
        return math.sqrt(val * (1 - val) / len(labels))
    positives = max(1, int((labels == 1).sum()))
    negatives = max(1, len(labels) - positives)
    two_positives, two_negatives = val / (2 - val), 2 * val**2 / (1 + val)
    spread = val * (1 - val) + (positives - 1) * (two_positives - val**2)
    spread += (negatives - 1) * (two_negatives - val**2)
    return math.sqrt(max(0.0, spread) / (positives * negatives))


def _best(trainer: Trainer) -> float:
    return -math.inf if trainer.best_val is None else trainer.best_val


def _tried(settings: Settings, trainer: Trainer) -> Tried:
    return Tried(settings, len(trainer.history), round(trainer.seconds, 2), _best(trainer))
