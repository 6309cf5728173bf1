"""Whether two trainings have the same data."""

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from adar_runtime.graph import Graph, SparseRows


def fingerprint(graphs: Sequence[Graph]) -> str:
    """A sha256 of all that the graphs hold, in their order."""
    digest = hashlib.sha256()
    for graph in graphs:
        _add(digest, graph)
    return digest.hexdigest()


def _add(digest: Any, value: Graph | SparseRows) -> None:
    for field in fields(value):
        content = getattr(value, field.name)
        if isinstance(content, SparseRows):
            _add(digest, content)
        elif isinstance(content, np.ndarray):
            digest.update(f"{field.name} {content.dtype} {content.shape}".encode())
            digest.update(np.ascontiguousarray(content))
        else:
            digest.update(f"{field.name} {content!r}".encode())
