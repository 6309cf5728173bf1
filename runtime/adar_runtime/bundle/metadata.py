"""What people want to know about a bundle: name, version, date, description, kinds of its features."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from adar_runtime.errors import BundleError, UsageError, short
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.registry import is_count

CARD = "README.md"  # the model card. People may edit it; the runtime does not read it
LICENSE = "LICENSE"  # people may add it
MAX_NAME, MAX_VERSION, MAX_DESCRIPTION = 100, 40, 2_000  # characters
VERSION = r"[0-9A-Za-z][0-9A-Za-z.+_-]*"
DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
EPOCH = "SOURCE_DATE_EPOCH"  # the usual variable for reproducible builds: seconds since 1970
MAX_GROUPS = 1_024  # of columns in a schema; more are written as one group
BINARY, INTEGER, NUMBER = KINDS = ("binary", "integer", "number")  # each includes the kinds before it
BLOCK = 2**22  # features that are read at a time

FIELDS = ("name", "version", "created_at", "description", "feature_schema")
"""The optional fields of manifest.json that this module checks."""


def check_texts(name: str | None, version: str | None, description: str | None) -> None:
    """Refuse texts that a bundle cannot have.

    Raises:
        UsageError: A text is empty, too long, or has characters that cannot be printed.
    """
    for what, text, longest in (
        ("name", name, MAX_NAME),
        ("version", version, MAX_VERSION),
        ("description", description, MAX_DESCRIPTION),
    ):
        if text is None:
            continue
        if not text.strip() or len(text) > longest:
            raise UsageError(f"the {what} of a bundle has 1 to {longest:,} characters, not {len(text):,}")
        if not all(letter.isprintable() or (what == "description" and letter == "\n") for letter in text):
            raise UsageError(f"the {what} of a bundle may contain printable characters only")
    if version is not None and not re.fullmatch(VERSION, version):
        raise UsageError(f"the version {version!r} has to be letters, digits and . + - _, such as 1.2.0")


def name_from(folder: str) -> str:
    """The name of a model whose author gave none: that of the run's folder, as far as it can be shown."""
    shown = "".join(letter if letter.isprintable() else "-" for letter in folder)[:MAX_NAME].strip()
    return shown or "model"


def creation_date(seconds: float) -> str:
    """This time in UTC, or the one of the environment variable SOURCE_DATE_EPOCH.

    Raises:
        UsageError: The variable is set, and is not a number of seconds.
    """
    given = os.environ.get(EPOCH)
    try:
        moment = datetime.fromtimestamp(int(given) if given else seconds, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{EPOCH} is {short(given)!r}: it has to be seconds since 1970") from error
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def read_metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata fields of a manifest, checked: a stranger may have written them. Old bundles have none."""
    found = {key: raw[key] for key in FIELDS if raw.get(key) is not None}
    schema = found.get("feature_schema", [])
    texts = {key: value for key, value in found.items() if key != "feature_schema"}
    try:
        if not all(isinstance(value, str) for value in texts.values()):
            raise UsageError("name, version, created_at and description have to be texts")
        check_texts(texts.get("name"), texts.get("version"), texts.get("description"))
        if not re.fullmatch(DATE, texts.get("created_at", "1970-01-01T00:00:00Z")):
            raise UsageError("created_at has to be a time in UTC, such as 2026-01-31T12:00:00Z")
        if not isinstance(schema, list) or len(schema) > MAX_GROUPS or not all(map(_is_group, schema)):
            raise UsageError("feature_schema has to be a list of groups of columns")
    except UsageError as error:
        raise BundleError(f"manifest.json: {error}") from error
    return found


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict) or set(group) - {"columns", "type", "name"}:
        return False
    columns, name = group.get("columns"), group.get("name", "")
    return (
        isinstance(columns, list)
        and len(columns) == 2
        and all(is_count(column, 0) for column in columns)
        and columns[0] <= columns[1]
        and group.get("type") in KINDS
        and isinstance(name, str)
        and len(name) <= MAX_DESCRIPTION
    )


def feature_schema(graph: Graph) -> list[dict[str, Any]]:
    """The kinds of the feature columns, as groups of neighbouring columns of one kind.

    Examples:
        >>> graph = Graph([[0.0, 1.0, 0.5], [1.0, 0.0, 2.0]], [[0], [1]])
        >>> feature_schema(graph)
        [{'columns': [0, 1], 'type': 'binary'}, {'columns': [2, 2], 'type': 'number'}]
    """
    kinds = np.zeros(graph.width, np.int64)  # indices of KINDS
    step = max(1, BLOCK // graph.width)
    for start in range(0, graph.nodes, step):
        kinds = np.maximum(kinds, _kinds(graph.rows(start, start + step)))
    return _grouped([KINDS[kind] for kind in kinds])


def _kinds(rows: Floats) -> Any:
    whole = (rows == np.floor(rows)).all(axis=0)
    binary = whole & (rows >= 0).all(axis=0) & (rows <= 1).all(axis=0)
    return np.where(binary, 0, np.where(whole, 1, 2))


def _grouped(kinds: Sequence[str]) -> list[dict[str, Any]]:
    starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    if len(starts) > MAX_GROUPS:
        return [{"columns": [0, len(kinds) - 1], "type": max(kinds, key=KINDS.index)}]
    ends = [*starts[1:], len(kinds)]
    return [
        {"columns": [start, end - 1], "type": kinds[start]} for start, end in zip(starts, ends, strict=True)
    ]
