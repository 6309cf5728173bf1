"""Run an exported AdaR bundle on any graph, for any budget, without PyTorch.

Examples:
    >>> bundle = adar_runtime.load("bundle")  # doctest: +SKIP
    >>> bundle.run(adar_runtime.read_graph("graph.npz"), budget=300).predictions  # doctest: +SKIP
"""

from adar_runtime.bundle.bundle import Bundle, load
from adar_runtime.errors import AdarError
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.graph.formats import read_graph, write_graph
from adar_runtime.loop.loop import Loop, Result, Step
from adar_runtime.loop.solvers import AdamsBashforth2, Adaptive, Euler, Solver
from adar_runtime.loop.stopping import AtTime, Converged, Final, Peak, StopReason, StopRule

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
