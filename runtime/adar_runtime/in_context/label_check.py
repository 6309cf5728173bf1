"""Known labels decide how strongly a pretrained model moves a graph from its closed-form start.

Each known label is hidden once. The model predicts it from the other labels, and so does the start alone. The
strength is a factor of every move. It is 0, and the answer is that of the start, if the labels show that the
moves do harm.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adar_runtime.graph import Floats, Integers, Mask

FOLDS = 3  # parts of the labels that are hidden in turn
STEPS = 8  # of the model for each part
STRENGTHS = (1.0, 0.0)  # of the moves: all of them, or none
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of scores: only their order and their ratios count


@dataclass(frozen=True)
class LabelCheck:
    """What hidden labels say about the moves of a pretrained model.

    Attributes:
        strength: The factor of every move: 1 for the whole model, 0 for the closed-form start.
        labels: Known labels that were hidden once.
        right: Hidden labels that the chosen strength predicted.
        right_at_start: Hidden labels that the closed-form start predicted.
        is_chance: Whether the start is the free baseline, because the rest was no better than chance.
    """

    strength: float
    labels: int
    right: int
    right_at_start: int
    is_chance: bool = False

    def __str__(self) -> str:
        hidden = f"{self.labels:,} hidden labels"
        if self.is_chance:
            return (
                f"strength 0: the known labels hardly tell the classes apart, so class means and ridge "
                f"regression answer; they predicted {self.right:,} of {hidden} correctly"
            )
        if not self.strength:
            return f"strength 0: the closed-form start alone predicted {self.right:,} of {hidden} correctly"
        return (
            f"strength {self.strength:g}: the model predicted {self.right:,} of {hidden} correctly, the "
            f"closed-form start alone {self.right_at_start:,}"
        )


def folds(labels: Integers) -> Iterator[Mask]:
    """Parts of the known labels [n], to hide in turn. Every class keeps a label; -1 is unknown.

    Yields nothing if no class has two labels.
    """
    part = np.full(len(labels), -1)
    for number in range(int(labels.max(initial=-1)) + 1):
        members = np.flatnonzero(labels == number)
        if len(members) > 1:
            part[members] = np.arange(len(members)) % FOLDS
    for number in range(int(part.max(initial=-1)) + 1):
        yield part == number


def chosen(scores: Mapping[float, Floats], labels: Integers, *, is_chance: bool = False) -> LabelCheck:
    """Choose the strength by the scores [l, c] of hidden labels [l] for each strength.

    The model moves unless its loss on the hidden labels is above that of the start by more than a standard
    error, or the start is the free baseline (`is_chance`). A few labels are noisy, and on most graphs the
    moves help.
    """
    gains = losses_of(scores[0.0], labels) - losses_of(scores[1.0], labels)
    best = 0.0 if is_chance or gains.mean() < -gains.std() / len(gains) ** 0.5 else 1.0
    right = {strength: int((each.argmax(axis=1) == labels).sum()) for strength, each in scores.items()}
    return LabelCheck(best, len(labels), right[best], right[0.0], is_chance)


def losses_of(scores: Floats, labels: Integers) -> NDArray[np.float64]:
    """The cross-entropy of each label, with the factor of all scores that gives the lowest mean."""
    found = []
    for factor in FACTORS:
        logits = factor * (scores - scores.max(axis=1, keepdims=True)).astype(np.float64)
        found.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels])
    return min(found, key=lambda losses: float(losses.mean()))
