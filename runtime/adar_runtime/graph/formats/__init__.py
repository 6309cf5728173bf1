"""The only room where bytes from outside become arrays, and where arrays become files.

`.npz` is read without pickle. `.pt` is read by PyTorch's restricted unpickler with the classes that
PyG declares safe; a file that asks for more is refused, never loaded another way. Only the keys that
a graph has are read, and only after their sizes were found to be within the limits.
"""

from pathlib import Path

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.files import write_file
from adar_runtime.graph import Graph
from adar_runtime.graph.formats import edge_list, graphml, npz, pt
from adar_runtime.graph.formats.columns import Imported
from adar_runtime.graph.formats.reading import reading
from adar_runtime.graph.limits import check_size

__all__ = ["import_graph", "read_graph", "write_graph"]

FORMATS = {".npz": npz, ".pt": pt}
TEXT = (".csv", ".tsv", ".txt", ".edges")
NETWORKX = (".graphml", ".gml")


def read_graph(path: str | Path) -> Graph:
    """Read a graph from a `.npz` or `.pt` file."""
    path = Path(path)
    if path.suffix not in FORMATS:
        other = ": adar-deploy data convert makes one of it" if path.suffix in (*TEXT, *NETWORKX) else ""
        raise GraphError(f"{path}: a graph file ends in .npz or .pt, not {path.suffix or 'nothing'!r}{other}")
    with reading(path):
        return FORMATS[path.suffix].read(path)


def import_graph(
    path: str | Path, table: str | Path | None = None, label: str | None = None, kind: str | None = None
) -> Imported:
    """Read a graph of any kind: also edges as text, with a `table` of nodes, and what NetworkX writes.

    `label` names the attribute or column that the labels are in; `kind` says whether they are "classes" or
    "numbers" to come close to. Without it, numbers are those of which one has a fraction.
    """
    path, table = Path(path), None if table is None else Path(table)
    if table is not None and path.suffix not in TEXT:
        raise UsageError(f"a table of nodes goes with edges as text ({', '.join(TEXT)}), not with {path}")
    if path.suffix in FORMATS:
        if label is not None or kind is not None:
            raise UsageError(f"{path} has its labels in y: leave --label and --labels out")
        return Imported(read_graph(path), [])
    if path.suffix not in (*TEXT, *NETWORKX):
        known = ", ".join([*FORMATS, *NETWORKX, *TEXT])
        raise GraphError(f"{path}: a file to convert ends in {known}, not {path.suffix or 'nothing'!r}")
    if path.suffix in TEXT:
        return edge_list.read(path, table, label, kind)
    with reading(path):
        check_size(path)
        return graphml.read(path, label, kind)


def write_graph(path: str | Path, graph: Graph) -> None:
    """Write a graph as `.npz` or `.pt`, so that `read_graph` gives it back."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: a graph is written as .npz or .pt, not {path.suffix or 'nothing'!r}")
    write_file(path, FORMATS[path.suffix].content(graph))
