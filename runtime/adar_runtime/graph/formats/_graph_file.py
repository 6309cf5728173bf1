"""What all readers of graph files share: the keys of a file, and the file's name in every error message."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import AdarError, AdarWarning, GraphError, reason, short, warn
from adar_runtime.graph import MASKS, NODE, FeatureEncoding, Graph
from adar_runtime.graph.limits import ByteBudget, check_stored
from adar_runtime.json_files import parse_json

MAX_LISTED = 8  # keys that a warning names
MAX_GAPS = 10  # classes without a label: a small graph for inference does not have all classes

KEYS = (
    "x",
    "edge_index",
    "y",
    *MASKS,
    "target_x",
    "class_names",
    "pairs",
    "level",
    "ids",
    "feature_encoding",
    "edge_weight",
)
"""The keys that are read, in every format. A warning names all other keys of a file."""

SILENT_KEYS = ("name", "num_nodes", "num_classes")
"""Keys without a warning: descriptions that are not needed."""

UNSUPPORTED = {
    "edge_attr": "edge features are not used; one weight per edge belongs in edge_weight",
    "adj_t": "save edge_index instead",
}
MEANT = {
    **dict.fromkeys(("label", "labels", "target", "targets", "class", "classes", "Y"), "y"),
    **dict.fromkeys(("feat", "feats", "feature", "features", "node_feat", "node_features", "X"), "x"),
    **dict.fromkeys(("edges", "edge_list", "edge_indices", "edgelist"), "edge_index"),
    **dict.fromkeys(("train", "train_masks", "train_idx", "train_index"), "train_mask"),
    **dict.fromkeys(("val", "valid_mask", "validation_mask", "val_masks", "val_idx"), "val_mask"),
    **dict.fromkeys(("test", "test_masks", "test_idx", "test_index"), "test_mask"),
    **dict.fromkeys(("target_features", "class_features", "class_x"), "target_x"),
    **dict.fromkeys(("names", "label_names", "classnames", "target_names"), "class_names"),
    **dict.fromkeys(("edge_label_index", "pair", "links"), "pairs"),
    **dict.fromkeys(("id", "node_id", "node_ids", "n_id"), "ids"),
    **dict.fromkeys(("weight", "weights", "edge_weights"), "edge_weight"),
}
"""Other names that people give to the keys of a graph."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every error into a GraphError that begins with the file's name. Use one block per file."""
    try:
        if path.is_dir():
            raise GraphError("this is a folder: name a file in it")
        if not path.is_file():
            raise GraphError("there is no such file")
        check_stored([path])
        yield
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
    except (AdarError, AdarWarning):
        raise
    except Exception as error:  # the content decides which errors libraries raise
        raise GraphError(f"{path}: cannot be read ({type(error).__name__}: {reason(error)})") from error


def graph_from_arrays(
    arrays: Mapping[str, Any], found: Collection[str], also_read: Iterable[str] = (), source: str = "file"
) -> Graph:
    """Build a graph from its arrays by key, and warn about keys that are not used.

    Args:
        arrays: The arrays by key.
        found: All keys of the file.
        also_read: Keys that the format has read, besides KEYS.
        source: What the arrays come from, for messages.
    """
    graph = graph_without_warnings(arrays, found, source)
    warn_unused(found, also_read, source)
    warn_labels(graph)
    return graph


def graph_without_warnings(arrays: Mapping[str, Any], found: Collection[str], source: str = "file") -> Graph:
    """The same, for one of many graphs, whose warnings are given together."""
    for key in ("x", "edge_index"):
        require_key(key, arrays, found, source)
    level = arrays.get("level", NODE)
    level = level.item() if isinstance(level, np.ndarray) and level.size == 1 else level
    if not isinstance(level, str):  # not converted: the text of nested lists can have any length
        raise GraphError(f"level is a {type(level).__name__}, not a text")
    return Graph(
        features=arrays["x"],
        edge_index=arrays["edge_index"],
        labels=arrays.get("y"),
        **{name: arrays.get(name) for name in MASKS},
        target_features=arrays.get("target_x"),
        class_names=arrays.get("class_names"),
        pairs=arrays.get("pairs"),
        level=level,
        ids=arrays.get("ids"),
        feature_encoding=_encoding(arrays.get("feature_encoding")),
        edge_weight=arrays.get("edge_weight"),
    )


def _encoding(value: Any) -> FeatureEncoding | None:
    """The encoding from its JSON text."""
    if value is None:
        return None
    try:
        text = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        return FeatureEncoding.from_value(parse_json(text))
    except (TypeError, ValueError) as error:
        raise GraphError(f"feature_encoding cannot be read ({reason(error)})") from error


def warn_labels(graph: Graph) -> None:
    """Warn about labels that are read, but probably mean something else."""
    _warn_gaps(graph)
    _warn_indicators(graph)
    _warn_partly_known(graph)


def _warn_gaps(graph: Graph) -> None:
    """Warn if most classes have no label: the labels are probably codes, not numbers from 0."""
    described = graph.target_features is not None or len(graph.class_names or ()) >= graph.targets
    if graph.labels is None or graph.regression or described:
        return
    used = len(np.unique(graph.labels[graph.labels >= 0]))
    if graph.targets - used > max(used, MAX_GAPS):
        warn(
            f"y has {used:,} different labels up to {graph.targets - 1:,}, so {graph.targets:,} classes: "
            f"number the labels from 0 to {used - 1:,}, or name all classes in class_names"
        )


def _warn_indicators(graph: Graph) -> None:
    """Warn about one column per class: the model would learn the zeros and ones as numbers."""
    labels = graph.labels
    if labels is None or not graph.regression or labels.shape[1] < 2:
        return
    if bool(((labels == 0) | (labels == 1) | np.isnan(labels)).all()):
        warn(
            f"y has {labels.shape[1]:,} columns of 0 and 1, so they are read as regression targets: if they "
            "are classes, save one number per label, such as y.argmax(1)"
        )


def _warn_partly_known(graph: Graph) -> None:
    """Warn about regression targets of which some numbers are unknown: the others are not used either."""
    if graph.labels is None or not graph.regression:
        return
    unknown = np.isnan(graph.labels).sum(axis=1)
    columns = graph.labels.shape[1]
    partly = int(((unknown > 0) & (unknown < columns)).sum())
    if partly:
        warn(
            f"{partly:,} of {len(unknown):,} rows of y have NaN in some of {columns:,} columns: none of "
            "their numbers is used; fill these rows, or train a model for each column"
        )


def warn_unused(found: Collection[str], also_read: Iterable[str] = (), source: str = "file") -> None:
    """Warn about keys that are not used. The arguments are those of `graph_from_arrays`."""
    unused = {*found}.difference(KEYS, SILENT_KEYS, also_read)
    if unused:
        hints = [f"{short(key, 40)}{_hint(key, found)}" for key in sorted(unused)]
        rest = f" and {len(hints) - MAX_LISTED:,} more" if len(hints) > MAX_LISTED else ""
        warn(f"keys of the {source} that are not used: {', '.join(hints[:MAX_LISTED])}{rest}")


def _hint(key: str, found: Collection[str]) -> str:
    """What to do about a key that is not used, in parentheses."""
    meant = MEANT.get(key)
    if meant is not None and meant not in found:
        return f" (rename it to {meant})"
    return f" ({UNSUPPORTED[key]})" if key in UNSUPPORTED else ""


def require_key(key: str, arrays: Mapping[str, Any], found: Collection[str], source: str = "file") -> None:
    """Raise a GraphError that lists the keys that were found if `key` is missing."""
    if key not in arrays:
        hint = next((f": rename {other} to {key}" for other in sorted(found) if MEANT.get(other) == key), "")
        raise GraphError(
            f"key {key!r} not found; the {source} has {short(', '.join(sorted(found)) or 'no keys')}{hint}"
        )


def reserve_pair_ids(arrays: Mapping[str, Any], budget: ByteBudget) -> None:
    """Count the ids of the pairs in a file of predictions: numpy pads each one to the longest id."""
    pairs, ids = arrays.get("pairs"), arrays.get("ids")
    if isinstance(pairs, np.ndarray) and isinstance(ids, np.ndarray):
        budget.reserve("the ids of the pairs", pairs.size, 2 * ids.itemsize)


def optional_arrays(graph: Graph) -> dict[str, Any]:
    """All arrays of a graph except features and edges, by key."""
    names = None if graph.class_names is None else np.array(graph.class_names)
    level = None if graph.level == NODE else np.array(graph.level)
    values: dict[str, Any] = {"y": graph.labels, "target_x": graph.target_features, "pairs": graph.pairs}
    encoding = graph.feature_encoding
    text = None if encoding is None else np.array(json.dumps(encoding.to_value(), ensure_ascii=False))
    values |= {"class_names": names, "level": level, "ids": graph.ids, "feature_encoding": text}
    values["edge_weight"] = graph.edge_weight
    values |= {name: getattr(graph, name) for name in MASKS}
    return {key: value for key, value in values.items() if value is not None}
