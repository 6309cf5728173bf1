"""Graphs to train on: synthetic ones, files, and data sets of PyTorch Geometric; splits, episodes, checks."""

from pathlib import Path

from adar_runtime.errors import GraphError
from adar_runtime.graph import Graph
from adar_runtime.graph.formats import read_graphs
from adar_runtime.graph.synthetic import FAMILIES, make
from adar_train.data.pyg import PREFIX, load_pyg


def load(name: str) -> Graph:
    """Load a graph by name: a synthetic graph, a data set of PyTorch Geometric, or a file.

    Args:
        name: A synthetic family such as "minesweeper", a data set such as "pyg:Planetoid/Cora", or the path
            of a .npz or .pt file. PyG data sets are downloaded on first use, to $ADAR_DATA or
            ~/.cache/adar-deploy.

    Returns:
        The graph.

    Raises:
        GraphError: If there is no such data set, or the file or download cannot be read.

    Example:
        >>> load("minesweeper").nodes
        10000
    """
    (graph,) = _one(name, load_all(name))
    return graph


def load_all(name: str) -> list[Graph]:
    """Load the graphs of a name: those of a file that holds many graphs, or the one that `load` gives.

    Args:
        name: As for `load`.

    Returns:
        The graphs.

    Raises:
        GraphError: As for `load`.

    Example:
        >>> len(load_all("minesweeper"))
        1
    """
    if name in FAMILIES:
        return [make(name)]
    if name.startswith(PREFIX):
        return [load_pyg(name)]
    if not Path(name).suffix:
        raise GraphError(
            f"there is no data set {name!r}: choose {', '.join(FAMILIES)}, a data set of PyG "
            f"such as {PREFIX}Planetoid/Cora, a .npz or .pt file, or a folder of such files"
        )
    return read_graphs(name)


def _one(name: str, graphs: list[Graph]) -> list[Graph]:
    if len(graphs) != 1:
        raise GraphError(f"{name} holds {len(graphs):,} graphs, and one is needed")
    return graphs
