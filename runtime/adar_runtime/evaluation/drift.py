"""Whether a graph is like the training graphs of a bundle: features, degrees, predictions and alignment.

The measure is the population stability index (PSI): Σ (q - p) ln(q / p) over bins, with the shares p of the
training data and q of the graph. By convention, below 0.1 is stable and above 0.25 is a large change. A small
graph has a PSI above zero by chance alone, so what chance explains is subtracted first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from adar_runtime import summaries
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import BundleError
from adar_runtime.evaluation.graph_profile import COLUMNS, DEGREE, OF_ROWS, VERSION, GraphView
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.registry import is_count, is_number

if TYPE_CHECKING:
    from adar_runtime.loop.result import Result

THRESHOLD = 0.25  # of the PSI, for a warning
DEVIATIONS = 4.0  # standard deviations of the PSI of equal populations that count as chance
LISTED = 3  # names in a warning
LOWER = 0.25  # of the range of the training curve: how much lower an alignment has to be, for a warning
CLASSES = "predicted classes"
MOST_BINS = 64


@dataclass(frozen=True)
class Change:
    """How one statistic of a graph differs from the training data.

    Attributes:
        name: "feature 3", "degree", "predicted classes", …
        psi: The population stability index without what chance explains; 0 for equal populations.
        mean: Mean in the graph; None for predicted classes.
        trained_mean: Mean in the training data.
        outside: Share of nodes outside the range of the training data.
    """

    name: str
    psi: float
    mean: float | None = None
    trained_mean: float | None = None
    outside: float = 0.0


@dataclass(frozen=True, repr=False)
class Drift:
    """The comparison of a graph with the training data of a bundle.

    Attributes:
        changes: One entry per feature column with statistics, and per statistic of nodes; largest PSI first.
        alignment: Alignment of the result; None where the bundle has no curve to compare with.
        lowest_alignment: Alignment below which a result is unlike those of the training data, at that time.

    Examples:
        >>> result = bundle.run(graph)  # doctest: +SKIP
        >>> result.drift.score, result.drift.warnings()  # doctest: +SKIP
        (0.02, [])
    """

    changes: list[Change] = field(default_factory=list)
    alignment: float | None = None
    lowest_alignment: float | None = None

    @property
    def score(self) -> float:
        """The largest PSI; 0 without statistics."""
        return max((change.psi for change in self.changes), default=0.0)

    @property
    def low_alignment(self) -> bool:
        """Whether the alignment is lower than any that the training data explains."""
        if self.alignment is None or self.lowest_alignment is None:
            return False
        return self.alignment < self.lowest_alignment

    def is_unlike(self, threshold: float = THRESHOLD) -> bool:
        """Whether the graph differs from the training data by more than this PSI, or its alignment is low.

        Args:
            threshold: A PSI.
        """
        return self.score > threshold or self.low_alignment

    def warnings(self, threshold: float = THRESHOLD, subject: str = "the graph is") -> list[str]:
        """What to tell people about a graph that is unlike the training data.

        Args:
            threshold: A PSI.
            subject: How the first sentence begins.

        Returns:
            At most two sentences; none for a graph that is like the training data.
        """
        found = []
        unlike = [change for change in self.changes if change.psi > threshold]
        if unlike:
            named = ", ".join(f"{change.name} {change.psi:.2f}" for change in unlike[:LISTED])
            more = f" and {len(unlike) - LISTED} more" if len(unlike) > LISTED else ""
            found.append(f"{subject} unlike the training data (PSI above {threshold:g}): {named}{more}")
        if self.low_alignment:
            found.append(
                f"the alignment {self.alignment:.3g} is lower than on the training data "
                f"({self.lowest_alignment:.3g}): predictions may be wrong"
            )
        return found

    def __repr__(self) -> str:
        return summaries.line("Drift", summaries.drift_facts(self))

    def _repr_html_(self) -> str:
        return summaries.table("Drift", summaries.drift_facts(self))

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "score": self.score,
            "changes": [vars(change) for change in self.changes],
            "alignment": self.alignment,
            "lowest_alignment": self.lowest_alignment,
        }


def compare(manifest: Manifest, graph: Graph, result: "Result | None" = None) -> Drift | None:
    """Compare a graph, and the result of its inference, with the statistics in a manifest.

    Args:
        manifest: The manifest of a bundle.
        graph: A graph that fits the bundle.
        result: The result of this graph; without it, only features and degrees are compared.

    Returns:
        The comparison; None where the bundle has no statistics.

    Raises:
        BundleError: The statistics are damaged.
    """
    known = manifest.statistics
    if not known or known.get("version") != VERSION:
        return None
    try:
        encoding = manifest.feature_encoding
        changes = _changes(known, graph, None if encoding is None else encoding.feature_names)
        predictions = known.get("predictions")
        # The classes of some chosen outputs have other shares than those of a graph.
        if result is not None and result.outputs is None and predictions is not None:
            changes.append(_predicted(predictions, result))
        lowest = None if result is None else _lowest_alignment(known.get("alignment"), result.best_time)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        raise BundleError("the statistics of the training data are damaged: export the run again") from error
    reached = None if lowest is None or result is None else result.alignment[result.best_step]
    return Drift(sorted(changes, key=lambda change: -change.psi), reached, lowest)


def compare_features(manifest: Manifest, graph: Graph) -> Drift | None:
    """Compare the features of nodes, whose edges are not known, with the statistics in a manifest.

    Args:
        manifest: The manifest of a bundle.
        graph: The nodes.

    Returns:
        The comparison; None where the bundle has no statistics.

    Raises:
        BundleError: The statistics are damaged.
    """
    found = compare(manifest, graph)
    if found is None:
        return None
    return Drift([change for change in found.changes if change.name != DEGREE])


def _changes(known: Mapping[str, Any], graph: Graph, names: Sequence[str] | None) -> list[Change]:
    view = GraphView(graph)
    columns = [entry["column"] for entry in known["columns"]]
    if len(columns) > COLUMNS or not all(is_count(one, 0) and one < graph.width for one in columns):
        raise ValueError("unknown columns")
    values = view.columns(np.array(columns, np.int64)) if columns else None
    found = [
        _change(_title(entry["column"], names), entry, values[:, i])
        for i, entry in enumerate(known["columns"])
        if values is not None
    ]
    return found + [_change(name, known["rows"][name], view.of_rows(name)) for name in OF_ROWS]


def _title(column: int, names: Sequence[str] | None) -> str:
    """The name of a feature of a table, or the number of the column."""
    return f"feature {column}" if names is None else f"feature {names[column]}"


def _change(name: str, entry: Mapping[str, Any], values: Floats) -> Change:
    """Compare the values of one statistic. Values outside the range of the training data have own bins."""
    numbers = [*entry["boundaries"], *entry["shares"], entry["low"], entry["high"], entry["mean"]]
    if not all(map(is_number, numbers)) or len(numbers) > 3 * MOST_BINS or not is_count(entry["count"], 1):
        raise ValueError("not numbers")
    boundaries = np.array(entry["boundaries"], np.float64)
    bin_of = 1 + np.searchsorted(boundaries, values, "left")
    below, above = values < entry["low"], values > entry["high"]
    bin_of[below], bin_of[above] = 0, len(boundaries) + 2
    counts = np.bincount(bin_of, minlength=len(boundaries) + 3)
    trained = np.array([0.0, *entry["shares"], 0.0])
    psi = stability(trained, entry["count"], counts)
    mean = float(values.mean(dtype=np.float64))
    return Change(name, psi, mean, float(entry["mean"]), float((below | above).mean()))


def _predicted(known: Mapping[str, Any], result: "Result") -> Change:
    trained = np.array(known["shares"], np.float64)
    counts = np.bincount(result.predictions, minlength=len(trained))
    if len(counts) != len(trained) or not is_count(known["count"], 1):
        raise ValueError("another number of classes")
    return Change(CLASSES, stability(trained, known["count"], counts))


def stability(trained: Any, trained_count: int, counts: Any) -> float:
    """The PSI of counts in bins against shares, without what chance explains.

    Of two samples of one population, PSI / (1/n + 1/N) is about χ² with (bins - 1) degrees of freedom.
    Half an output is added to every bin, so that empty bins do not make it infinite.

    Examples:
        >>> import numpy as np
        >>> stability(np.array([0.5, 0.5]), 1000, np.array([480, 520]))
        0.0
        >>> round(stability(np.array([0.5, 0.5]), 1000, np.array([900, 100])), 2)
        0.87
    """
    if not ((trained >= 0) & (trained <= 1)).all():
        raise ValueError("shares have to be between 0 and 1")
    bins, count = len(counts), int(counts.sum())
    p = (trained * trained_count + 0.5) / (trained.sum() * trained_count + 0.5 * bins)
    q = (counts + 0.5) / (count + 0.5 * bins)
    index = float(((q - p) * np.log(q / p)).sum())
    degrees = bins - 1
    chance = (degrees + DEVIATIONS * math.sqrt(2 * degrees)) * (1 / count + 1 / trained_count)
    return max(0.0, round(index - chance, 6))


def _lowest_alignment(curve: Mapping[str, Any] | None, time: float) -> float | None:
    """The alignment below which a result is unlike the training data, at this time."""
    if curve is None:
        return None
    times, seen, low = (np.array(curve[key], np.float64) for key in ("t", "seen", "low"))
    if not len(times) == len(seen) == len(low) or not all(np.isfinite(each).all() for each in (seen, low)):
        raise ValueError("not a curve")
    usual, lowest = (float(np.interp(time, times, each)) for each in (seen, low))
    return lowest - max(LOWER * float(np.ptp(seen)), usual - lowest)


def alignment_curve(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, Any]:
    """The record of the alignment on the training data.

    Args:
        curves: Times and alignments of the whole graph, and then of its parts: parts of one graph differ as
            graphs of one kind do.

    Returns:
        The alignment of the whole graph, and the lowest of all curves, at eleven times.
    """
    times = np.linspace(0, 1, 11)
    values = np.array([np.interp(times, *curve) for curve in curves])
    return {
        "t": [round(float(t), 2) for t in times],
        "seen": [round(float(value), 6) for value in values[0]],
        "low": [round(float(value), 6) for value in values.min(axis=0)],
    }
