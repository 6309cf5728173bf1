"""Turn the columns of a node table into a graph: a column is the id, the label, the split or a feature."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from adar_runtime.errors import GraphError, UsageError, short
from adar_runtime.graph import MASKS, PARTS, FeatureEncoding, Graph, Ids, Integers
from adar_runtime.graph.feature_encoding import CLASSES, LABEL_KINDS, NUMBERS
from adar_runtime.graph.formats._columns import (
    Codes,
    Column,
    Columns,
    Locate,
    columns_listed,
    finite_numbers,
    missing_words,
    parse_numbers,
)
from adar_runtime.graph.formats._table_features import degree_features, encode_features, fit_features
from adar_runtime.graph.labels import listed
from adar_runtime.graph.limits import NAME_BYTES, ByteBudget

LABEL_COLUMNS = ("y", "label", "class", "target")
SPLIT_COLUMN = "split"
SPLIT_WORDS = {part: part for part in PARTS} | {"valid": "val", "validation": "val"}
ROW_NUMBERS = re.compile(r"|Unnamed: 0(\.[0-9]+)?|__index_level_[0-9]+__")
"""Headings of the row numbers that pandas writes beside the columns of a table; again after each reading."""
MASK_WORDS = {"": False, "false": False, "0": False, "true": True, "1": True}

WHOLE = re.compile(r"[+-]?[0-9]+\.0*")  # a whole number that is written as a decimal number
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")  # an id that stays the same text as a 64-bit integer


@dataclass(frozen=True)
class TableChoice:
    """Which columns of a pair of tables hold what. None: the columns of the model's table, or a guess.

    Args:
        id: Column of the node ids.
        label: Column of the labels.
        labels: "classes" or "numbers" (regression targets).
        features: Columns that become features; by default all others.
        source: Column of the edge table with the ids that edges start from.
        target: Column with the ids that edges go to.
        both_ways: Add the reverse of every edge.

    Examples:
        >>> TableChoice(id="person", label="group", features=("height", "colour"))  # doctest: +SKIP
    """

    id: str | None = None
    label: str | None = None
    labels: str | None = None
    features: tuple[str, ...] | None = None
    source: str | None = None
    target: str | None = None
    both_ways: bool | None = None

    def completed(self, encoding: FeatureEncoding | None) -> "TableChoice":
        """The choice, with the columns of the model's table where nothing is chosen."""
        if self.labels not in (None, *LABEL_KINDS):
            raise UsageError(f"labels are {' or '.join(LABEL_KINDS)}, not {short(self.labels)!r}")
        if encoding is None:
            return self
        if self.features is not None:
            raise UsageError("the model decides which columns are features: omit --features")
        both_ways = encoding.both_ways if self.both_ways is None else self.both_ways
        return replace(
            self,
            id=self.id or encoding.id,
            labels=self.labels or encoding.labels,
            source=self.source or encoding.source,
            target=self.target or encoding.target,
            both_ways=both_ways,
        )


@dataclass(frozen=True)
class Imported:
    """An imported graph.

    Attributes:
        graph: The graph.
        notes: One sentence for each decision that the import made, such as a column that was left out.
    """

    graph: Graph
    notes: list[str]


def graph_from_columns(
    columns: Columns,
    edges: Integers,
    ids: Sequence[str],
    choice: TableChoice,
    encoding: FeatureEncoding | None,
    locate: Locate,
    budget: ByteBudget,
) -> Imported:
    """Build a graph from its edges, the ids of its nodes, and the other columns of its node table."""
    choice = choice.completed(encoding)
    notes: list[str] = []
    label, split, parts, _ = roles = column_roles(columns, choice, encoding, notes)
    if encoding is None:
        encoded = fit_features(columns, roles.names, choice.features, locate, notes)
    else:
        encoded = encoding.columns
        unused = [name for name in columns if name not in {*roles.names, *(one.name for one in encoded)}]
        notes += [f"columns that the model does not use: {listed(unused)}"] if unused else []
    if encoded:
        features = encode_features(encoded, columns, len(ids), locate, budget, known=encoding is not None)
    else:
        notes.append("no feature columns found: the features are 1 and log(1 + number of edges)")
        features = degree_features(edges, len(ids))
    said = notes if encoding is None else []
    labels = _labels(label, columns[label], choice.labels, locate, said) if label else {}
    masks = split_masks(columns[split].words(), locate) if split else {}
    masks |= {part: _mask(name, columns[name].words(), locate) for part, name in parts.items()}
    own = FeatureEncoding(
        encoded,
        id=choice.id,
        label=label,
        labels=_label_kind(labels),
        source=choice.source,
        target=choice.target,
        both_ways=bool(choice.both_ways),
    )
    graph = Graph(features, edges, **labels, **masks, ids=ids_of(ids, budget), feature_encoding=own)
    return Imported(graph, notes)


class ColumnRoles(NamedTuple):
    """The columns of a table of nodes that are neither ids nor features."""

    label: str | None
    split: str | None
    masks: dict[str, str]  # name of the mask -> name of its column
    row_numbers: list[str]

    @property
    def names(self) -> tuple[str | None, ...]:
        """The names of these columns."""
        return (self.label, self.split, *self.masks.values(), *self.row_numbers)


def column_roles(
    columns: Collection[str], choice: TableChoice, encoding: FeatureEncoding | None, notes: list[str]
) -> ColumnRoles:
    """Find the columns of labels, split and masks by their names. `columns` are all columns but the ids."""
    taken = choice.features or () if encoding is None else [one.name for one in encoding.columns]
    label, split = _label_and_split(columns, choice, encoding, taken, notes)
    rows = [name for name in columns if ROW_NUMBERS.fullmatch(name) and name not in (label, *taken)]
    if encoding is None and choice.features is None:
        notes += [f"{name!r} was left out: pandas writes row numbers under this heading" for name in rows]
    return ColumnRoles(label, split, _mask_columns(columns, split, taken), rows)


def ids_of(words: Sequence[str], budget: ByteBudget) -> Ids:
    """The ids as an array: integers if all are written as integers are, else strings."""
    budget.reserve("ids", len(words), NAME_BYTES)
    if all(map(INTEGER.fullmatch, words)):
        numbers = [*map(int, words)]
        if all(-(2**63) <= number < 2**63 for number in numbers):
            return np.array(numbers, np.int64)
    budget.reserve("ids", len(words), 8 * max(map(len, words), default=0))  # numpy pads to the longest, twice
    return np.array(words, np.str_)


def _label_and_split(
    columns: Collection[str],
    choice: TableChoice,
    encoding: FeatureEncoding | None,
    taken: Sequence[str],
    notes: list[str],
) -> tuple[str | None, str | None]:
    """The names of the two columns, if they exist. `taken` are features."""
    names = _by_meaning(columns)
    for name in (choice.label, *(choice.features or ())):
        if name is not None and name not in columns:
            what = "label" if name == choice.label else "feature"
            raise GraphError(
                f"{what} column {short(name)!r} not found; the columns are {columns_listed(columns)}"
            )
    if choice.label is not None and choice.label in taken:
        raise GraphError(
            f"{short(choice.label)!r} is the label and a feature: the model would read what it predicts"
        )
    split = names.get(SPLIT_COLUMN)
    split = None if split in taken else split
    if encoding is not None:
        return choice.label or (encoding.label if encoding.label in columns else None), split
    guessed = [names[word] for word in LABEL_COLUMNS if word in names and names[word] not in taken]
    label = choice.label or next(iter(guessed), None)
    if label is None and choice.labels is not None:
        raise GraphError(f"no label column found to read as {choice.labels}: name it with --label")
    if choice.features is None:
        notes += [
            f"{name!r} became a feature, but may be a label: remove the column, or choose it with --label"
            for name in guessed
            if name != label
        ]
    return label, split


def _by_meaning(columns: Collection[str]) -> dict[str, str]:
    """The columns of labels, of the split and of masks: name in lower case -> name."""
    found: dict[str, str] = {}
    for name in columns:
        meaning = name.lower()
        if meaning not in (*LABEL_COLUMNS, SPLIT_COLUMN, *MASKS):
            continue
        if meaning in found:
            raise GraphError(f"two columns mean {meaning!r}: rename or remove {found[meaning]!r} or {name!r}")
        found[meaning] = name
    return found


def _mask_columns(columns: Collection[str], split: str | None, taken: Sequence[str]) -> dict[str, str]:
    """The columns of masks, as PyG has them: name of the mask -> name of its column."""
    names = _by_meaning(columns)
    found = {mask: names[mask] for mask in MASKS if mask in names and names[mask] not in taken}
    if found and split is not None:
        raise GraphError(f"both {split!r} and {next(iter(found.values()))!r} are a split: remove one")
    return found


def _mask(name: str, words: Sequence[str], locate: Locate) -> Any:
    """The mask of a column of true and false, or of 1 and 0. A missing value is false."""
    values = [MASK_WORDS.get(word.lower()) for word in words]
    if None in values:
        node = values.index(None)
        raise GraphError(
            f"{locate(node)}: {name!r} is {short(words[node])!r}, not true or false (1 or 0, or empty)"
        )
    return np.array(values, np.bool_)


def split_masks(words: Sequence[str], locate: Locate) -> dict[str, Any]:
    """The three masks of a split, from the name of each node's part."""
    parts = [SPLIT_WORDS.get(word.lower(), "") for word in words]
    for node, (word, part) in enumerate(zip(words, parts, strict=True)):
        if word and not part:
            raise GraphError(
                f"{locate(node)}: split is {short(word)!r}, not one of {', '.join(PARTS)} or empty"
            )
    return {f"{part}_mask": np.array([one == part for one in parts]) for part in PARTS}


def _labels(name: str, column: Column, kind: str | None, locate: Locate, notes: list[str]) -> dict[str, Any]:
    """Regression targets (NaN where unknown) or classes (-1 where unknown).

    Without a `kind`, labels are regression targets if one of the numbers has a fraction.
    """
    numbers = finite_numbers(name, column, locate)
    if kind == NUMBERS and numbers is None:
        raise GraphError(f"{name!r} contains labels that are not numbers: omit --labels {NUMBERS}")
    if numbers is not None and kind != CLASSES and (kind == NUMBERS or (numbers % 1 > 0).any()):
        notes.append(f"labels are from {name!r}: regression targets")
        return {"labels": numbers[:, None]}
    codes, words = column.codes
    is_numeric = numbers is not None and parse_numbers(words) is not None  # true and false are words
    if is_numeric:  # pandas writes 1.0 for 1 if another label is missing
        words = [word.partition(".")[0] if WHOLE.fullmatch(word) else word for word in words]
    notes += missing_words(name, words, "is a class of the labels: leave unknown labels empty")
    return _class_labels(name, Codes(codes, words), is_numeric, kind, notes)


def _class_labels(
    name: str, labels: Codes, integers: bool, kind: str | None, notes: list[str]
) -> dict[str, Any]:
    # Whole numbers beyond 2^53 may be equal as floats: then their text decides, in every process alike.
    names = sorted(set(labels.words), key=(lambda word: (float(word), word)) if integers else None)
    number = {word: position for position, word in enumerate(names)}
    if integers and names and float(names[0]) == -1:  # the file already marks unknown labels by -1
        number, names = {word: position - 1 for position, word in enumerate(names)}, names[1:]
        unknown = sum(number[labels.words[code]] < 0 for code in labels.codes if code >= 0)
        notes.append(f"{unknown:,} labels of {name!r} are -1, which is no class: they are unknown")
    numbered = names == [str(position) for position in range(len(names))]
    hint = "; use --labels numbers for regression targets" if integers and not numbered and not kind else ""
    notes.append(
        f"labels are from {name!r}: {len(names):,} {'class' if len(names) == 1 else 'classes'}{hint}"
    )
    of_word = np.array([number[word] for word in labels.words] + [-1], np.int64)  # the last: no label
    return {"labels": of_word[labels.codes], "class_names": None if numbered else tuple(names)}


def _label_kind(labels: Mapping[str, Any]) -> str | None:
    return None if not labels else NUMBERS if labels["labels"].dtype == np.float32 else CLASSES
