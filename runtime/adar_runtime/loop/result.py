"""The answer for one graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adar_runtime import summaries
from adar_runtime.backends import Capture
from adar_runtime.errors import UsageError, import_package, short
from adar_runtime.graph import Floats, Graph, Ids, Integers, Mask
from adar_runtime.graph import _checks as checks
from adar_runtime.in_context.label_check import LabelCheck
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
        ids: Ids of the nodes [k] or of the pairs [2, k], from the graph; None if it has no ids.
        outputs: Which outputs of the graph the scores are for [k]; None for all of them, in order.
        compared: The manifest and the graph that `drift` compares; None for a result without them.
        capture: Whether steps ran as one CUDA graph, and why not; None for backends without CUDA graphs.
        solver: The solver that ran, such as "euler" or "ab2, 32 calls".
        proof: What the export of the bundle proved about this solver, in one sentence.
        check: How strongly a pretrained model moved, chosen with hidden labels; None for full moves.

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
    ids: Ids | None = None
    outputs: Integers | None = None
    compared: "tuple[Manifest, Graph] | None" = field(default=None, repr=False)
    capture: Capture | None = None
    solver: str = ""
    proof: str = ""
    check: LabelCheck | None = None

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

    def select(self, outputs: "Integers | Mask | Sequence[int]") -> "Result":
        """Keep some outputs.

        Args:
            outputs: Their positions in this result, in the order to keep; or a mask [k] of booleans.

        Returns:
            The result with the scores and ids of these outputs only.

        Raises:
            UsageError: A position is not in the result, or the mask is not one of its outputs.

        Examples:
            >>> result.select([0, 5]).predictions  # doctest: +SKIP
            array([0, 1])
        """
        chosen = _positions(outputs, len(self.scores))
        if chosen.size and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(self.scores):
            raise UsageError(f"outputs must be positions from 0 to {len(self.scores) - 1}")
        return replace(
            self,
            scores=self.scores[chosen],
            ids=None if self.ids is None else self.ids[..., chosen],
            outputs=chosen if self.outputs is None else self.outputs[chosen],
        )

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

    def to_pandas(self) -> Any:
        """Build a `pandas.DataFrame` with one row per output and the columns of the prediction files.

        Returns:
            The table: the output, its class or numbers and, for classes, the probability of each class.

        Raises:
            MissingPackageError: pandas is not installed.

        Examples:
            >>> result.to_pandas()["class"].value_counts()  # doctest: +SKIP
        """
        from adar_runtime.prediction_files import prediction_columns

        return import_package("pandas", "to_pandas").DataFrame(prediction_columns(self))

    def to_arrow(self) -> Any:
        """Build a `pyarrow.Table` with the columns of `to_pandas`.

        Returns:
            The table.

        Raises:
            MissingPackageError: pyarrow is not installed.
        """
        from adar_runtime.prediction_files import arrow_table, prediction_columns

        import_package("pyarrow", "to_arrow")
        return arrow_table(prediction_columns(self))

    def save(self, path: str | Path) -> None:
        """Write the predictions, like `adar-deploy run --output`.

        Args:
            path: A file that ends in `.npz`, `.csv`, `.json` or `.parquet`. An existing file is replaced.

        Raises:
            UsageError: The suffix is unknown, or the file cannot be written.
            MissingExtraError: The format needs a package that is not installed.
        """
        from adar_runtime.files import write_file
        from adar_runtime.prediction_files import prediction_writer

        write = prediction_writer(Path(path))
        write_file(Path(path), write(self))

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the alignment against the time t, with a mark at the time of the predictions.

        Args:
            path: A .png or .svg file for the picture; None writes no file.

        Returns:
            A `matplotlib.figure.Figure`, which a notebook shows.

        Raises:
            MissingExtraError: matplotlib is not installed.
            UsageError: The suffix is unknown, or the file cannot be written.
        """
        from adar_runtime.evaluation.plots import check_drawable, draw_run, save_figure

        if path is not None:
            check_drawable(Path(path))
        figure = draw_run(self)
        if path is not None:
            save_figure(figure, Path(path))
        return figure

    def __repr__(self) -> str:
        return summaries.line("Result", summaries.result_facts(self))

    def _repr_html_(self) -> str:
        return summaries.table("Result", summaries.result_facts(self))


def _positions(outputs: Any, count: int) -> Integers:
    """Positions of outputs, from positions or from a mask."""
    given = checks.array("outputs", outputs)
    if given.dtype == np.bool_:
        if given.shape != (count,):
            raise UsageError(f"the mask has the shape {[*given.shape]}, and the result has {count:,} outputs")
        return np.flatnonzero(given)
    if given.size and given.dtype.kind not in "iu":
        raise UsageError(f"outputs holds {short(given.dtype)}: give whole numbers, or a mask of booleans")
    return given.astype(np.int64).reshape(-1)
