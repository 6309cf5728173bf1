"""The proof that the phases of a step, over nodes in shards, give the states of the cell."""

from collections.abc import Sequence

import numpy as np

from adar_export.samples import random_graph
from adar_export.validate import TOLERANCES
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.errors import ExportError
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.schedule import shared_step_code
from adar_runtime.loop.solvers import Euler
from adar_runtime.phases.in_context_step import state_in_shards
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.sharded_step import shards_of
from adar_train.cell import ModelConfig

BUDGET, STEPS = 300, 6  # as in `batch_proof`
GRAPHS, SHARDS = 2, 3


def phase_samples(config: ModelConfig) -> list[Graph]:
    """Graphs for the comparison with a model of these settings."""
    return [random_graph(config, seed) for seed in range(GRAPHS)]


def compare_phases(bundle: Bundle, graphs: Sequence[Graph]) -> float | None:
    """Make a few steps with the cell and with the phases.

    Args:
        bundle: The bundle.
        graphs: Graphs that fit the bundle.

    Returns:
        The largest difference of a movement, relative to the largest movement. None if the bundle has no
        phases, or if they do not run on the CPU (bf16).

    Raises:
        ExportError: The difference is above the tolerance of the bundle's precision.
    """
    manifest = bundle.manifest
    if manifest.phases is None or manifest.precision == "bf16":
        return None
    models = PhaseModels(bundle.path, manifest, bundle.threads, known=bundle.is_made_here)
    worst = max(_difference(bundle, models, graph) for graph in graphs)
    tolerance = TOLERANCES[manifest.precision]
    if not worst <= tolerance:  # true for NaN too
        raise ExportError(
            f"the phases of a step and the cell disagree (allowed difference {tolerance:.0e}, largest "
            f"difference {worst:.1e})"
        )
    return worst


def _difference(bundle: Bundle, models: PhaseModels, graph: Graph) -> float:
    """The difference of the movements in some steps, relative to the largest movement."""
    prepared = bundle.prepare(graph)
    cell = bundle.backend.start(prepared)
    shards = shards_of(prepared.neighbours, np.arange(graph.nodes) % SHARDS)
    first = cell.state()
    phases = state_in_shards(models, shards, cell.state(), prepared.known)
    for move in Euler().moves(0.0, STEPS / BUDGET, 1 / BUDGET):
        code = shared_step_code(move.time, bundle.manifest.hidden)
        cell.step(code, move)
        phases.step(code, move)
    return max(
        _relative(array - phases.state[name], array - first[name], array)
        for name, array in cell.state().items()
    )


def _relative(difference: Floats, movement: Floats, state: Floats) -> float:
    """A state that hardly moves is rounded: the difference is relative to a thousandth of it, at least."""
    largest = max(float(np.abs(movement).max()), 1e-3 * float(np.abs(state).max()), 1e-12)
    return float(np.abs(difference).max()) / largest
