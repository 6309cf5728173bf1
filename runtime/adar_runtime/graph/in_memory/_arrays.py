"""What the conversions share: arrays by the keys of a graph file, in the forms that people have in memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from adar_runtime.graph import MASKS, Floats, Graph, SparseRows
from adar_runtime.graph._checks import array
from adar_runtime.graph.formats._graph_file import graph_from_arrays
from adar_runtime.graph.formats.many_graphs import with_level
from adar_runtime.graph.labels import listed

KEY_OF_FIELD = {"features": "x", "labels": "y", "target_features": "target_x"}
"""Fields of a `Graph` whose key has another name."""

SPARSE_BELOW = 0.1  # features with a smaller share of non-zero entries are stored as sparse rows


def by_key(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a `Graph` by the keys of a graph file."""
    return {KEY_OF_FIELD.get(name, name): value for name, value in fields.items() if value is not None}


def build(arrays: dict[str, Any], source: str, on_note: Callable[[str], None]) -> Graph:
    """Build a graph. Labels may be strings, and masks may have PyG's shape.

    One label for several nodes is the label of the graph. `source` names the object in messages.
    """
    if "y" in arrays:
        arrays |= labels_by_key(arrays["y"], arrays.get("class_names"), on_note)
    arrays = with_level(arrays)
    arrays |= _masks({name: arrays[name] for name in MASKS if name in arrays})
    if isinstance(arrays.get("x"), np.ndarray):
        arrays["x"] = sparse_if_mostly_zero(arrays["x"])
    return graph_from_arrays(arrays, arrays, source=source)


def sparse_if_mostly_zero(x: Floats) -> Floats | SparseRows:
    """Features as sparse rows if fewer than a tenth of their entries are not zero: bags of words, one-hot."""
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        return x  # an error that the graph reports
    rows, columns = x.nonzero()
    if len(rows) >= SPARSE_BELOW * x.size:
        return x
    starts = np.searchsorted(rows, np.arange(len(x) + 1))
    return SparseRows(starts, columns, x[rows, columns], (x.shape[0], x.shape[1]))


def labels_by_key(y: Any, names: Any, on_note: Callable[[str], None]) -> dict[str, Any]:
    """Labels as an array of at least one dimension; words become classes in alphabetical order."""
    if isinstance(y, list | tuple) and any(isinstance(one, str) for one in y):
        y = np.array(y, object)  # numpy would turn NaN among words into the word "nan"
    given = np.atleast_1d(array("y", y))
    if given.dtype == np.bool_:
        classes = ["False", "True"] if names is None else names  # as in other formats
        return {"y": given.astype(np.int64), "class_names": classes}
    if given.dtype.kind not in "OUS" or names is not None:
        return {"y": given}
    flat = given.reshape(-1).tolist()
    if not all(isinstance(one, str | bytes) or _is_missing(one) for one in flat):
        return {"y": given}  # objects of other types: an error that the graph reports
    words = ["" if _is_missing(one) else _text(one).strip() for one in flat]
    classes = sorted({word for word in words if word})
    number = {word: position for position, word in enumerate(classes)} | {"": -1}
    on_note(f"the labels are words: {len(classes):,} classes, {listed(classes)}")
    return {"y": np.array([number[word] for word in words], np.int64), "class_names": classes}


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither true nor false
        return True
    except ValueError:  # an array or a sparse matrix
        return False


def _text(word: str | bytes) -> str:
    return word.decode(errors="backslashreplace") if isinstance(word, bytes) else word


def _masks(masks: dict[str, Any]) -> dict[str, Any]:
    """Masks [splits, k]. A single split is repeated if other masks have several, as in PyG's WikiCS."""
    rows = {name: np.atleast_2d(array(name, mask)) for name, mask in masks.items()}
    splits = max((len(mask) for mask in rows.values()), default=0)
    return {
        name: np.repeat(mask, splits, axis=0) if len(mask) == 1 and mask.ndim == 2 else mask
        for name, mask in rows.items()
    }


def as_rows(mask: Any, outputs: int, *, of_pyg: bool = False) -> Any:
    """A mask with one row per split, from PyG's shape with one column per split; other masks unchanged.

    With as many splits as outputs, only a mask `of_pyg` has its splits in columns.
    """
    given = np.asarray(mask)
    by_column = given.ndim == 2 and given.shape[0] == outputs and (of_pyg or given.shape[1] != outputs)
    return given.T if by_column else given


def with_fields(graph: Graph, fields: dict[str, Any], on_note: Callable[[str], None]) -> Graph:
    """The graph with other fields. Labels may be words, and masks may have PyG's shape."""
    fields = dict(fields)
    if fields.get("labels") is not None:
        found = labels_by_key(fields["labels"], fields.get("class_names"), on_note)
        fields |= {"labels": found.pop("y")} | found  # numbers belong to the names that the graph has
    masks = {name: as_rows(fields[name], graph.outputs) for name in MASKS if fields.get(name) is not None}
    return replace(graph, **fields | masks)
