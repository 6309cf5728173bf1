"""What the page gets of a run: a bounded number of frames, each with the predictions at one time.

A frame of a graph that the page can draw has the prediction and the certainty of every node. A frame of a
larger graph has only the counts of the classes, so a frame never has more than `DRAWN_NODES` rows.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime import Graph, Result, Step
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import DivergedError, LabelsError
from adar_runtime.graph import NODE, Floats, Integers
from adar_runtime.graph.labels import align_labels
from adar_serve.event_stream import Send

FRAMES = 40  # at most one frame for each of these equal parts of the total time, and one of the answer
DRAWN_NODES = 3_000
DRAWN_EDGES = 25_000  # without directions


class Trajectory:
    """Sends the steps of one run, and frames of its predictions.

    Args:
        manifest: The bundle's manifest.
        graph: The graph of the run.
        budget: The budget of the run.
        send: Sends an event.
    """

    def __init__(self, manifest: Manifest, graph: Graph, budget: int, send: Send) -> None:
        self._manifest, self._graph, self._send = manifest, graph, send
        self._end = float(budget) if manifest.unit_step else 1.0
        self._edges = drawn_edges(manifest, graph)
        self._labels = _labels(manifest, graph)
        self._slot = -1

    def begin(self, side: int | None) -> None:
        """Send the facts about the graph. `side` is that of a board whose nodes are its cells."""
        names = self._manifest.class_names_for(self._graph)
        facts: dict[str, Any] = {
            "nodes": self._graph.nodes,
            "edges": self._graph.edges,
            "end": self._end,
            "regression": self._manifest.regression,
            "class_names": None if names is None else list(names),
        }
        if self._edges is not None:
            facts["drawing"] = {"edges": self._edges.ravel().tolist(), "side": side}
        self._send("graph", facts)

    def observe(self, step: Step) -> None:
        """Send a step, and a frame if it is the first step of its part of the time."""
        self._send("step", {"step": step.index, "time": step.time, "alignment": step.alignment})
        slot = math.floor(step.time / self._end * FRAMES)
        if slot > self._slot:
            self._slot = slot
            where = {"step": step.index, "time": step.time, "alignment": step.alignment}
            self._send("frame", where | self._predictions(step.scores()))

    def answer(self, result: Result) -> dict[str, Any]:
        """The facts about the answer, with the frame that it comes from."""
        step = result.best_step
        where = {"step": step, "time": result.best_time, "alignment": result.alignment[step]}
        return {
            "frame": where | self._predictions(result.scores),
            "stop_reason": result.stop_reason.name.lower(),
            "why": result.stop_reason.value,
            "solver": result.solver,
            "cell_calls": result.cell_calls,
            "seconds": result.seconds,
        }

    def _predictions(self, scores: Floats) -> dict[str, Any]:
        if not np.isfinite(scores).all():
            raise DivergedError(
                "the scores are not finite: check for features far larger than those of the training data"
            )
        if self._manifest.regression:
            return self._numbers(scores[:, 0])
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        certainty = 1 / powers.sum(axis=1)  # the largest probability: its power is 1
        prediction = scores.argmax(axis=1)
        found: dict[str, Any] = {
            "counts": np.bincount(prediction, minlength=scores.shape[1]).tolist(),
            "mean_certainty": float(certainty.mean()),
        }
        if self._labels is not None:
            known = self._labels >= 0
            found["accuracy"] = float((prediction == self._labels)[known].mean())
        if self._edges is not None:
            found["prediction"] = prediction.tolist()
            found["certainty"] = np.rint(100 * certainty).astype(np.int64).tolist()
        return found

    def _numbers(self, values: Floats) -> dict[str, Any]:
        """Of regression: the first number of every output."""
        found: dict[str, Any] = {
            "numbers": {
                "least": float(values.min()),
                "mean": float(values.mean()),
                "most": float(values.max()),
            }
        }
        if self._edges is not None:
            found["value"] = [float(f"{value:.4g}") for value in values]
        return found


def drawn_edges(manifest: Manifest, graph: Graph) -> NDArray[np.int64] | None:
    """Each edge once, without direction [m, 2]; None if the graph is not drawn."""
    if manifest.level != NODE or graph.nodes > DRAWN_NODES or graph.edges > 2 * DRAWN_EDGES:
        return None
    low, high = np.sort(graph.edge_index, axis=0)
    edges = np.unique(np.stack([low, high], axis=1)[low != high], axis=0)
    return edges if len(edges) <= DRAWN_EDGES else None


def _labels(manifest: Manifest, graph: Graph) -> Integers | None:
    """The class of every output that is scored, in the numbers of the model, or -1; None if there is none.

    The labels that a pretrained model knows are not scored.
    """
    if graph.labels is None or manifest.regression:
        return None
    try:
        labels = align_labels(manifest, graph).labels
    except LabelsError:  # of other classes
        return None
    if labels is None:
        return None
    if manifest.in_context and graph.train_mask is not None:
        labels = np.where(graph.train_mask[0], -1, labels)
    return labels.astype(np.int64) if (labels >= 0).any() else None
