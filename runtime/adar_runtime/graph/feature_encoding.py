"""How the columns of a table became the features of a graph, so that later tables become the same features.

A graph from tables has an encoding, `train` keeps it with the run, and `export` writes it to the manifest. It
comes from outside in a graph file and in a manifest: `from_value` checks everything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adar_runtime.errors import GraphError, short
from adar_runtime.graph.limits import MAX_COLUMNS

NUMBER, CATEGORY = KINDS = ("number", "category")
CLASSES, NUMBERS = LABEL_KINDS = ("classes", "numbers")
DEGREE_NAMES = ("constant", "log_degree")
"""The features of a table without feature columns: 1, and log(1 + number of edges)."""


@dataclass(frozen=True)
class EncodedColumn:
    """A column of the table, and the features that it became.

    Attributes:
        name: Name of the column.
        kind: "number": one feature. "category": one feature for each category, 1 for a node's own.
        categories: The categories in the order of their features. Other words become zeros.
        missing: Whether one more feature follows, which is 1 where the value is missing.
    """

    name: str
    kind: str
    categories: tuple[str, ...] = ()
    missing: bool = False

    @property
    def feature_names(self) -> list[str]:
        """A name for each feature: "height", "colour=red", "height is missing"."""
        names = [self.name] if self.kind == NUMBER else [f"{self.name}={word}" for word in self.categories]
        return [*names, f"{self.name} is missing"] if self.missing else names

    @property
    def width(self) -> int:
        """The number of features."""
        return (1 if self.kind == NUMBER else len(self.categories)) + self.missing


@dataclass(frozen=True)
class FeatureEncoding:
    """How a pair of tables, nodes and edges, became a graph.

    Attributes:
        columns: The columns of the node table that became features. Empty: the features are 1 and log(1 +
            number of edges).
        id: The column of the node ids; None if nodes had no ids.
        label: The column of the labels; None if there was none.
        labels: What the labels are: "classes" or "numbers" (regression targets); None without labels.
        source: The column of the edge table with the ids that edges start from; None: the first column.
        target: The column with the ids that edges go to; None: the second column.
        both_ways: Whether the reverse of every edge was added.

    Examples:
        >>> encoding = FeatureEncoding((EncodedColumn("colour", "category", ("blue", "red")),), id="person")
        >>> encoding.width, encoding.feature_names
        (2, ['colour=blue', 'colour=red'])
    """

    columns: tuple[EncodedColumn, ...]
    id: str | None = None
    label: str | None = None
    labels: str | None = None
    source: str | None = None
    target: str | None = None
    both_ways: bool = False

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(column.width for column in self.columns) or len(DEGREE_NAMES)

    @property
    def feature_names(self) -> list[str]:
        """A name for each feature."""
        return [name for column in self.columns for name in column.feature_names] or list(DEGREE_NAMES)

    def to_value(self) -> dict[str, Any]:
        """The encoding as JSON values."""
        return asdict(self)

    @classmethod
    def from_value(cls, value: Any) -> "FeatureEncoding":
        """Check JSON values, and build the encoding.

        Raises:
            ValueError: The values are not an encoding.
        """
        columns = tuple(map(_column, _take(value, "columns", list)))
        _require_different([column.name for column in columns], "column")
        names = {key: _name(value, key) for key in ("id", "label", "labels", "source", "target")}
        if names["labels"] not in (None, *LABEL_KINDS):
            raise ValueError(f"'labels' is {short(names['labels'])!r}, not one of {', '.join(LABEL_KINDS)}")
        found = cls(columns, **names, both_ways=_take(value, "both_ways", bool))
        if found.width > MAX_COLUMNS:
            raise ValueError(f"it has {found.width:,} features; at most {MAX_COLUMNS:,} are supported")
        return found


def check_same_encoding(model: FeatureEncoding | None, graph: FeatureEncoding | None) -> None:
    """Raise a GraphError if both encodings are known, and give features another meaning."""
    if model is not None and graph is not None and model.columns != graph.columns:
        raise GraphError(
            "the graph's table was encoded in another way than the model's: give the table itself with "
            "--edges, or convert it with adar-deploy data convert --bundle; data shard --features takes the "
            "model's columns in their order"
        )


def adds_reverse_edges(model: FeatureEncoding | None, graph: FeatureEncoding | None) -> bool:
    """Whether the model's table got the reverse of every edge, and the graph's table did not."""
    return model is not None and graph is not None and model.both_ways and not graph.both_ways


def _column(value: Any) -> EncodedColumn:
    kind, categories = _take(value, "kind", str), _take(value, "categories", list)
    if kind not in KINDS:
        raise ValueError(f"a column has the kind {short(kind)!r}, not one of {', '.join(KINDS)}")
    if not all(isinstance(word, str) and word for word in categories):
        raise ValueError("a category is not a text")
    _require_different(categories, "category")
    column = EncodedColumn(
        name=_take(value, "name", str),
        kind=kind,
        categories=tuple(categories),
        missing=_take(value, "missing", bool),
    )
    if (kind == NUMBER and categories) or not column.width:
        raise ValueError(f"column {short(column.name)!r} has the wrong number of categories")
    return column


def _name(value: Mapping[str, Any], key: str) -> str | None:
    return None if value.get(key) is None else str(_take(value, key, str))


def _take(value: Any, key: str, kind: type) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        raise ValueError(f"{key!r} is missing or not a {kind.__name__}")
    return value[key]


def _require_different(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two of its {what} names are equal")
