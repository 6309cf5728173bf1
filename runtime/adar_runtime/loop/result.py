"""The answer for one graph."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from adar_runtime.graph import Floats, Graph, Integers
from adar_runtime.loop.stopping import StopReason

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.evaluation.drift import Drift


@dataclass(frozen=True, eq=False)
class Result:
    """The answer for one graph, and how the loop reached it.

    Attributes:
        scores: Scores of each output before softmax, or predicted numbers in regression, [k, c].
        alignment: Alignment of every state, starting with the untouched input.
        times: Time of each of these states. The last time may be smaller than earlier ones: the loop returned
            to a peak between two states.
        budget: Euler steps in the total time.
        best_step: Index of the state that the scores come from, in `alignment` and `times`: the number of
            cell calls made up to that state. With Euler's method this is the step of the budget.
        stop_reason: Why the loop stopped.
        backend: Name of the backend that ran the loop.
        timings: Seconds of each phase: prepare (build the inputs, encode), loop, head.
        regression: The scores are numbers, not classes.
        class_names: Name of each class [c], from the model or from a graph that describes its classes.
        compared: The manifest and the graph that `drift` compares; None for a result without them.

    Examples:
        >>> result = bundle.run(graph, budget=300)  # doctest: +SKIP
        >>> result.predictions[:3], result.stop_reason.value  # doctest: +SKIP
        (array([0, 2, 1]), 'the alignment passed its peak')
    """

    scores: Floats
    alignment: list[float]
    times: list[float]
    budget: int
    best_step: int
    stop_reason: StopReason
    backend: str
    timings: dict[str, float]
    regression: bool = False
    class_names: tuple[str, ...] | None = None
    compared: "tuple[Manifest, Graph] | None" = field(default=None, repr=False)

    @cached_property
    def drift(self) -> "Drift | None":
        """How the graph differs from the training data; None if the bundle has no statistics of them.

        Computed when it is first read: reading 10,000 nodes takes milliseconds.

        Raises:
            BundleError: The statistics in the bundle are damaged.
        """
        from adar_runtime.evaluation.drift import compare

        return None if self.compared is None else compare(*self.compared, self)

    @property
    def seconds(self) -> float:
        """Seconds spent on this graph, without the caller's own time between steps."""
        return sum(self.timings.values())

    @property
    def steps(self) -> int:
        """Cell calls made, the same as `cell_calls`. With Euler's method, the steps of the budget."""
        return len(self.alignment) - 1

    @property
    def cell_calls(self) -> int:
        """Cell calls made."""
        return self.steps

    @property
    def best_time(self) -> float:
        """Time of the state that the scores come from."""
        return self.times[self.best_step]

    @property
    def predictions(self) -> Integers | Floats:
        """The class of each output [k]; in regression, its numbers [k, c]."""
        return self.scores if self.regression else self.scores.argmax(axis=1)

    @property
    def probabilities(self) -> Floats | None:
        """Softmax of the scores [k, c]; None in regression."""
        if self.regression:
            return None
        powers = np.exp(self.scores - self.scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
