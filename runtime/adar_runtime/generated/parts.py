"""What the families have in common."""

from typing import Any

import numpy as np

from adar_runtime.errors import UsageError
from adar_runtime.graph import Integers


def split(random: np.random.Generator, outputs: int, asked: Integers | None = None) -> dict[str, Any]:
    """A random 50/25/25 split of the outputs, or of those that have a label."""
    count = outputs if asked is None else len(asked)
    train, val = count // 2, count // 4
    part = random.permutation(np.repeat([0, 1, 2], [train, val, count - train - val]))
    if asked is not None:
        everyone = np.full(outputs, -1)
        everyone[asked] = part
        part = everyone
    return {name: part == number for number, name in enumerate(("train_mask", "val_mask", "test_mask"))}


def both_ways(sources: Integers, targets: Integers) -> Integers:
    """Edges in both directions: [2, 2m]."""
    there = np.stack([sources, targets])
    return np.concatenate([there, there[::-1]], axis=1)


def require_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a setting that makes no graph."""
    if not low <= value <= high:
        raise UsageError(f"{name} is {value:g}: choose {low:g} to {high:g}")
