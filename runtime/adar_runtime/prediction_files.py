"""Predictions as files, in a format that the file's suffix selects.

To add an output format, write a function that encodes predictions, and add one line to `OUTPUT_FORMATS`.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.graph import Floats, Integers

if TYPE_CHECKING:
    from adar_runtime.loop.result import Result

FORMULA = tuple("=+-@＝＋－＠")  # a spreadsheet takes a cell that begins like this for a formula
SEPARATOR = re.compile("([,;|:\t])")  # a spreadsheet of another locale splits cells at these characters
BLOCK_ROWS = 65_536  # rows that are converted to text at once: a number as text takes about 100 bytes

Names = Sequence[str] | None
Writer = Callable[[Integers | Floats, Floats | None, Names], bytes]
"""(predictions, probabilities, class names) -> content of the file.

Predictions are classes [k] or, for regression, numbers [k, c]. Only classes have probabilities [k, c] and, if
the model names its classes, names [c].
"""


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


def prediction_columns(result: "Result") -> dict[str, Any]:
    """The columns of a table of predictions, one row per output: those of the CSV and Parquet files."""
    columns, names = _columns(result.predictions, result.probabilities), result.class_names
    if names is None:
        return columns
    return _with_class(columns, np.array(names, object)[result.predictions])


def _npz(predictions: Integers | Floats, probabilities: Floats | None, names: Names) -> bytes:
    arrays = {"prediction": predictions, "probability": probabilities}
    arrays |= {"class_names": None if names is None else np.array(names)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{key: array for key, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return buffer.getvalue()


def _csv(predictions: Integers | Floats, probabilities: Floats | None, names: Names) -> bytes:
    columns, cells = _columns(predictions, probabilities), [_safe_cell(name) for name in names or ()]
    if names is not None:
        columns = _with_class(columns, predictions)
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, "utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, len(predictions), BLOCK_ROWS):
            block = {key: column[start : start + BLOCK_ROWS] for key, column in columns.items()}
            text = {key: column.astype(str).tolist() for key, column in block.items()}
            if names is not None:
                text["class"] = [cells[number] for number in block["class"].tolist()]
            writer.writerows(zip(*text.values(), strict=True))
        file.flush()
        return buffer.getvalue()


def _json(predictions: Integers | Floats, probabilities: Floats | None, names: Names) -> bytes:
    lists: dict[str, Any] = {"prediction": predictions.tolist()}
    if names is not None:
        lists["class"] = [names[number] for number in predictions.tolist()]
    if probabilities is not None:
        lists["probability"] = probabilities.tolist()
    return json.dumps(lists).encode()


def _parquet(predictions: Integers | Floats, probabilities: Floats | None, names: Names) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = _columns(predictions, probabilities)
    if names is not None:
        valid = [name.encode(errors="backslashreplace").decode() for name in names]  # lone surrogates
        columns = _with_class(columns, pyarrow.DictionaryArray.from_arrays(predictions, valid))
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


OUTPUT_FORMATS = {
    ".npz": OutputFormat(_npz),
    ".csv": OutputFormat(_csv),
    ".json": OutputFormat(_json),
    ".parquet": OutputFormat(_parquet, package="pyarrow", extra="parquet"),
}
"""Suffix -> format."""


def _columns(predictions: Integers | Floats, probabilities: Floats | None) -> dict[str, Any]:
    """The columns of a table with one row per output."""
    columns: dict[str, Any] = {"output": np.arange(len(predictions))}
    if predictions.ndim == 1:
        columns["prediction"] = predictions
    else:
        columns |= _numbered("prediction", predictions)
    return columns if probabilities is None else columns | _numbered("probability", probabilities)


def _with_class(columns: dict[str, Any], classes: Any) -> dict[str, Any]:
    """The columns with the names of the predicted classes after their numbers."""
    (output, numbers), (prediction, predicted), *rest = columns.items()
    return {output: numbers, prediction: predicted, "class": classes, **dict(rest)}


def _numbered(name: str, matrix: Integers | Floats) -> dict[str, Any]:
    return {f"{name}_{j}": column for j, column in enumerate(matrix.T)}


def _safe_cell(name: str) -> str:
    """A class name as one line of text that a spreadsheet does not take for a formula."""
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
