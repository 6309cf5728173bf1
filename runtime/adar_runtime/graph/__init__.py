"""The user's data: graphs, their file formats, and synthetic graphs.

Public: the names below, `read_graph` and `write_graph` (also in `adar_runtime`), and the modules without an
underscore:

- `formats`: read, write and import graph files
- `synthetic`: make graphs for tests and demos
- `statistics`, `graph_warnings`: describe a graph, and warn about properties that reduce accuracy
- `feature_encoding`: how the columns of a table became features
- `labels`: convert a graph's labels to the class numbers of a model
- `neighbours`, `neighbour_tables`: edges in the layouts that a model's cell reads
- `limits`: the largest graphs that are read
"""

from adar_runtime.graph._checks import Floats, Ids, Integers, Mask
from adar_runtime.graph.feature_encoding import EncodedColumn, FeatureEncoding
from adar_runtime.graph.graph import ALL, EDGE, GRAPH, LEVELS, MASKS, NODE, PARTS, Graph, SparseRows

__all__ = [
    "ALL",
    "EDGE",
    "GRAPH",
    "LEVELS",
    "MASKS",
    "NODE",
    "PARTS",
    "EncodedColumn",
    "FeatureEncoding",
    "Floats",
    "Graph",
    "Ids",
    "Integers",
    "Mask",
    "SparseRows",
]
