"""Runs in child processes with limits: a graph that breaks one costs its own request only."""

import select
import threading
import weakref
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from adar_runtime import Graph, Result, Step, StopReason
from adar_runtime.backends.isolated.child_process import end_child, start_child
from adar_runtime.backends.isolated.messages import BadMessageError
from adar_runtime.errors import UsageError
from adar_runtime.graph import EDGE, NODE
from adar_serve.limits import MIB, Limits
from adar_serve.messages import Arrays
from adar_serve.models import Model
from adar_serve.refusals import RefusedError
from adar_serve.runs import Control

POLL = 0.05  # seconds between two looks at the client and the clock
MOST_STEPS = 20_000  # the alignments of a run are one message


@dataclass(frozen=True)
class Progress:
    """What streams read of a `Step`. The loop itself is in the child."""

    index: int
    time: float
    alignment: float


class Isolation:
    """One child process for each thread and model. A child that is stopped is replaced by a new one.

    Args:
        limits: The limits; `memory` is that of each child.
        options: Options of `adar_runtime.load`.
    """

    def __init__(self, limits: Limits, options: dict[str, Any]) -> None:
        if limits.steps > MOST_STEPS:
            raise UsageError(f"--isolate takes at most --limit-steps {MOST_STEPS}")
        self._limits, self._options = limits, options
        self._of_thread = threading.local()

    def run(self, model: Model, graph: Graph, options: dict[str, Any], control: Control) -> Result:
        """Run a graph in a child process."""
        children: weakref.WeakKeyDictionary[Model, _Child] = self._of_thread.__dict__.setdefault(
            "children", weakref.WeakKeyDictionary()
        )
        child = children.get(model)
        if child is None or not child.is_alive:
            child = children[model] = _Child(model, self._limits, self._options)
        try:
            return child.run(graph, options, control)
        except BaseException:  # the child may still run: the next request gets another one
            child.end()
            raise


class _Child:
    """A process that answers for one model."""

    def __init__(self, model: Model, limits: Limits, options: dict[str, Any]) -> None:
        self._model = weakref.ref(model)
        self._process, self._channel = start_child("adar_serve.isolated_run")
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self.end = weakref.finalize(self, end_child, self._process)
        bundle = model.bundle
        settings = {"path": str(bundle.path), "memory": limits.memory * MIB, "options": options}
        settings["checksum"] = bundle.manifest.checksum
        self._first: dict[str, Any] | None = settings

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, graph: Graph, options: dict[str, Any], control: Control) -> Result:
        """The result of a graph."""
        model = self._model()
        assert model is not None
        manifest = model.bundle.manifest
        rows = {NODE: graph.nodes, EDGE: 0 if graph.pairs is None else graph.pairs.shape[1]}
        shape = rows.get(manifest.level, 1), manifest.targets or graph.targets
        request = {**options, "load": self._first, "steps": control.on_step is not None}
        self._first = None
        try:
            self._channel.send(request, arrays_of(graph))
            while True:
                header, arrays = self._receive(control, {"scores": shape})
                if "step" not in header:
                    break
                if control.on_step is not None:
                    control.on_step(cast("Step", Progress(*header["step"])))
                control.check()
        except BadMessageError as error:
            raise RefusedError(
                500,
                "the process of this request ended, perhaps because its memory ran out: send a smaller graph",
            ) from error
        if "refused" in header:
            raise RefusedError(header["status"], header["refused"])
        found = header["result"] | {"stop_reason": StopReason[header["result"]["stop_reason"]]}
        names, compared = manifest.class_names_for(graph), (manifest, graph)
        return Result(scores=arrays["scores"], class_names=names, compared=compared, **found)

    def _receive(self, control: Control, shapes: Any) -> tuple[dict[str, Any], Arrays]:
        while not select.select([self._output], [], [], POLL)[0]:
            control.check()
        return self._channel.receive(control.seconds, shapes)


def arrays_of(graph: Graph) -> Arrays:
    """The inputs of a graph."""
    found: dict[str, Any] = {
        "features": np.asarray(graph.rows(0, graph.nodes), np.float32),
        "edge_index": np.asarray(graph.edge_index, np.int64),
        "edge_weight": graph.edge_weight,
        "target_features": graph.target_features,
        "pairs": graph.pairs,
        "labels": graph.labels,
        "train_mask": graph.train_mask,
    }
    return {name: array for name, array in found.items() if array is not None}


def described(result: Result) -> dict[str, Any]:
    """What a child sends about a result, besides its scores."""
    return {
        "alignment": list(map(float, result.alignment)),
        "times": list(map(float, result.times)),
        "budget": result.budget,
        "best_step": int(result.best_step),
        "stop_reason": result.stop_reason.name,
        "backend": result.backend,
        "timings": result.timings,
        "regression": result.regression,
        "solver": result.solver,
        "proof": result.proof,
    }
