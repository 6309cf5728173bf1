"""The proof that a bundle answers a batch of small graphs as it answers them one by one."""

import math
from collections.abc import Sequence
from copy import copy

import numpy as np

from adar_export.samples import lone_node, random_graph
from adar_export.validate import TOLERANCES
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.bundle.small_graphs import outcomes
from adar_runtime.errors import ExportError
from adar_runtime.graph import Graph
from adar_runtime.loop.result import Result
from adar_runtime.loop.solvers import Euler
from adar_runtime.loop.stopping import AtTime
from adar_runtime.loop.together import Outcome
from adar_train.cell import ModelConfig

BUDGET, STEPS = 300, 6  # few small steps: rounding does not grow, also if the weights make states grow
GRAPHS = 7


def batch_samples(config: ModelConfig) -> list[Graph]:
    """Return small graphs that fit a model with these settings; one of them is a single node."""
    return [random_graph(config, seed) for seed in range(GRAPHS)] + [lone_node(config)]


def compare_batch(bundle: Bundle, graphs: Sequence[Graph]) -> float | None:
    """Run small graphs in one batch and one by one.

    Args:
        bundle: The bundle.
        graphs: The graphs.

    Returns:
        The largest difference of a score, relative to the largest score of its graph. None if the bundle does
        not run batches on this backend.

    Raises:
        ExportError: The difference is above the tolerance of the bundle's precision.
    """
    if bundle.small_graphs is None:
        return None
    rule = AtTime(STEPS / BUDGET)
    single = copy(bundle)
    single.small_graphs = None  # the label check of a pretrained model also runs one by one
    alone = list(outcomes(single, graphs, BUDGET, rule, Euler()))
    together = outcomes(bundle, graphs, BUDGET, rule, Euler())
    found = [_difference(one, other) for one, other in zip(alone, together, strict=True)]
    worst, tolerance = max(found), TOLERANCES[bundle.manifest.precision]
    if not worst <= tolerance:  # true for NaN too
        raise ExportError(
            f"the batched cell and the cell disagree (allowed difference {tolerance:.0e}, largest difference "
            f"{worst:.1e})"
        )
    return worst


def _difference(alone: Outcome, together: Outcome) -> float:
    """The relative difference of the scores; infinite if one of the two runs failed."""
    if isinstance(alone, Result) and isinstance(together, Result):
        largest = max(float(np.abs(alone.scores).max()), 1e-12)
        return float(np.abs(alone.scores - together.scores).max()) / largest
    return math.inf
