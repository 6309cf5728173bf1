"""Predictions as columns, and as files in a format that the file's suffix selects.

To add an output format, write a function that encodes a result, and add one line to `OUTPUT_FORMATS`.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.graph import Floats, Integers
from adar_runtime.loop.result import Result

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet takes a cell that begins like this for a formula
SEPARATOR = re.compile("([,;|:\t])")  # a spreadsheet of another locale splits cells at these characters
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*")  # ids that need no check of their parts
BLOCK_ROWS = 65_536  # rows that are converted to text at once: a number as text takes about 100 bytes

Writer = Callable[[Result], bytes]
"""Result -> content of the file."""


class OutputFormat(NamedTuple):
    """How predictions are written to files of one suffix."""

    write: Writer
    package: str | None = None  # an optional package that the format needs
    extra: str = ""  # the extra of adar-deploy that installs the package


def prediction_writer(path: Path) -> Writer:
    """The writer for a file, by its suffix.

    Raises:
        UsageError: The suffix is unknown.
        MissingExtraError: The format needs a package that is not installed.
    """
    if path.suffix not in OUTPUT_FORMATS:
        *most, last = OUTPUT_FORMATS
        known = f"{', '.join(most)} or {last}"
        raise UsageError(f"{path}: predictions are written as {known}; got {path.suffix or 'no suffix'}")
    found = OUTPUT_FORMATS[path.suffix]
    if found.package is not None and find_spec(found.package) is None:
        raise MissingExtraError(f"writing {path.suffix}", found.extra)
    return found.write


def prediction_columns(result: Result) -> dict[str, NDArray[Any]]:
    """The predictions as a table: column name -> one value per output.

    With ids, the columns are `id` (of pairs: `source` and `target`), `class` and `probability_<class name>`.
    Without ids, they are `output` (its number), `prediction` (the class number), `class` if the classes have
    names, and `probability_<class number>`. In regression, the columns `prediction_0`, … hold the numbers.
    """
    predictions, probabilities = result.predictions, result.probabilities
    columns = _key_columns(result)
    if probabilities is None:
        return columns | _numbered("prediction", predictions.T)
    names = result.class_names
    if result.ids is None or names is None:
        columns["prediction" if result.ids is None else "class"] = predictions
    if names is not None:
        columns["class"] = _valid_names(names)[predictions]
    shown = None if result.ids is None else names
    return columns | _numbered("probability", probabilities.T, shown)


def _key_columns(result: Result) -> dict[str, NDArray[Any]]:
    """The columns that say which output a row is for."""
    if result.ids is None:
        numbers = np.arange(len(result.scores)) if result.outputs is None else result.outputs
        return {"output": numbers}
    if result.ids.ndim == 1:
        return {"id": result.ids}
    return {"source": result.ids[0], "target": result.ids[1]}


def arrow_table(columns: dict[str, Any]) -> Any:
    """The columns as a `pyarrow.Table`. pyarrow ends a text of numpy at its first NUL character."""
    import pyarrow

    texts = [key for key, column in columns.items() if getattr(column, "dtype", np.dtype("f4")).kind == "U"]
    return pyarrow.table(columns | {key: columns[key].astype(object) for key in texts})


def _numbered(
    name: str, rows: Integers | Floats, names: Sequence[str] | None = None
) -> dict[str, NDArray[Any]]:
    """A column for each class: by its name if all classes have different names, else by its number."""
    words = [] if names is None else _valid_names(names).tolist()
    if len(set(words)) < len(rows):
        words = [str(number) for number in range(len(rows))]
    return {f"{name}_{word}": column for word, column in zip(words, rows, strict=True)}


def _valid_names(names: Sequence[str]) -> NDArray[Any]:
    """The names as text that can be written as UTF-8; an array of objects takes 8 bytes per item."""
    valid = np.empty(len(names), object)
    valid[:] = [name.encode(errors="backslashreplace").decode() for name in names]
    return valid


def _npz(result: Result) -> bytes:
    names = result.class_names
    arrays: dict[str, Any] = {} if result.ids is None and result.outputs is None else _key_columns(result)
    arrays |= {"prediction": result.predictions, "probability": result.probabilities}
    arrays |= {"class_names": None if names is None else np.array(names)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{key: array for key, array in arrays.items() if array is not None})
    return buffer.getvalue()


def _csv(result: Result) -> bytes:
    columns, names = prediction_columns(result), result.class_names
    cells = np.array([*map(_safe_cell, names)], object) if names is not None else None
    predictions = result.predictions
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, "utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(_safe_cell, columns))
        for start in range(0, len(predictions), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            text = {key: _cells(column[rows]) for key, column in columns.items() if key != "class"}
            if "class" in columns:
                text["class"] = (
                    _cells(predictions[rows]) if cells is None else cells[predictions[rows]].tolist()
                )
            writer.writerows(zip(*(text[key] for key in columns), strict=True))
        file.flush()
        return buffer.getvalue()


def _cells(column: NDArray[Any]) -> list[str]:
    words: list[str] = column.astype(str).tolist()
    if column.dtype.kind != "U":
        return words
    return [word if PLAIN.fullmatch(word) else _safe_cell(word) for word in words]


def _json(result: Result) -> bytes:
    if result.ids is not None:
        return json.dumps(
            {key: column.tolist() for key, column in prediction_columns(result).items()}
        ).encode()
    lists: dict[str, Any] = {} if result.outputs is None else {"output": result.outputs.tolist()}
    lists["prediction"] = result.predictions.tolist()
    if result.class_names is not None:
        lists["class"] = [result.class_names[number] for number in result.predictions.tolist()]
    if result.probabilities is not None:
        lists["probability"] = result.probabilities.tolist()
    return json.dumps(lists).encode()


def _parquet(result: Result) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, Any] = dict(prediction_columns(result))
    if (
        result.class_names is not None and not result.regression
    ):  # each name is written once, however long it is
        names = _valid_names(result.class_names).tolist()
        columns["class"] = pyarrow.DictionaryArray.from_arrays(result.predictions, names)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(arrow_table(columns), buffer)
    return buffer.getvalue()


OUTPUT_FORMATS = {
    ".npz": OutputFormat(_npz),
    ".csv": OutputFormat(_csv),
    ".json": OutputFormat(_json),
    ".parquet": OutputFormat(_parquet, package="pyarrow", extra="parquet"),
}
"""Suffix -> format."""


def _safe_cell(name: str) -> str:
    """A name or id as one line of text that a spreadsheet does not take for a formula."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    if _is_number(line):
        return line
    # Quotes do not help: a spreadsheet that splits at ";" sees them in the middle of a cell.
    return "".join(map(_safe_part, SEPARATOR.split(line)))


def _safe_part(part: str) -> str:
    """The text between two separators, with ' before a formula; quotes before the formula may disappear."""
    return f"'{part}" if part.lstrip(' "').startswith(FORMULA) else part


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
