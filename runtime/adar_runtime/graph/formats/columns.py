"""What is known about nodes, column by column, as other programs write it -> the arrays of a graph.

A column is known by its name: the label, the part of the split, or a feature. Numbers are features as they
are, a few different words become a column each, and free text is left out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, UsageError, short
from adar_runtime.graph import Floats, Graph, Integers

LABELS = ("y", "label", "class", "target")
CLASSES, NUMBERS = KINDS = ("classes", "numbers")
"""What labels can be."""

SPLIT = "split"
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
WORDS = 50  # different ones that a column may have to be features
NAMED = 5  # columns in a note

Columns = Mapping[str, Sequence[Any]]
"""Values by name, one a node; None or "" where nothing is known."""

Where = Callable[[int], str]
"""What a person finds a node by in the file: its line, or its name."""


@dataclass(frozen=True)
class Imported:
    """A graph, and what was made of its file."""

    graph: Graph
    notes: list[str]


def to_graph(
    columns: Columns, edges: Integers, nodes: int, label: str | None, kind: str | None, where: Where
) -> Imported:
    """Build a graph from its edges and what is known about its nodes."""
    if kind not in (None, *KINDS):
        raise UsageError(f"labels are {' or '.join(KINDS)}, not {short(kind)!r}")
    names = {name.lower(): name for name in columns}
    if label is not None and label not in columns:
        raise GraphError(f"there is no column {label!r} to take labels from; found {_listed(columns)}")
    chosen = label or next((names[name] for name in LABELS if name in names), None)
    split = names.get(SPLIT)
    notes: list[str] = []
    others = {name: values for name, values in columns.items() if name not in (chosen, split)}
    numbers = {name: _numbers(name, values, where) for name, values in others.items()}
    blocks = [_features(name, values, numbers[name], notes) for name, values in others.items()]
    features = [block for block in blocks if block is not None]
    notes += _about_empty(numbers)
    if not features:
        notes.append("no column has numbers: a node's features are 1 and the logarithm of its edges")
        features = [_structure(edges, nodes)]
    if chosen is None and kind is not None:
        raise GraphError(f"there is no column of labels to take for {kind}: name it with --label")
    known = _labels(chosen, columns[chosen], kind, where, notes) if chosen else {}
    masks = split_masks(columns[split], where) if split else {}
    return Imported(Graph(np.concatenate(features, axis=1), edges, **known, **masks), notes)


def _features(name: str, values: Sequence[Any], numbers: Floats | None, notes: list[str]) -> Floats | None:
    if numbers is not None:
        return np.nan_to_num(numbers)[:, None]
    words = [_word(value) for value in values]
    different = sorted(set(words))
    if len(different) > min(WORDS, max(2, len(words) // 2)):
        notes.append(f"{name!r} was left out: it is text (adar-deploy embed makes features of that)")
        return None
    notes.append(f"{name!r} became {len(different)} columns, one for each of its values")
    place = {word: number for number, word in enumerate(different)}
    return np.eye(len(different), dtype=np.float32)[[place[word] for word in words]]


def _numbers(name: str, values: Sequence[Any], where: Where) -> Floats | None:
    """The values as numbers, if all of them are; NaN where nothing is known."""
    empty = np.array([not _word(value) for value in values], np.bool_)
    try:
        given = [math.nan if nothing else float(value) for nothing, value in zip(empty, values, strict=True)]
        with np.errstate(over="ignore"):
            numbers = np.array(given, np.float32)
    except (TypeError, ValueError, OverflowError):
        return None
    finite = empty | np.isfinite(numbers)
    if not finite.all():
        node = int(finite.argmin())
        raise GraphError(
            f"{where(node)}: {name!r} is {short(values[node])}, which is no finite 32-bit number; "
            "leave empty what is not known"
        )
    return numbers


def _about_empty(numbers: Mapping[str, Floats | None]) -> list[str]:
    """What nobody should have to find out: a 0 that was not in the file."""
    counts = {name: int(np.isnan(column).sum()) for name, column in numbers.items() if column is not None}
    empty = [f"{count:,} of {name!r}" for name, count in counts.items() if count]
    if not empty:
        return []
    rest = f", …: {len(empty):,} columns in all" if len(empty) > NAMED else ""
    return [f"empty cells became the number 0: {', '.join(empty[:NAMED])}{rest}"]


def _labels(
    name: str, values: Sequence[Any], kind: str | None, where: Where, notes: list[str]
) -> dict[str, Any]:
    """Numbers to come close to, NaN where unknown, or classes, there -1.

    Unless somebody says what they are, numbers are those of which one has a fraction.
    """
    numbers = _numbers(name, values, where)
    if kind == NUMBERS and numbers is None:
        raise GraphError(f"{name!r} has other labels than numbers: leave out --labels {NUMBERS}")
    if numbers is not None and kind != CLASSES and (kind == NUMBERS or (numbers % 1 > 0).any()):
        notes.append(f"labels are from {name!r}: numbers to come close to")
        return {"labels": numbers}
    words = ["" if value is None else _word(value) for value in values]
    whole = numbers is not None
    names = sorted({word for word in words if word}, key=(lambda word: float(word)) if whole else None)
    place = {word: number for number, word in enumerate(names)} | {"": -1}
    if whole and names and float(names[0]) == -1:  # already as we have it
        place, names = {word: number - 1 for number, word in enumerate(names)} | {"": -1}, names[1:]
    numbered = names == [str(number) for number in range(len(names))]
    other = "; --labels numbers takes them for numbers" if whole and not numbered and kind is None else ""
    notes.append(f"labels are from {name!r}: {len(names):,} classes{other}")
    return {
        "labels": np.array([place[word] for word in words], np.int64),
        "class_names": None if numbered else tuple(names),
    }


def split_masks(values: Sequence[Any], where: Where) -> dict[str, Any]:
    """The masks of the three parts, from their names."""
    words = [_word(value) for value in values]
    parts = [PARTS.get(word.lower(), "") for word in words]
    for node, (word, part) in enumerate(zip(words, parts, strict=True)):
        if word and not part:
            raise GraphError(f"{where(node)}: split is {short(word)!r}, not one of train, val, test or empty")
    return {f"{part}_mask": np.array([one == part for one in parts]) for part in ("train", "val", "test")}


def _structure(edges: Integers, nodes: int) -> Floats:
    ends = np.bincount(edges.ravel(), minlength=nodes)
    return np.stack([np.ones(nodes), np.log1p(ends)], axis=1).astype(np.float32)


def _word(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _listed(names: Columns) -> str:
    return short(", ".join(names) or "none")
