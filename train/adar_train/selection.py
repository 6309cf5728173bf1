"""Which epoch of a training is kept: the one with the best mean of consecutive validations.

The highest of many noisy validations is partly noise, the more so the more of them there are. Neighbouring
epochs have nearly the same averaged weights, so the mean of their validations is less noisy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Scored(NamedTuple):
    """An epoch with a validation, and the mean of its last validations."""

    epoch: int
    score: float


def scored_epochs(history: Sequence[Mapping[str, Any]], window: int) -> list[Scored]:
    """The epochs that can be kept, with the mean over their last `window` validations.

    An epoch with fewer validations is not compared with others. While no epoch has `window` validations, the
    last validated epoch is the only one.

    Examples:
        >>> history = [{"epoch": i, "val": val} for i, val in enumerate([0.9, 0.5, 0.6, 0.7], start=1)]
        >>> scored_epochs(history, 2)[-1]
        Scored(epoch=4, score=0.65)
        >>> [one.epoch for one in scored_epochs(history, 2)], [one.epoch for one in scored_epochs(history, 9)]
        ([2, 3, 4], [4])
    """
    found = [(row["epoch"], row["val"]) for row in history if "val" in row]
    size = min(window, len(found))
    if not size:
        return []
    groups = (found[end - size : end] for end in range(size, len(found) + 1))
    return [Scored(group[-1][0], sum(val for _, val in group) / size) for group in groups]


def kept_epoch(history: Sequence[Mapping[str, Any]], window: int) -> Scored | None:
    """The first epoch with the best score; None before the first validation."""
    return max(scored_epochs(history, window), key=lambda one: (one.score, -one.epoch), default=None)
