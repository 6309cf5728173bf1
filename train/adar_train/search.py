"""Choose the regularisation of a training by successive halving on the validation labels.

The candidates differ in what depends on the graph in the trials of `benchmarks/recipe.md`: smoothing, the
scaling of features and of the first states, weight decay, dropout, and the length of the trajectories.
"""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from adar_runtime.errors import DivergedError
from adar_runtime.graph import Graph
from adar_train.cell import COLUMN
from adar_train.trainer import Epoch, Trainer

Settings = dict[str, Any]
"""Fields of ModelConfig and TrainConfig, with the values of a candidate."""

Candidate = tuple[Settings, Trainer]
OnEpoch = Callable[[Settings, Epoch], None]
OnDrop = Callable[[Settings, DivergedError], None]

WIDE_FROM = 65  # columns from which features are words or embeddings, which tell more than the neighbours do
ROUND = 40  # epochs of a round; after 20, settings that learn fast are ahead of better ones
LAST_ROUND = {True: 80, False: 160}  # epochs of winner and challenger, with wide features or not
FINAL = 0.35  # share of all epochs after which two finalists are compared
FEWEST_EPOCHS = 100  # of a training with a search: with fewer epochs, a search would be most of the work
MARGIN = 0.25  # standard errors; two models are validated on the same outputs, so their scores differ by less

WIDE: list[Settings] = [  # many columns and few labels
    {"feature_scaling": "common", "weight_decay": 1e-3, "dropout": 0.3},
    {"feature_scaling": "common", "input_norm": True, "weight_decay": 1e-3, "dropout": 0.3, "smoothing": 2},
    {
        "feature_scaling": "common",
        "input_norm": True,
        "weight_decay": 1e-4,
        "dropout": 0.5,
        "input_dropout": 0.8,
    },
    {"feature_scaling": "common", "weight_decay": 1e-2, "dropout": 0.3},
    {"feature_scaling": "common", "weight_decay": 1e-5, "dropout": 0.2},
    {"feature_scaling": "column", "weight_decay": 1e-6, "dropout": 0.2},
]
NARROW: list[Settings] = [
    {"weight_decay": 1e-6, "dropout": 0.2},
    {"weight_decay": 1e-3, "dropout": 0.3},
]
SLOWER: Settings = {"lr": 3e-3}
STRONGER: Settings = {"dropout": 0.3, "label_smoothing": 0.1, "train_steps": 4}
"""What a challenger changes in the winner's settings, with many columns and with few. Both changes are behind
in short rounds, even where they win in the end."""


@dataclass(frozen=True)
class Tried:
    """A candidate: the epochs and seconds that it was trained for, and its best validation metric by then.

    The metric is None if there is none, because the candidate diverged.
    """

    settings: Settings
    epochs: int
    seconds: float
    val: float | None


def is_wide(graph: Graph) -> bool:
    """Whether the features of a graph have many columns."""
    return graph.width >= WIDE_FROM


def candidates(graph: Graph, given: Container[str] = ()) -> list[Settings]:
    """The candidates for the features of this graph. Settings that the user has `given` are not searched."""
    kind = WIDE if is_wide(graph) else NARROW
    free = [{name: value for name, value in one.items() if name not in given} for one in kind]
    return [one for index, one in enumerate(free) if one not in free[:index]]


def challenger(graph: Graph, given: Container[str] = ()) -> Settings:
    """What a challenger changes in the winner's settings; empty if there is none."""
    change = SLOWER if is_wide(graph) else STRONGER
    return {name: value for name, value in change.items() if name not in given}


def last_round(graph: Graph) -> int:
    """The number of epochs after which the winner and its challenger are compared."""
    return LAST_ROUND[is_wide(graph)]


def final_round(epochs: int) -> int:
    """The number of epochs after which finalists are compared, in a training with `epochs` epochs."""
    return round(FINAL * epochs)


def has_final(choices: Sequence[Settings]) -> bool:
    """Whether a search of these candidates can end with a final."""
    return len({one.get("feature_scaling") for one in choices}) > 1


def search_epochs(count: int, epochs: int, last: int = 0, final: int = 0) -> int:
    """The epochs of all candidates together in a search with rounds of `epochs`.

    `last` is the number of epochs of winner and challenger, or 0 if there is no challenger; `final` that of
    the finalists, of which one has had the rounds alone.
    """
    total, winner = 0, 0
    while count > 1:
        total, winner, count = total + count * epochs, winner + epochs, count // 2
    if not winner:
        return 0
    finalists = max(0, final - winner) + max(0, final - max(winner, last)) if final else 0
    return total + max(0, last - winner) + last + finalists


@dataclass(frozen=True)
class SearchPlan:
    """What a training tries before it keeps one candidate. One choice or none is no search."""

    choices: Sequence[Settings] = ()
    challenger: Settings = field(default_factory=dict)
    epochs: int = 0  # of all candidates together, at most

    def first_only(self) -> "SearchPlan":
        """The plan of a training with the first candidate and without a search."""
        return SearchPlan(self.choices[:1])


NO_SEARCH = SearchPlan()


def plan_search(graph: Graph, given: Container[str], epochs: int) -> SearchPlan:
    """The search of a training with `epochs` epochs. Settings that the user has `given` are not searched."""
    choices = candidates(graph, given)
    if len(choices) < 2:
        return SearchPlan(choices)
    rival = challenger(graph, given)
    finalists = final_round(epochs) if has_final(choices) else 0
    last = last_round(graph) if rival else 0
    return SearchPlan(choices, rival, search_epochs(len(choices), ROUND, last, finalists))


def settings_line(settings: Settings) -> str:
    """Settings of a candidate in one line."""
    words = {name: name.replace("_", " ") for name in settings}
    return ", ".join(
        words[name] if value is True else f"{words[name]} {value}" for name, value in settings.items()
    )


def halve(
    choices: Sequence[Settings],
    make: Callable[[Settings], Trainer],
    epochs: int,
    on_epoch: OnEpoch = lambda *_: None,
    on_drop: OnDrop = lambda *_: None,
) -> tuple[list[Candidate], list[Tried]]:
    """Train all candidates for some epochs, keep the better half, and repeat until one is left.

    A candidate that is kept continues where it stopped. Returned are the candidates of the last round, the
    winner first, and all others. The first candidate suits most graphs: another one counts as better only by
    more than `MARGIN` standard errors. A candidate that diverges is dropped, and `on_drop` receives it.

    Raises:
        DivergedError: If all candidates diverge.
    """
    alive = [(settings, make(settings)) for settings in choices]
    first = alive[0][1]

    def rank(one: Candidate) -> float:
        val = _best(one[1])
        return val if one[1] is first else val - MARGIN * standard_error(one[1], val)

    dropped: list[Tried] = []
    finite = alive
    while len(alive) > 1:
        dropped += [tried(*one) for one in reversed(finite[len(alive) :])]
        finite = []
        for settings, trainer in alive:
            try:
                trainer.advance(epochs, partial(on_epoch, settings))
                finite.append((settings, trainer))
            except DivergedError as error:
                if not finite and trainer is alive[-1][1]:
                    raise
                on_drop(settings, error)
                dropped.append(tried(settings, trainer))
        finite.sort(key=rank, reverse=True)
        alive = finite[: max(1, len(alive) // 2)]
    return finite, dropped[::-1]


def challenge(
    winner: Candidate,
    change: Settings,
    make: Callable[[Settings], Trainer],
    epochs: int,
    on_epoch: OnEpoch = lambda *_: None,
    on_drop: OnDrop = lambda *_: None,
) -> tuple[Candidate, Tried]:
    """Compare the winner of a search with its challenger after these epochs: the better one, and the other.

    The challenger has the winner's settings with a `change`, and gains later than the winner does.
    """
    settings = winner[0] | change
    return _compare(winner, (settings, make(settings)), epochs, on_epoch, on_drop)


def rival(candidates: Sequence[Candidate]) -> Candidate | None:
    """The best candidate that scales the features in another way than the first one; None without one."""
    first = candidates[0][0].get("feature_scaling")
    return next((one for one in candidates if one[0].get("feature_scaling") != first), None)


def final(
    finalists: Sequence[Candidate],
    epochs: int,
    on_epoch: OnEpoch = lambda *_: None,
    on_drop: OnDrop = lambda *_: None,
) -> tuple[Candidate, Tried]:
    """Compare two candidates after many epochs: the better one, and the other.

    Features with one factor for each column are learned more slowly than those with one for all.
    """
    early, late = sorted(finalists, key=lambda one: one[0].get("feature_scaling") == COLUMN)
    return _compare(early, late, epochs, on_epoch, on_drop)


def _compare(
    early: Candidate, late: Candidate, epochs: int, on_epoch: OnEpoch, on_drop: OnDrop
) -> tuple[Candidate, Tried]:
    """The better of two candidates after these epochs, and the other.

    The `late` one gains later, so it is the better one unless it is behind by more than `MARGIN` standard
    errors.
    """
    pair = (early, late)
    kept = []
    for one in pair:
        try:
            one[1].advance(epochs - len(one[1].history), partial(on_epoch, one[0]))
            kept.append(one)
        except DivergedError as error:
            if one is late and not kept:
                raise
            on_drop(one[0], error)
    better = kept[-1]
    if len(kept) == 2:
        val = _best(early[1])
        better = early if _best(late[1]) < val - MARGIN * standard_error(early[1], val) else late
    return better, tried(*pair[better is early])


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


def tried(settings: Settings, trainer: Trainer) -> Tried:
    """What is reported of a candidate."""
    return Tried(settings, len(trainer.history), round(trainer.seconds, 2), trainer.best_val)
