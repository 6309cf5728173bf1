"""The user's data: `Graph`, its checks and limits, file formats, and synthetic graphs."""

from adar_runtime.graph.checks import Floats, Integers, Mask
from adar_runtime.graph.graph import ALL, EDGE, GRAPH, LEVELS, MASKS, NODE, PARTS, Graph, SparseRows

__all__ = [
    "ALL",
    "EDGE",
    "GRAPH",
    "LEVELS",
    "MASKS",
    "NODE",
    "PARTS",
    "Floats",
    "Graph",
    "Integers",
    "Mask",
    "SparseRows",
]
