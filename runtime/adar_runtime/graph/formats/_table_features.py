"""Turn the columns of a node table into features, and keep how.

Columns of numbers become features as they are. Columns of few different words become one-hot features.
Columns of free text are left out. Missing values become 0, and one more feature marks them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, short, warn
from adar_runtime.graph import EncodedColumn, Floats, Integers
from adar_runtime.graph.feature_encoding import CATEGORY, NUMBER
from adar_runtime.graph.formats._columns import (
    MISSING_WORDS,
    Column,
    Columns,
    Locate,
    columns_listed,
    finite_numbers,
    missing_words,
    parse_numbers,
)
from adar_runtime.graph.labels import BOOLEANS, MAX_LISTED, listed, positions_by_name
from adar_runtime.graph.limits import ByteBudget

MAX_WORDS = 50  # categories of a column that nobody chose
MAX_CHOSEN_WORDS = 1000  # categories of a column that the user chose as a feature
FEATURE_BYTES = 12  # a feature, and the temporary arrays of its column


def fit_features(
    columns: Columns,
    others: Sequence[str | None],
    chosen: tuple[str, ...] | None,
    locate: Locate,
    notes: list[str],
) -> tuple[EncodedColumn, ...]:
    """Decide how each column becomes features; columns of free text are left out unless they were chosen."""
    names = (
        [name for name in columns if name not in others] if chosen is None else list(dict.fromkeys(chosen))
    )
    encoded, gaps = [], dict[str, int]()
    for name in names:
        numbers = finite_numbers(name, columns[name], locate)
        if numbers is not None:
            gaps[name] = int(np.isnan(numbers).sum())
            encoded.append(EncodedColumn(name, NUMBER, missing=gaps[name] > 0))
            continue
        codes = columns[name].codes
        known = [word for word in codes.words if word.lower() not in MISSING_WORDS]
        if known and parse_numbers(known) is not None:
            what = "is not a number, so the column is read as words: leave missing values empty"
            notes += missing_words(name, codes.words, what)
        notes += _commas_in_numbers(name, known)
        most = MAX_CHOSEN_WORDS if chosen else min(MAX_WORDS, max(2, len(codes.codes) // 2))
        if len(codes.words) <= most:
            gaps[name] = int((codes.codes < 0).sum())
            encoded.append(EncodedColumn(name, CATEGORY, tuple(sorted(codes.words)), gaps[name] > 0))
            notes.append(f"{name!r} became {len(codes.words)} one-hot columns, one per value")
        elif chosen:
            raise GraphError(
                f"feature column {short(name)!r} has {len(codes.words):,} different words; at most {most:,} "
                "become features; adar-deploy embed turns text into features"
            )
        else:
            notes.append(
                f"{name!r} was left out because it is text; adar-deploy embed turns text into features"
            )
    empty = [f"{count:,} of {name!r}" for name, count in gaps.items() if count]
    if empty:
        rest = f", …: {len(empty):,} columns in total" if len(empty) > MAX_LISTED else ""
        notes.append(
            f"empty cells became 0, with a column that marks them: {', '.join(empty[:MAX_LISTED])}{rest}"
        )
    return tuple(encoded)


def _commas_in_numbers(name: str, words: Sequence[str]) -> Iterator[str]:
    """A note if the words are numbers that have a comma."""
    commas = [word for word in words if "," in word]
    if commas and parse_numbers([word.replace(",", ".", 1) for word in words]) is not None:
        yield f"{name!r} has numbers with a comma ({short(commas[0])!r}): write them with a point to use them"


def encode_features(
    encoded: Sequence[EncodedColumn],
    columns: Columns,
    nodes: int,
    locate: Locate,
    budget: ByteBudget,
    *,
    known: bool,
) -> Floats:
    """The features [n, f]. `known`: a model has this encoding, so values that are new to it are reported."""
    absent = [one.name for one in encoded if one.name not in columns]
    if absent:
        raise GraphError(
            f"the model needs the column {listed(absent)}; the columns are {columns_listed(columns)}"
        )
    for one in encoded:
        budget.reserve(f"column {short(one.name)!r}", nodes * one.width, FEATURE_BYTES)
    features = np.zeros((nodes, sum(one.width for one in encoded)), np.float32)
    start = 0
    for one in encoded:
        block = features[:, start : start + one.width]
        missing = _fill(block, one, columns[one.name], locate)
        if one.missing:
            block[:, -1] = missing
        elif missing.any() and known:
            warn(
                f"{int(missing.sum()):,} values of {one.name!r} are missing, which the model has not seen: "
                "they become 0"
            )
        start += one.width
    return features


def _fill(block: Floats, one: EncodedColumn, column: Column, locate: Locate) -> Any:
    """Write the features of a column, and return which of its values are missing."""
    if one.kind == NUMBER:
        numbers = finite_numbers(one.name, column, locate)
        if numbers is None:
            numbers = _booleans(column)
        if numbers is None:
            raise _not_a_number(one.name, column, locate)
        block[:, 0] = np.nan_to_num(numbers)
        return np.isnan(numbers)
    codes, words = column.codes
    position = positions_by_name(one.categories)
    of_word = np.array([position.get(word, -1) for word in words] + [-1], np.int64)  # the last: missing
    of_row = of_word[codes]
    rows = np.flatnonzero(of_row >= 0)
    block[rows, of_row[rows]] = 1
    unseen = (of_row < 0) & (codes >= 0)
    if unseen.any():
        new = [word for word in words if word not in position]
        warn(
            f"{int(unseen.sum()):,} values of {one.name!r} are categories that the model has not seen: "
            f"{listed(new)}; they become zeros"
        )
    return codes < 0


def _booleans(column: Column) -> Floats | None:
    """The words true and false as the numbers that JSON lines and Parquet have; None for other words."""
    codes, words = column.codes
    if not {word.lower() for word in words} <= set(BOOLEANS):
        return None
    return np.array([word.lower() == "true" for word in words] + [np.nan], np.float32)[codes]


def _not_a_number(name: str, column: Column, locate: Locate) -> GraphError:
    for row, word in enumerate(column.words()):
        try:
            float(word or 0)
        except ValueError:
            hint = "the model takes numbers here; leave unknown values empty"
            return GraphError(f"{locate(row)}: {name!r} is {short(word)!r}: {hint}")
    return GraphError(f"{name!r} does not hold numbers, which the model takes here")


def degree_features(edges: Integers, nodes: int) -> Floats:
    """The features of a table without feature columns."""
    degrees = np.bincount(edges.ravel(), minlength=nodes)
    return np.stack([np.ones(nodes), np.log1p(degrees)], axis=1).astype(np.float32)
