"""The child process: loads the three models, and runs them on request, within limits.

Requests (`call`): "allow" (nothing but new limits), "load" (arrays: the ONNX files), "hold" (arrays to use in
later calls, under a `key`) and "run" (`model`, `outputs`, arrays: the inputs). `drop` lists the keys of
arrays that are no longer needed.
`memory` is how many bytes the process may allocate beyond those of its start.
"""

import os
import resource
from pathlib import Path
from typing import Any

import onnxruntime as ort

from adar_runtime.backends.isolated.messages import Arrays, BadMessageError, Channel
from adar_runtime.backends.onnxruntime.sessions import ports_of, session_of
from adar_runtime.errors import BackendError, reason

PROVIDER = "CPUExecutionProvider"


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    channel = Channel(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what native code prints must not reach the pipe or the terminal
        os.dup2(nothing, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = _Worker()
    while True:
        try:
            request, arrays = channel.receive()
        except BadMessageError:
            os._exit(0)
        header, outputs = worker.answer(request, arrays)
        channel.send(header, outputs)


class _Worker:
    def __init__(self) -> None:
        self._base = address_space()
        self._sessions: dict[str, ort.InferenceSession] = {}
        self._held: dict[str, Arrays] = {}

    def answer(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        try:
            self._limit(request["memory"], request["seconds"])
            for key in request["drop"]:
                self._held.pop(key, None)
            return getattr(self, f"_{request['call']}")(request, arrays)
        except MemoryError:
            return {"error": "not enough memory within the limit"}, {}
        except Exception as error:  # those of ONNX Runtime share no base class
            return {"error": reason(error)}, {}

    def _limit(self, memory: int, seconds: float) -> None:
        """Limit memory, and processor time in case that the parent ends during a call."""
        if self._base is not None:
            set_soft_limit(resource.RLIMIT_AS, self._base + memory)
        used = resource.getrusage(resource.RUSAGE_SELF)
        cores = os.cpu_count() or 1
        set_soft_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds * cores) + 1)

    def _allow(self, _request: dict[str, Any], _arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        return {}, {}

    def _load(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        for name, content in arrays.items():
            self._sessions[name] = session_of(content.tobytes(), PROVIDER, request["threads"], spins=False)
        ports = {
            name: [[[p.name, p.type, list(p.shape)] for p in side] for side in ports_of(session)]
            for name, session in self._sessions.items()
        }
        return {"ports": ports}, {}

    def _hold(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        self._held[request["key"]] = arrays
        return {}, {}

    def _run(self, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        held = self._held.get(request["key"] or "", {})
        names = request["outputs"]
        outputs = self._sessions[request["model"]].run(names, arrays | held)
        if any(type(output).__name__ != "ndarray" for output in outputs):
            raise BackendError("an output is not a tensor")
        return {}, dict(zip(names, outputs, strict=True))


def set_soft_limit(kind: int, value: int) -> None:
    """Limit what this process may use, as far as its hard limit allows."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def address_space() -> int | None:
    """The bytes that this process has mapped so far; None where that is unknown (not Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return None
