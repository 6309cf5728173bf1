"""Predictions as files."""

import csv
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.graph import Floats, Integers

Writer = Callable[[Integers | Floats, Floats | None], bytes]


def prediction_writer(path: Path) -> Writer:
    """How predictions [k] or [k, c] and, for classes, probabilities [k, c] become a file of this suffix."""
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


def _predictions_npz(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    arrays = {"prediction": prediction} | ({} if probability is None else {"probability": probability})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _predictions_csv(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    columns = _columns(prediction, probability)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.astype(str).tolist() for column in columns.values()), strict=True))
    return buffer.getvalue().encode()


def _predictions_parquet(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(_columns(prediction, probability)), buffer)
    return buffer.getvalue()


def _columns(prediction: Integers | Floats, probability: Floats | None) -> dict[str, Any]:
    """One row an output, numbered."""
    columns: dict[str, Any] = {"output": np.arange(len(prediction))}
    columns |= {"prediction": prediction} if prediction.ndim == 1 else _numbered("prediction", prediction)
    return columns | ({} if probability is None else _numbered("probability", probability))


def _numbered(name: str, matrix: Integers | Floats) -> dict[str, Any]:
    return {f"{name}_{j}": column for j, column in enumerate(matrix.T)}


def _predictions_json(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    lists = {"prediction": prediction.tolist()}
    return json.dumps(lists | ({} if probability is None else {"probability": probability.tolist()})).encode()
