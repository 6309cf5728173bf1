"""Predictions as files."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import UsageError
from adar_runtime.graph import Floats, Integers


def prediction_writer(path: Path) -> Callable[[Integers | Floats, Floats | None], bytes]:
    """How predictions [k] or [k, c] and, for classes, probabilities [k, c] become a file of this suffix."""
    writers = {".npz": _predictions_npz, ".csv": _predictions_csv, ".json": _predictions_json}
    if path.suffix not in writers:
        raise UsageError(
            f"{path}: predictions are written as .npz, .csv or .json, not {path.suffix or 'nothing'!r}"
        )
    return writers[path.suffix]


def _predictions_npz(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    arrays = {"prediction": prediction} | ({} if probability is None else {"probability": probability})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def _predictions_csv(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    columns = {"prediction": prediction} if prediction.ndim == 1 else _numbered("prediction", prediction)
    if probability is not None:
        columns |= _numbered("probability", probability)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["output", *columns])
    rows = zip(*(column.astype(str).tolist() for column in columns.values()), strict=True)
    writer.writerows([index, *row] for index, row in enumerate(rows))
    return buffer.getvalue().encode()


def _numbered(name: str, matrix: Integers | Floats) -> dict[str, Any]:
    return {f"{name}_{j}": column for j, column in enumerate(matrix.T)}


def _predictions_json(prediction: Integers | Floats, probability: Floats | None) -> bytes:
    lists = {"prediction": prediction.tolist()}
    return json.dumps(lists | ({} if probability is None else {"probability": probability.tolist()})).encode()
