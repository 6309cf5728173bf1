"""Predictions as files."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.graph import Floats, Integers

FORMULA = ("=", "+", "-", "@")  # what a spreadsheet takes for the beginning of one
ROWS = 65_536  # that are made text at once: a number takes a hundred bytes on its way
Names = Sequence[str] | None
Writer = Callable[[Integers | Floats, Floats | None, Names], bytes]


def prediction_writer(path: Path) -> Writer:
    """How predictions become a file of this suffix: numbers [k, c], or classes [k].

    Of classes there are probabilities [k, c] and, where they are known, names [c].
    """
    writers = {
        ".npz": _predictions_npz,
        ".csv": _predictions_csv,
        ".json": _predictions_json,
        ".parquet": _predictions_parquet,
    }
    if path.suffix not in writers:
        raise UsageError(
            f"{path}: predictions are written as .npz, .csv, .json or .parquet, "
            f"not {path.suffix or 'nothing'!r}"
        )
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError("writing .parquet", "parquet")
    return writers[path.suffix]


def _predictions_npz(prediction: Integers | Floats, probability: Floats | None, names: Names) -> bytes:
    arrays = {"prediction": prediction, "probability": probability}
    arrays |= {"class_names": None if names is None else np.array(names)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{key: array for key, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return buffer.getvalue()


def _predictions_csv(prediction: Integers | Floats, probability: Floats | None, names: Names) -> bytes:
    columns, cells = _columns(prediction, probability), [_cell(name) for name in names or ()]
    if names is not None:
        columns = _with_class(columns, prediction)
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, "utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, len(prediction), ROWS):
            block = {key: column[start : start + ROWS] for key, column in columns.items()}
            words = {key: column.astype(str).tolist() for key, column in block.items()}
            if names is not None:
                words["class"] = [cells[number] for number in block["class"].tolist()]
            writer.writerows(zip(*words.values(), strict=True))
        file.flush()
        return buffer.getvalue()


def _cell(name: str) -> str:
    """A name from anywhere, as one line that no spreadsheet takes for a formula."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return f"'{line}" if line.startswith(FORMULA) and not _is_number(line) else line


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _predictions_parquet(prediction: Integers | Floats, probability: Floats | None, names: Names) -> bytes:
    import pyarrow
    import pyarrow.parquet

    columns = _columns(prediction, probability)
    if names is not None:
        words = [name.encode(errors="backslashreplace").decode() for name in names]  # halves of characters
        columns = _with_class(columns, pyarrow.DictionaryArray.from_arrays(prediction, words))
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _columns(prediction: Integers | Floats, probability: Floats | None) -> dict[str, Any]:
    """One row an output, numbered."""
    columns: dict[str, Any] = {"output": np.arange(len(prediction))}
    columns |= {"prediction": prediction} if prediction.ndim == 1 else _numbered("prediction", prediction)
    return columns | ({} if probability is None else _numbered("probability", probability))


def _with_class(columns: dict[str, Any], named: Any) -> dict[str, Any]:
    """The columns, and what the predicted class is called beside its number."""
    (output, numbers), (prediction, classes), *rest = columns.items()
    return {output: numbers, prediction: classes, "class": named, **dict(rest)}


def _numbered(name: str, matrix: Integers | Floats) -> dict[str, Any]:
    return {f"{name}_{j}": column for j, column in enumerate(matrix.T)}


def _predictions_json(prediction: Integers | Floats, probability: Floats | None, names: Names) -> bytes:
    lists: dict[str, Any] = {"prediction": prediction.tolist()}
    if names is not None:
        lists["class"] = [names[number] for number in prediction.tolist()]
    return json.dumps(lists | ({} if probability is None else {"probability": probability.tolist()})).encode()
