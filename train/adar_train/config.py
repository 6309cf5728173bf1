"""How to train: every setting with its reason, and the named sets of them."""

import math
from dataclasses import dataclass, replace
from typing import Any

from adar_runtime.errors import UsageError
from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_train.time_grids import GRIDS


@dataclass(frozen=True)
class TrainConfig:
    """One training. The defaults are our own recipe for one graph with labels."""

    epochs: int = 200
    train_steps: int = 8  # S while training
    grid: str = "budget"  # which times the steps are at: see grids.py
    lr: float = 1e-2
    warmup: int = 20  # epochs until the learning rate is reached
    decay: bool = True  # then let it fall to zero along a cosine
    beta2: float = 0.95  # Adam's memory of squared gradients; short, since there is one batch an epoch
    weight_decay: float = 1e-6
    clip: float = 1.0  # largest norm of the gradient
    label_smoothing: float = 0.0
    middle_weight: float = 0.0  # of the task's loss at one step on the way, drawn anew each epoch
    episodes: bool = False  # train each epoch on a small task cut out of one of the graphs
    step_weight: float = 0.0  # of L_step
    full_weight: float = 0.0  # of L_full
    seed: int = 0
    split: int = 0
    evaluate_every: int = 10  # epochs
    select_budgets: tuple[int, ...] = (8, 32)  # a model is as good as its worst score over these
    exit_budgets: tuple[int, ...] = PAPER_BUDGETS  # the exit is calibrated on every step of these
    gradient_checkpoints: bool = False  # keep one state a step and compute the rest again: less memory
    mixed_precision: bool | None = None  # bfloat16 products while training; None: on CUDA

    def __post_init__(self) -> None:
        for name in ("epochs", "train_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name.replace('_', '-')} is {getattr(self, name)}: it has to be at least 1"
                )
        if not self.lr > 0:
            raise UsageError(f"lr is {self.lr}: it has to be positive")
        if self.grid not in GRIDS:
            raise UsageError(f"there is no grid {self.grid!r}: choose {', '.join(GRIDS)}")
        if min((*self.select_budgets, *self.exit_budgets), default=0) < 1:
            raise UsageError("a budget has to be at least 1 step")

    def lr_factor(self, epoch: int) -> float:
        """By how much the learning rate is scaled in an epoch, counted from 0."""
        rising = min(1.0, (epoch + 1) / max(1, self.warmup))
        return rising * (0.5 * (1 + math.cos(math.pi * epoch / self.epochs)) if self.decay else 1.0)


OURS_ZERO_SHOT = {
    "epochs": 120,
    "warmup": 0,
    "beta2": 0.999,
    "weight_decay": 0.0,
    "clip": math.inf,
    "middle_weight": 0.5,
    "episodes": True,
    "evaluate_every": 60,
    "exit_budgets": (8, 50, 300),
}
"""Our own recipe where graphs describe their classes: few numbers are learned, from many small tasks."""

PAPER = {
    "grid": "fixed",
    "decay": False,
    "warmup": 0,
    "beta2": 0.999,
    "clip": math.inf,
    "step_weight": 1.0,
    "full_weight": 1.0,
}

PRESETS: dict[str, dict[str, Any]] = {
    "transductive": PAPER | {"epochs": 1000, "lr": 1e-3, "train_steps": 8},
    "zero-shot": PAPER | {"epochs": 10_000, "lr": 1e-4, "train_steps": 8},
}
"""The paper's settings, by the setting of its experiments."""


SEARCH: dict[str, tuple[Any, ...]] = {"train_steps": (2, 4, 8), "dropout": (0.0, 0.1, 0.2, 0.3)}
"""What the paper chooses on the validation split, for one graph with labels."""


def preset(name: str | None = None, *, described: bool = False, **overrides: Any) -> TrainConfig:
    """The settings of that name, or our own for graphs that describe their classes or do not.

    Settings that are given take the place of the preset's.
    """
    if name is not None and name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}: choose {', '.join(PRESETS)}")
    ours = OURS_ZERO_SHOT if described else {}
    return replace(TrainConfig(), **(ours if name is None else PRESETS[name]) | overrides)
