"""The outputs of one part at every step, from which calibration learns how certain a comparison is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adar_runtime.evaluation.uncertainty import (
    auc_components,
    grouped_error,
    output_values,
    r_squared_error,
    squared_spread,
)
from adar_runtime.graph import Floats, Graph, Integers

MOST = 4096  # outputs that are kept; the error of a larger part follows from its size
FOLDS = 5


@dataclass(frozen=True, eq=False)
class OutputSample:
    """What each output of a part contributes to the metric, at every step of one budget.

    At most `MOST` outputs are kept, drawn with a fixed seed, so that memory is bounded.
    """

    labels: Any  # of the kept outputs, [k] or [k, c]
    total: int  # outputs of the part
    _chosen: list[Integers]  # indices of the kept outputs of each graph
    _values: list[Floats] = field(default_factory=list)  # [k] for each step
    _classes: list[int] = field(default_factory=list)  # of the scores

    @classmethod
    def of(cls, graphs: Sequence[Graph], part: str, split: int) -> "OutputSample | None":
        """An empty sample for these graphs; None if the part has no labels."""
        masks = [graph.labelled(part, split) for graph in graphs]
        found = [np.flatnonzero(mask) if mask is not None else np.zeros(0, np.int64) for mask in masks]
        total = sum(map(len, found))
        if not total:
            return None
        share = min(1.0, MOST / total)
        random = np.random.default_rng(0)
        chosen = [
            one if share == 1 else np.sort(random.permutation(one)[: math.ceil(share * len(one))])
            for one in found
        ]
        labels = [
            np.asarray(graph.labels)[one] for graph, one in zip(graphs, chosen, strict=True) if len(one)
        ]
        return cls(np.concatenate(labels), total, chosen)

    def add(self, scores: Sequence[Floats]) -> None:
        """Keep the outputs of the next step."""
        kept = np.concatenate([one[rows] for one, rows in zip(scores, self._chosen, strict=True)])
        self._classes.append(kept.shape[1])
        self._values.append(output_values(kept, self.labels).astype(np.float32))

    @property
    def _regression(self) -> bool:
        return bool(self.labels.dtype == np.float32)

    def contributions(self, steps: int | list[int]) -> Any:
        """What each output contributes at a step, or at the own step of its graph, [k]; more is better."""
        values = self._at(steps)
        if self._regression:
            return -values.astype(np.float64)
        if self._classes[0] == 2:
            return auc_components(values, self.labels == 1)
        return values.astype(np.float64)

    def _at(self, steps: int | list[int]) -> Floats:
        if isinstance(steps, int):
            return self._values[steps]
        own = np.repeat(steps, [len(rows) for rows in self._chosen]).tolist()
        return np.array([self._values[step][output] for output, step in enumerate(own)], np.float32)

    def error(self, differences: Any) -> float:
        """The standard error of a difference of metrics, from the differences of the contributions [k]."""
        count = len(differences)
        if self._regression:
            found = r_squared_error(differences, squared_spread(self.labels))
        elif self._classes[0] == 2:
            found = grouped_error(differences, self.labels == 1)
        else:
            found = float(np.std(differences, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
        return found * math.sqrt(count / self.total)

    def folds(self) -> Integers:
        """The fold of each output, from 0 to `FOLDS` - 1; the same for every budget."""
        return np.random.default_rng(1).permutation(np.arange(len(self.labels)) % FOLDS)

    def metrics(self, rows: Any) -> Any:
        """The metric at every step over some of the outputs (a mask [k]), [steps]; NaN where undefined."""
        return self._metrics(np.stack(self._values)[:, rows], self.labels[rows])

    def metric_at(self, steps: int | list[int], rows: Any) -> float:
        """The metric at a step, or at the own step of each graph, over some of the outputs."""
        return float(self._metrics(self._at(steps)[None, rows], self.labels[rows])[0])

    def _metrics(self, values: Floats, labels: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            if not len(labels):
                return np.full(len(values), np.nan)
            if self._regression:
                return 1 - values.sum(axis=1, dtype=np.float64) / squared_spread(labels).sum()
            if self._classes[0] != 2:
                return values.mean(axis=1, dtype=np.float64)
            positive = (labels == 1)[np.argsort(values, axis=1, kind="stable")]
            wins = (np.cumsum(~positive, axis=1) * positive).sum(axis=1)
            return wins / (positive.sum(axis=1) * (~positive).sum(axis=1))
