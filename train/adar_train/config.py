"""Training settings: TrainConfig, the presets, and the grid of `--search`."""

import math
from dataclasses import dataclass, replace
from typing import Any

from adar_runtime.errors import UsageError
from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_train.time_grids import GRIDS

EQUAL, BALANCED = CLASS_WEIGHTS = ("none", "balanced")
QUICK, FULL, NONE = CALIBRATIONS = ("quick", "full", "none")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training. The defaults are the preset "quick"; `preset()` gives our default recipe.

    Attributes:
        epochs: Number of epochs. One epoch is one optimiser step over all training graphs. 200 is
            enough with the high learning rate and its decay; the paper trains 1,000 at a constant 1e-3.
        train_steps: Number of steps S of a trajectory while training. 8 is the paper's choice. The number
            of steps at inference is independent of this number.
        grid: Name of the rule that chooses the times of the steps (`time_grids.GRIDS`). "budget" draws S
            around `train_steps` in each epoch, so that the model does not overfit to one step size.
        lr: Highest learning rate of Adam. 1e-2 needs `warmup` and `decay`.
        warmup: Number of epochs in which the learning rate rises linearly to `lr`. 0 turns warm-up off.
        decay: Whether the learning rate falls to zero along a cosine over all epochs.
        flat_epochs: Number of epochs, warm-up included, before the cosine starts to fall.
        beta2: Adam's decay rate of the squared gradients. 0.95 forgets faster than Adam's usual 0.999,
            because an epoch has only one optimiser step.
        weight_decay: Adam's L2 penalty on all weights.
        clip: Largest norm of the gradient; larger gradients are scaled down. `math.inf` turns clipping off.
        ema_decay: Share of the average of the weights that an epoch keeps. The averaged weights are validated
            and kept, not those of the optimiser. 0 turns averaging off.
        patience: Number of epochs without a better validation after which training stops. 0 never stops.
        label_smoothing: Share of each class label that is spread evenly over all classes, 0 to 1.
        middle_weight: Weight of the task loss at one random intermediate step of the trajectory. 0 turns
            it off: only the last step is trained.
        episodes: Whether each epoch trains on a small task drawn from one of the graphs, instead of on
            all graphs whole. Needs graphs that describe their classes.
        step_weight: Weight of L_step, which pulls each step towards the gradient of the task loss. 1 in
            the paper. With it, the peak of the mean inner product is a good step to stop at.
        full_weight: Weight of L_full, the same for the whole trajectory. 1 in the paper.
        fading_losses: Whether the weights of L_step and L_full fall together with the learning rate. The
            first epochs learn to follow the gradient, the last ones only the labels.
        seed: Seed of the weights, dropout, times and episodes.
        split: Number of the split to train on, from 0, for graphs with several splits.
        evaluate_every: Number of epochs between two validations. The last epoch is always validated.
        select_budgets: Budgets (numbers of steps) of a validation. The score of a model is its worst over
            these budgets; the weights with the best score are kept. 8 and 32 cover few and many steps.
        exit_budgets: Budgets on which the exit rule is calibrated after training, every step of each. The
            default is the paper's list.
        gradient_checkpoints: Whether to store one state per step and recompute the rest in the backward
            pass: less memory, more time, the same gradients up to rounding.
        mixed_precision: Whether matrix products use bfloat16 while training. None means: where it is faster,
            on CUDA, and for large graphs on processors with instructions for it.
        class_weights: "none", or "balanced": labels of rare classes have larger weights in the loss, inverse
            to the number of training labels of the class.
        calibration: How the exit rule is calibrated after training. "full": on all `exit_budgets`. "quick",
            the choice of `preset`: on as many of them as fit into a tenth of the training time, but at least
            on the smallest. "none": not at all, the exit is t = 1.

    Raises:
        UsageError: If a value is out of range.

    Example:
        >>> TrainConfig(epochs=500, lr=3e-3).epochs
        500
    """

    epochs: int = 200
    train_steps: int = 8
    grid: str = "budget"
    lr: float = 1e-2
    warmup: int = 20
    decay: bool = True
    flat_epochs: int = 0
    beta2: float = 0.95
    weight_decay: float = 1e-6
    clip: float = 1.0
    ema_decay: float = 0.0
    patience: int = 0
    label_smoothing: float = 0.0
    middle_weight: float = 0.0
    episodes: bool = False
    step_weight: float = 0.0
    full_weight: float = 0.0
    fading_losses: bool = False
    seed: int = 0
    split: int = 0
    evaluate_every: int = 10
    select_budgets: tuple[int, ...] = (8, 32)
    exit_budgets: tuple[int, ...] = PAPER_BUDGETS
    gradient_checkpoints: bool = False
    mixed_precision: bool | None = None
    class_weights: str = EQUAL
    calibration: str = FULL

    def __post_init__(self) -> None:
        for name in ("epochs", "train_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name.replace('_', '-')} is {getattr(self, name)}, but it must be at least 1"
                )
        check_lr(self.lr)
        for name in ("flat_epochs", "patience"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}, but it must be at least 0")
        if not 0 <= self.ema_decay < 1:
            raise UsageError(f"ema_decay is {self.ema_decay}, but it must be at least 0 and below 1")
        if self.grid not in GRIDS:
            raise UsageError(f"unknown grid {self.grid!r}: choose one of {', '.join(GRIDS)}")
        for name, known in (("class_weights", CLASS_WEIGHTS), ("calibration", CALIBRATIONS)):
            if getattr(self, name) not in known:
                raise UsageError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(known)}")
        if min((*self.select_budgets, *self.exit_budgets), default=0) < 1:
            raise UsageError("select_budgets and exit_budgets must be numbers of steps of at least 1")

    def lr_factor(self, epoch: int) -> float:
        """The factor on the learning rate in an epoch, counted from 0."""
        rising = min(1.0, (epoch + 1) / max(1, self.warmup))
        if not self.decay:
            return rising
        falling, length = max(0, epoch - self.flat_epochs), max(1, self.epochs - self.flat_epochs)
        return rising * (0.5 * (1 + math.cos(math.pi * falling / length)))


OURS: dict[str, Any] = {
    "epochs": 700,
    "flat_epochs": 40,
    "ema_decay": 0.98,
    "patience": 100,
    "step_weight": 0.02,
    "full_weight": 0.02,
    "fading_losses": True,
}
"""Our recipe for learned targets; `search.py` chooses the regularisation."""

OURS_WIDE: dict[str, Any] = OURS | {"epochs": 400, "step_weight": 0.1, "full_weight": 0.1}
"""The same for many feature columns: they are learned sooner, and a larger weight regularises."""

OURS_SMALL: dict[str, Any] = OURS | {"epochs": 200}
"""The same for many small graphs: an epoch is a step on a few hundred of them."""

OURS_ZERO_SHOT: dict[str, Any] = {
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
"""Our recipe for graphs that describe their classes: few weights are learned, from many small tasks."""

PAPER: dict[str, Any] = {
    "grid": "fixed",
    "decay": False,
    "warmup": 0,
    "beta2": 0.999,
    "clip": math.inf,
    "step_weight": 1.0,
    "full_weight": 1.0,
}
"""The common part of the paper's presets: fixed times t = s/S, a constant learning rate, all three losses."""

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {},
    "transductive": PAPER | {"epochs": 1000, "lr": 1e-3, "train_steps": 8},
    "zero-shot": PAPER | {"epochs": 10_000, "lr": 1e-4, "train_steps": 8},
}
"""By name. "quick" is for a first look; "transductive" and "zero-shot" are the paper's experiments."""

SEARCH: dict[str, tuple[Any, ...]] = {"train_steps": (2, 4, 8), "dropout": (0.0, 0.1, 0.2, 0.3)}
"""The settings that the paper chooses on the validation split, for one graph with labels."""


def check_lr(lr: float) -> None:
    """Refuse a learning rate that is not a positive number."""
    if not 0 < lr < math.inf:
        raise UsageError(f"lr is {lr}, but it must be positive and finite")


def preset(
    name: str | None = None,
    *,
    described: bool = False,
    wide: bool = False,
    small: bool = False,
    **overrides: Any,
) -> TrainConfig:
    """The settings of a preset or, without a name, of our recipe.

    Args:
        name: A key of PRESETS, or None for our recipe.
        described: Whether the settings are for graphs that describe their classes. For them, "quick" is our
            recipe.
        wide: Whether the features have many columns (`search.is_wide`).
        small: Whether there are many small graphs (`graph_batch.are_small`).
        **overrides: Fields of TrainConfig that replace those of the preset.

    Raises:
        UsageError: If there is no preset of that name.
    """
    if name is not None and name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    if name in (None, "quick") and described:
        chosen = OURS_ZERO_SHOT
    elif name is None:
        chosen = OURS_SMALL if small else OURS_WIDE if wide else OURS
    else:
        chosen = PRESETS[name]
    return replace(TrainConfig(), **{"calibration": QUICK} | chosen | overrides)
