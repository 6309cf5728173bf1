"""The only room where bytes from outside become arrays, and where arrays become files.

`.npz` is read without pickle. `.pt` is read by PyTorch's restricted unpickler with the classes that
PyG declares safe; a file that asks for more is refused, never loaded another way. Only the keys that
a graph has are read, and only after their sizes were found to be within the limits.
"""

from pathlib import Path

from adar_runtime.errors import GraphError, UsageError
from adar_runtime.files import write_file
from adar_runtime.formats import npz, pt
from adar_runtime.formats.predictions import prediction_writer
from adar_runtime.graph import Graph

__all__ = ["prediction_writer", "read_graph", "write_graph"]

FORMATS = {".npz": npz, ".pt": pt}


def read_graph(path: str | Path) -> Graph:
    """Read a graph from a `.npz` or `.pt` file."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise GraphError(f"{path}: a graph file ends in .npz or .pt, not {path.suffix or 'nothing'!r}")
    try:
        if path.is_dir():
            raise GraphError("this is a folder: name a file in it")
        if not path.is_file():
            raise GraphError("there is no such file")
        return FORMATS[path.suffix].read(path)
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


def write_graph(path: str | Path, graph: Graph) -> None:
    """Write a graph as `.npz` or `.pt`, so that `read_graph` gives it back."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"{path}: a graph is written as .npz or .pt, not {path.suffix or 'nothing'!r}")
    write_file(path, FORMATS[path.suffix].content(graph))
