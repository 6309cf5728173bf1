"""Per-node exit: each node answers from where its own alignment peaked. docs/runtime.md says at what cost."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from adar_runtime.errors import UsageError
from adar_runtime.evaluation.zero_shot_baselines import cosines
from adar_runtime.graph import NODE, Floats
from adar_runtime.loop.loop import Loop, Result, Step
from adar_runtime.loop.schedule import time_at
from adar_runtime.loop.stopping import StopReason


def freeze_at_own_peaks(
    loop: Loop, patience: int = 10, on_step: Callable[[Step], None] = lambda _: None
) -> Result:
    """Run a loop to its end; a node's scores are those of its own peak, or the last ones where it has none.

    A node's peak is as `Peak` has it: climbed to, and not exceeded for `patience` steps.
    """
    if loop.manifest.level != NODE or loop.manifest.regression:
        raise UsageError("a per-node exit is for classes of nodes: use another --exit")
    if patience < 1:
        raise UsageError(f"patience is {patience}: wait for at least 1 step")
    wait = time_at(patience, loop.budget, unit_step=loop.manifest.unit_step)
    own: _OwnPeaks | None = None
    for step in loop:
        state = step.state()
        margin, scores = margins(state["nodes"], state["targets"]), step.scores()
        own = own or _OwnPeaks(margin, scores, wait)
        own.watch(step.time, margin, scores)
        on_step(step)
    if own is None:
        raise UsageError("the loop has come to its end: start a new one")
    return replace(loop.result(), scores=own.answer(), stop_reason=StopReason.PER_NODE)


def margins(nodes: Floats, targets: Floats) -> Floats:
    """How far the nearest target is ahead of the mean one, for each node [n]: its cosine margin."""
    cos = cosines(nodes, targets - targets.mean(axis=0))
    return cos.max(axis=1) - cos.mean(axis=1)


class _OwnPeaks:
    """The best state of each node so far."""

    def __init__(self, margin: Floats, scores: Floats, patience: float) -> None:
        self._patience = patience
        self._last, self._scores = margin, scores.copy()
        self._current = scores
        self._best = np.full_like(margin, -np.inf)
        self._time = np.zeros(len(margin))

    def watch(self, time: float, margin: Floats, scores: Floats) -> None:
        """A node whose peak is long past is not looked at again."""
        frozen = np.isfinite(self._best) & (time - self._time >= self._patience - 1e-9)
        risen = (margin > np.maximum(self._last, self._best)) & ~frozen
        self._best[risen], self._time[risen] = margin[risen], time
        self._scores[risen] = scores[risen]
        self._last, self._current = margin, scores

    def answer(self) -> Floats:
        """Scores of each node's peak; of the last state where it never rose."""
        return np.where(np.isfinite(self._best)[:, None], self._scores, self._current)
