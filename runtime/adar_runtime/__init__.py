"""Run an exported AdaR bundle on any graph, for any budget, without PyTorch.

The names below are imported on first use, so that importing a submodule, such as the registry of solvers,
does not load numpy.

Examples:
    >>> bundle = adar_runtime.load("bundle")  # doctest: +SKIP
    >>> bundle.run(adar_runtime.read_graph("graph.npz"), budget=300).predictions  # doctest: +SKIP
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle, load
    from adar_runtime.errors import AdarError
    from adar_runtime.graph import Graph, SparseRows
    from adar_runtime.graph.formats import read_graph, write_graph
    from adar_runtime.loop.loop import Loop, Step
    from adar_runtime.loop.result import Result
    from adar_runtime.loop.solvers import AdamsBashforth2, Adaptive, Euler, Solver
    from adar_runtime.loop.stopping import AtTime, Converged, Final, Peak, StopReason, StopRule

# When ONNX Runtime 1.31 is imported, it keeps events and a device id in the home folder, to send them.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "AdamsBashforth2",
    "Adaptive",
    "AdarError",
    "AtTime",
    "Bundle",
    "Converged",
    "Euler",
    "Final",
    "Graph",
    "Loop",
    "Peak",
    "Result",
    "Solver",
    "SparseRows",
    "Step",
    "StopReason",
    "StopRule",
    "load",
    "read_graph",
    "write_graph",
]

_NAMES = {
    "bundle.bundle": ("Bundle", "load"),
    "errors": ("AdarError",),
    "graph": ("Graph", "SparseRows"),
    "graph.formats": ("read_graph", "write_graph"),
    "loop.loop": ("Loop", "Step"),
    "loop.result": ("Result",),
    "loop.solvers": ("AdamsBashforth2", "Adaptive", "Euler", "Solver"),
    "loop.stopping": ("AtTime", "Converged", "Final", "Peak", "StopReason", "StopRule"),
}
_MODULES = {name: f"adar_runtime.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
