"""A column of a table, in the three forms that an import needs: words, numbers, codes of different words."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, short
from adar_runtime.graph import Floats, Integers

EXACT = 2**53  # whole floats below are exact


class Numbers(NamedTuple):
    """A column of numbers; NaN where the value is missing."""

    values: NDArray[np.float64]
    missing: NDArray[np.bool_]


class Codes(NamedTuple):
    """The position of each value in the list of different words; -1 where the value is missing."""

    codes: Integers
    words: list[str]


class Column(Protocol):
    """A column of a table."""

    @property
    def numbers(self) -> Numbers | None: ...  # None if a value is not a number
    @property
    def codes(self) -> Codes: ...
    def words(self) -> list[str]: ...  # "" where the value is missing


Columns = Mapping[str, Column]
MISSING_WORDS = frozenset(("na", "n/a", "#n/a", "nan", "null", "none", "\\n"))
Locate = Callable[[int], str]
"""Node number -> how a person finds this node in the file: its line, its row or its name."""


class ValueColumn:
    """A column of Python values: texts of a CSV file, values of JSON, attributes of NetworkX."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def words(self) -> list[str]:
        """The values as text."""
        return [as_word(value) for value in self._values]

    @cached_property
    def numbers(self) -> Numbers | None:
        """The values as numbers."""
        missing = np.array([not as_word(value) for value in self._values], np.bool_)
        values = parse_numbers(
            [math.nan if nothing else value for nothing, value in zip(missing, self._values, strict=True)]
        )
        return None if values is None else Numbers(values, missing)

    @cached_property
    def codes(self) -> Codes:
        """The values by their different words."""
        return codes_of(self.words())


class SparseColumn:
    """A column with values in some rows, and one value or none in all others.

    It costs as much as its values: a small file can have thousands of columns with one value each.
    """

    def __init__(self, rows: Sequence[int], values: Sequence[Any], count: int, rest: Any = None) -> None:
        self._values = ValueColumn([*values, rest])
        self._at: Integers = np.full(count, len(values))  # position of each row's value
        self._at[rows] = np.arange(len(values))

    def words(self) -> list[str]:
        """The values as text."""
        words = self._values.words()
        return [words[at] for at in self._at.tolist()]

    @cached_property
    def numbers(self) -> Numbers | None:
        """The values as numbers."""
        found = self._values.numbers
        return None if found is None else Numbers(found.values[self._at], found.missing[self._at])

    @cached_property
    def codes(self) -> Codes:
        """The values by their different words."""
        codes, words = self._values.codes
        return Codes(codes[self._at], words)


def column_of(rows: Sequence[int], values: Sequence[Any], count: int, rest: Any = None) -> Column:
    """The column of `count` rows with these values; all other rows have the value `rest`."""
    return ValueColumn(values) if len(values) == count else SparseColumn(rows, values, count, rest)


def parse_numbers(values: Sequence[Any]) -> NDArray[np.float64] | None:
    """The values as numbers; None if any is not a number. "1_0" is a word, although Python reads it as 10."""
    if any(isinstance(value, str) and "_" in value for value in values):
        return None
    try:
        return np.array([*map(float, values)], np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def codes_of(words: Sequence[str]) -> Codes:
    """Number the different words in the order of their first place."""
    position: dict[str, int] = {}
    codes = np.fromiter(
        (position.setdefault(word, len(position)) if word else -1 for word in words), np.int64, len(words)
    )
    return Codes(codes, list(position))


def as_word(value: Any) -> str:
    """A value as text: "" if it is missing; 5.0 is written 5, because a gap turns a column into floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    return "" if value is None else str(value).strip()


def finite_numbers(name: str, column: Column, locate: Locate) -> Floats | None:
    """The values as 32-bit numbers, NaN for a missing value; None if any value is not a number."""
    if column.numbers is None:
        return None
    with np.errstate(over="ignore"):
        numbers = column.numbers.values.astype(np.float32)
    finite = column.numbers.missing | np.isfinite(numbers)
    if not finite.all():
        row = int(finite.argmin())
        raise GraphError(
            f"{locate(row)}: {name!r} is {short(column.words()[row])}, not a finite 32-bit number; "
            "leave unknown values empty"
        )
    return numbers


def missing_words(name: str, words: Sequence[str], what: str) -> list[str]:
    """A note if a column has a word that other programs write for a missing value."""
    found = [word for word in words if word.lower() in MISSING_WORDS]
    return [f"{short(found[0])!r} in {name!r} {what}"] if found else []


def columns_listed(names: Iterable[str]) -> str:
    """The names of all columns, for a message."""
    return short(", ".join(names) or "none", 300)
