"""Many graphs in one `.parquet` table: one row for each graph.

| column | type | meaning |
|---|---|---|
| `x` | list of lists of numbers | the features of each node |
| `source`, `target` | lists of integers | the edges, with the node numbers of the graph, from 0 |
| `y` | integer | optional: the label of the graph |
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import AdarError, GraphError, MissingExtraError, reason, warn
from adar_runtime.graph import Graph
from adar_runtime.graph.formats._parquet_check import check_parquet
from adar_runtime.graph.formats.many_graphs import split_graphs
from adar_runtime.graph.labels import listed
from adar_runtime.graph.limits import ByteBudget

SUFFIX = ".parquet"
FEATURES, SOURCE, TARGET, LABEL = "x", "source", "target", "y"
REQUIRED = (FEATURES, SOURCE, TARGET)


def count(path: Path) -> int:
    """The number of graphs in a table; 1 for a file that cannot be read: the reader says why."""
    with suppress(AdarError, OSError):
        check_parquet(path, ByteBudget(path.stat().st_size))
        return int(_opened(path, lambda file: file.metadata.num_rows))
    return 1


def read(path: Path) -> list[Graph]:
    """Read all graphs of a table.

    Raises:
        GraphError: The file is damaged, a column is missing, or the columns do not fit together.
        MissingExtraError: pyarrow is not installed.
    """
    budget = ByteBudget(path.stat().st_size)
    check_parquet(path, budget)
    wanted, names = (*REQUIRED, LABEL), _opened(path, lambda file: list(file.schema_arrow.names))
    table = _opened(path, lambda file: file.read([name for name in wanted if name in names]))
    missing = [name for name in REQUIRED if name not in table.column_names]
    if missing:
        raise GraphError(
            f"the column {missing[0]} is missing: a table of graphs has {', '.join(REQUIRED)}; a table of "
            "nodes needs --edges, the table of its edges"
        )
    rows, nodes = _lists(table, FEATURES)
    values, widths = _flat(rows, FEATURES)
    if len(np.unique(np.diff(widths))) > 1:
        raise GraphError("the rows of x differ in length: give every node the same features")
    ends = {name: _lists(table, name) for name in (SOURCE, TARGET)}
    if not np.array_equal(ends[SOURCE][1], ends[TARGET][1]):
        raise GraphError("source and target differ in length: each edge has one of each")
    arrays: dict[str, Any] = {
        "node_ptr": nodes,
        "edge_ptr": ends[SOURCE][1],
        "x": _numbers(values, FEATURES, "fiu").reshape(len(widths) - 1, -1),
        "edge_index": np.stack([_numbers(ends[name][0], name, "iu") for name in (SOURCE, TARGET)]),
    }
    if LABEL in table.column_names:
        arrays["y"] = _numbers(table.column(LABEL).combine_chunks(), LABEL, "iu")
    graphs = split_graphs(arrays, budget)
    unused = [name for name in names if name not in wanted]
    if unused:
        warn(f"columns of the table that are not used: {listed(unused)}; a .npz of many graphs has all keys")
    return graphs


def _opened(path: Path, action: Callable[[Any], Any]) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading .parquet", "parquet") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return action(file)
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise GraphError(f"not a readable .parquet file ({reason(error)})") from error


def _lists(table: Any, name: str) -> tuple[Any, Any]:
    """The items of a column of lists, and where the list of each row begins."""
    return _flat(table.column(name).combine_chunks(), name)


def _flat(column: Any, name: str) -> tuple[Any, Any]:
    import pyarrow

    kinds = pyarrow.types
    if kinds.is_fixed_size_list(column.type):
        column = column.cast(pyarrow.list_(column.type.value_type))
    if not (kinds.is_list(column.type) or kinds.is_large_list(column.type)) or column.null_count:
        raise GraphError(f"{name} has to be a column of lists, without missing values")
    starts = column.offsets.to_numpy().astype(np.int64)
    return column.flatten(), starts - starts[0]


def _numbers(values: Any, name: str, kinds: str) -> Any:
    if values.null_count:
        raise GraphError(f"{name} has missing values")
    found = values.to_numpy(zero_copy_only=False)
    if found.dtype.kind not in kinds:
        raise GraphError(f"{name} holds {values.type}, not {'integers' if kinds == 'iu' else 'numbers'}")
    return found
