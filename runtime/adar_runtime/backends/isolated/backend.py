"""Models that `known_models` does not list, in a child process.

The child can take as much memory and time as it is allowed to, or end with a signal: the caller gets a
BackendError, and this process goes on. Every call copies the state, which is slower than the other backends.
"""

import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from adar_runtime.backends import CPU, Settings
from adar_runtime.backends.isolated.child_process import end_child, start_child
from adar_runtime.backends.isolated.messages import Arrays, BadMessageError, WrongShapeError
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import ONNX_MODELS, Manifest, Port
from adar_runtime.bundle.signature import SCALARS, STATE, Ports
from adar_runtime.errors import BackendError, short
from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Motion, Move


@dataclass(frozen=True)
class Limits:
    """What an unknown model may use."""

    seconds: float = 60  # to load the models, and for each call
    memory: int = 2**30  # bytes, beside a multiple of the files and of the estimate for the graph
    spare: int = 4  # this multiple


LIMITS = Limits()


class IsolatedBackend:
    """The models of a bundle in a child process, on the CPU."""

    name = CPU

    def __init__(
        self,
        onnx_models: Mapping[str, bytes],
        manifest: Manifest,
        settings: Settings,
        limits: Limits | None = None,
    ) -> None:
        limits = limits or LIMITS
        self._manifest = manifest
        self._spare = limits.spare
        self._child = Child(limits)
        files = {name: np.frombuffer(content, np.uint8) for name, content in onnx_models.items()}
        self._child.allowed += limits.spare * sum(array.size for array in files.values())
        reply, _ = self._child.call({"call": "load", "threads": settings.threads}, files, {})
        self.ports: Mapping[str, Ports] = _ports(reply.get("ports"))

    @staticmethod
    def problem() -> str | None:
        """Why there can be no limits on this platform; None where there are."""
        return None if sys.platform == "linux" else "unknown models need Linux, for limits of memory and time"

    def start(self, prepared: PreparedGraph) -> "IsolatedRecurrence":
        needed = (
            memory.needed_bytes(prepared.graph, self._manifest) + prepared.graph.nodes * prepared.graph.width
        )
        self._child.allowed = max(self._child.allowed, self._child.limits.memory + self._spare * 4 * needed)
        return IsolatedRecurrence(self._child, prepared, self._manifest)


class Child:
    """The child process, and one call at a time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.allowed = limits.memory
        self._told = 0  # the limit of memory that the child knows
        self._lock = threading.Lock()
        self._forgotten: list[str] = []
        self._process, self._channel = start_child("adar_runtime.backends.isolated.worker")
        self._close = weakref.finalize(self, end_child, self._process)

    def call(
        self, request: Mapping[str, Any], arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, Any], Arrays]:
        """The reply of the child; a BackendError if it fails, ends, or takes too long."""
        seconds = self.limits.seconds
        with self._lock:
            if not self._close.alive:
                raise BackendError("the process of the unknown model has ended: load the bundle again")
            try:
                if self._told != self.allowed:  # before the child receives arrays that need it
                    self._exchange({"call": "allow"}, {}, {})
                    self._told = self.allowed
                reply, outputs = self._exchange(request, arrays, shapes)
            except TimeoutError as error:
                self._close()
                raise BackendError(
                    f"the unknown model was stopped after {seconds:g} s, the time limit of one call"
                ) from error
            except BadMessageError as error:
                raise self._failure(error) from error
            except BaseException:  # Ctrl-C: the reply would be taken for that of the next call
                self._close()
                raise
        if "error" in reply:
            raise BackendError(f"ONNX Runtime could not run the unknown model: {short(str(reply['error']))}")
        return reply, outputs

    def _exchange(
        self, request: Mapping[str, Any], arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]
    ) -> tuple[dict[str, Any], Arrays]:
        self._channel.send(self._with_limits(request), arrays)
        return self._channel.receive(self.limits.seconds, shapes)

    def forget(self, key: str) -> None:
        """Let the next call drop the arrays under this key. A finalizer calls this, at any moment."""
        self._forgotten.append(key)

    def _with_limits(self, request: Mapping[str, Any]) -> dict[str, Any]:
        dropped, self._forgotten = self._forgotten, []
        return {**request, "drop": dropped, "memory": self.allowed, "seconds": self.limits.seconds}

    def _failure(self, error: BadMessageError) -> BackendError:
        if isinstance(error, WrongShapeError):
            self._close()
            return BackendError(str(error))
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        self._close()
        how = f"with {signal.Signals(-code).name}" if code < 0 else "without an answer"
        return BackendError(f"the unknown model ended its process {how}: it cannot be run")


def _ports(raw: Any) -> dict[str, Ports]:
    """The ports that the child reports."""
    try:
        return {
            name: Ports(*(tuple(Port(str(n), str(t), tuple(s)) for n, t, s in side) for side in raw[name]))
            for name in ONNX_MODELS
        }
    except (TypeError, ValueError, LookupError) as error:
        raise BackendError("the process of the unknown model gave an answer that cannot be read") from error


class IsolatedRecurrence:
    """The states of one graph, in this process; see `adar_runtime.backends.Recurrence`."""

    name = CPU
    _keys = count()

    def __init__(self, child: Child, prepared: PreparedGraph, manifest: Manifest) -> None:
        self._child, self._prepared = child, prepared
        self._width = manifest.hidden
        self._state = self._encode(manifest.proxies)
        self._before = {name: np.zeros_like(array) for name, array in self._state.items()}
        self._kept: Arrays | None = None
        self._scalars = dict.fromkeys(SCALARS, 0.0)
        self._key = str(next(self._keys))
        child.call({"call": "hold", "key": self._key}, prepared.structure, {})
        weakref.finalize(self, child.forget, self._key)
        first = prepared.pair_blocks()[:1]
        self._scalars["alignment"] = self._head(self._state, first[0] if first else None)["alignment"].item()

    @property
    def alignment(self) -> float:
        return self._scalars["alignment"]

    @property
    def motion(self) -> Motion:
        return Motion(self._scalars["speed"], self._scalars["turn"])

    def step(self, code: Floats, move: Move) -> None:
        numbers = {
            name: np.array(getattr(move, name), np.float32) for name in ("weight", "previous_weight", "lead")
        }
        feeds = self._state | {f"previous_{name}_velocity": array for name, array in self._before.items()}
        feeds |= numbers | {"step_code": np.asarray(code, np.float32)}
        shapes = {f"next_{name}": array.shape for name, array in self._state.items()}
        shapes |= {f"{name}_velocity": array.shape for name, array in self._state.items()}
        found = self._run("cell", feeds, shapes | dict.fromkeys(SCALARS, ()), self._key)
        self._state = {name: found[f"next_{name}"] for name in STATE}
        self._before = {name: found[f"{name}_velocity"] for name in STATE}
        self._scalars = {name: found[name].item() for name in SCALARS}

    def keep(self) -> None:
        self._kept = self._state

    def recall(self) -> None:
        if self._kept is not None:
            self._state = self._kept

    def scores(self, *, kept: bool) -> Floats:
        state = self._kept if kept and self._kept is not None else self._state
        blocks = self._prepared.pair_blocks()
        if not blocks:
            return self._head(state, None)["scores"]
        return np.concatenate([self._head(state, block)["scores"] for block in blocks])

    def state(self) -> dict[str, Floats]:
        return {name: array.copy() for name, array in self._state.items()}

    def _head(self, state: Arrays, pairs: np.ndarray[Any, Any] | None) -> Arrays:
        feeds = {"nodes": state["nodes"], "targets": state["targets"]}
        rows = self._prepared.outputs
        if pairs is not None:
            feeds["pairs"], rows = pairs, pairs.shape[1]
        return self._run("head", feeds, {"scores": (rows, len(state["targets"])), "alignment": ()})

    def _encode(self, proxies: int) -> Arrays:
        prepared, d = self._prepared, self._width
        feeds = {} if prepared.target_features is None else {"target_features": prepared.target_features}
        shapes = {
            "targets": (prepared.targets, d),
            "node_proxies": (proxies, d),
            "target_proxies": (proxies, d),
        }
        blocks: list[Floats] = []
        first: Arrays = {}
        for start, stop in prepared.feature_blocks():
            block = feeds | {"features": np.asarray(prepared.graph.rows(start, stop), np.float32)}
            found = self._run("encoder", block, {"nodes": (stop - start, d)} | ({} if blocks else shapes))
            first = first or found
            blocks.append(found["nodes"])
        nodes = prepared.first_nodes(np.concatenate(blocks))
        return {name: nodes if name == "nodes" else first[name] for name in STATE}

    def _run(
        self, model: str, feeds: Arrays, shapes: Mapping[str, tuple[int, ...]], key: str | None = None
    ) -> Arrays:
        request = {"call": "run", "model": model, "outputs": list(shapes), "key": key}
        _, outputs = self._child.call(request, feeds, shapes)
        if set(outputs) != set(shapes):
            raise BackendError("the process of the unknown model gave an answer that cannot be read")
        return outputs
