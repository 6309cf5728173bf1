"""A list of nodes as text: one node id per line, or row numbers for a graph without ids."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import NODE, Graph, Integers
from adar_runtime.graph.formats._graph_file import reading
from adar_runtime.graph.formats._rows import read_lines
from adar_runtime.graph.limits import CELL_BYTES, ROW_BYTES, ByteBudget


@dataclass(frozen=True)
class NodeList:
    """The ids in a file, with the line of each.

    Attributes:
        path: The file.
        lines: Id -> number of its line.

    Examples:
        >>> NodeList.read("ids.txt").find(graph)  # doctest: +SKIP
        array([17, 4])
    """

    path: Path
    lines: dict[str, int]

    @classmethod
    def read(cls, path: str | Path) -> "NodeList":
        """Read the ids. Empty lines and blanks around an id do not count.

        Raises:
            GraphError: The file cannot be read or is empty, or an id is there twice.
        """
        path, lines = Path(path), dict[str, int]()
        with reading(path):
            budget = ByteBudget(path.stat().st_size)
            for line, text in read_lines(path):
                word = text.strip()
                if not word:
                    continue
                budget.reserve(f"line {line}", 1, ROW_BYTES + CELL_BYTES + len(word))
                if word in lines:
                    raise GraphError(f"line {line}: node {short(word)!r} is already in line {lines[word]}")
                lines[word] = line
            if not lines:
                raise GraphError("the list of nodes is empty: write one node id per line")
        return cls(path, lines)

    def find(self, graph: Graph) -> Integers:
        """The row of each node, in the order of the file.

        Raises:
            GraphError: A node is not in the graph, or the graph's predictions are not for nodes.
        """
        if graph.level != NODE:
            raise GraphError(f"{self.path}: the predictions are for each {graph.level}, not for nodes")
        own = range(graph.nodes) if graph.ids is None else graph.ids.tolist()
        row = {str(each): position for position, each in enumerate(own)}
        for word, line in self.lines.items():
            if word not in row:
                hint = "is not a node id of the graph"
                if graph.ids is None:
                    hint = f"is not a row number from 0 to {graph.nodes - 1}; the graph has no ids"
                raise GraphError(f"{self.path}: line {line}: {short(word)!r} {hint}")
        return np.array([row[word] for word in self.lines], np.int64)
