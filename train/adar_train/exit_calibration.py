"""How much work the calibration of the exit after a training may take, and the metrics that it gives.

Work is counted in forward steps of the cell on all graphs, not in seconds, so that two trainings with the
same settings calibrate on the same budgets, whatever else the machine does.
"""

from collections.abc import Sequence
from typing import Any

from adar_runtime.graph import Graph
from adar_train.config import FULL, NONE, TrainConfig
from adar_train.data.episodes import NODES
from adar_train.evaluate import exit_metrics, final_exit_metrics
from adar_train.graph_batch import GraphBatch
from adar_train.model import Model
from adar_train.objective import AT_ONCE
from adar_train.tensors import GraphTensors

PART = 0.1  # of the work of the training that a quick calibration may take
TRAINING_STEP = 1.5  # forward steps that take as long as one training step, forward and backward; measured
SCORED_STEP = 1.25  # forward steps that take as long as one step whose outputs are scored; measured


def calibrated_metrics(
    model: Model,
    graphs: Sequence[Graph],
    tensors: Sequence[GraphTensors],
    config: TrainConfig,
    epochs: int,
) -> dict[str, Any]:
    """The metrics of a trained model at its exit, and the exit, calibrated as `config.calibration` says.

    Without calibration, the exit is the end (t = 1), and the metrics are those of the largest budget that
    selected the model.
    """
    how = {"calibration": config.calibration}
    if config.calibration == NONE:
        return how | final_exit_metrics(model, graphs, tensors, max(config.select_budgets), config.split)
    budgets = config.exit_budgets
    if config.calibration != FULL:
        steps = _training_steps(config, graphs, tensors, epochs)
        budgets = quick_budgets(budgets, PART * steps / SCORED_STEP)
    return how | exit_metrics(model, graphs, tensors, budgets, config.split)


def quick_budgets(budgets: Sequence[int], most: float) -> tuple[int, ...]:
    """The budgets that take at most `most` steps together: the smallest, the largest that fits, then others.

    The smallest budget is always chosen.
    """
    smallest, *others = sorted(set(budgets))
    chosen = [smallest]
    largest = max((budget for budget in others if smallest + budget <= most), default=None)
    for budget in [] if largest is None else [largest, *others]:
        if budget not in chosen and sum(chosen) + budget <= most:
            chosen.append(budget)
    return tuple(sorted(chosen))


def _training_steps(
    config: TrainConfig, graphs: Sequence[Graph], tensors: Sequence[GraphTensors], epochs: int
) -> float:
    """The work of a training in forward steps on all graphs."""
    steps = TRAINING_STEP * config.train_steps * epochs
    if config.episodes:  # an episode is a small part of the graphs
        steps *= min(1.0, sum(NODES) / 2 / sum(graph.nodes for graph in graphs))
    elif any(isinstance(tensor, GraphBatch) for tensor in tensors):  # an epoch has a few of the batches
        steps *= min(1.0, AT_ONCE / len(tensors))
    return steps + epochs // config.evaluate_every * sum(config.select_budgets)
