"""Write a graph store from nodes and edges that come in blocks. Edges are sorted externally.

Three passes: the edges go to one file while the neighbours of every node are counted; the counts give parts
of similar cost, and the edges go to one file per part; the edges of one part at a time are sorted in memory.
Memory: some numbers per node, one block of edges, and one part.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError
from adar_runtime.files import new_folder
from adar_runtime.graph import NODE, FeatureEncoding, Floats, Graph, Ids, Integers, SparseRows
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.formats.npy import write_array
from adar_runtime.graph.store.partition import check_parts
from adar_runtime.graph.store.store import (
    DENSE,
    FILE_NAME,
    FORMAT,
    KNOWN_LABELS,
    MARKER,
    SCHEMA,
    SPARSE,
    TARGETS,
    Files,
    checksum_of,
    part_folder,
)

BLOCK = 2**22  # edges that are distributed at once

EdgeBlocks = Iterable[Integers]
"""Blocks of edges, [2, any number] each: row 0 the sources, row 1 the targets."""


class NodeRows(Protocol):
    """The nodes of a graph."""

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        ...

    @property
    def width(self) -> int:
        """The number of feature columns."""
        ...

    @property
    def ids(self) -> Ids | None:
        """The ids of the nodes; None without ids."""
        ...

    def take(self, numbers: Integers) -> Floats | SparseRows:
        """Features of some nodes."""
        ...


@dataclass(frozen=True)
class Classes:
    """What a store keeps about classes and columns."""

    target_features: Floats | None = None
    class_names: tuple[str, ...] | None = None
    encoding: FeatureEncoding | None = None
    count: int = 0  # of the classes
    known: Integers | None = None  # [n], the known classes of the nodes, -1 elsewhere

    @classmethod
    def of(cls, graph: Graph, known: Integers | None = None) -> "Classes":
        """What a graph in memory has. `known` are the labels that a model may use."""
        return cls(
            graph.target_features, graph.class_names, graph.feature_encoding, _classes_of(graph), known
        )


def _classes_of(graph: Graph) -> int:
    return 0 if graph.regression or graph.level != NODE else graph.targets


def write_store(
    path: Path,
    rows: NodeRows,
    edges: EdgeBlocks,
    parts: int,
    classes: Classes = Classes(),  # noqa: B008
    part_of: Integers | None = None,
    on_progress: Callable[[float, str], None] = lambda _share, _what: None,
    check: Callable[[], None] = lambda: None,
) -> float:
    """Write a store.

    Args:
        path: The folder. An older store there is replaced.
        rows: The nodes.
        edges: The edges; read once.
        parts: Number of parts.
        classes: What to keep about classes and columns.
        part_of: [n] the part of each node. By default parts are ranges of nodes, of similar cost.
        on_progress: Receives the share of the work that is done, and what is being done.
        check: Called at the start and at the end. It raises an error if the folder must not be replaced.

    Returns:
        The cut: the share of edges whose ends are in different parts.

    Raises:
        GraphError: An edge names a node that does not exist.
        UsageError: There are fewer nodes than parts, or the folder cannot be written.
    """
    check_parts(parts, rows.nodes)
    with new_folder(path, MARKER, check) as folder:
        spool, work = folder / "edges", _Work(folder, rows, on_progress)
        degrees = work.collect(spool, edges)
        layout = _Layout.ranges(degrees, parts) if part_of is None else _Layout.chosen(part_of, parts)
        work.distribute(spool, layout)
        written = [work.part(number, layout) for number in range(layout.parts)]
        targets: Files = {}
        if classes.target_features is not None:
            targets[TARGETS] = {"sha256": _saved(folder, TARGETS, classes.target_features)}
        if classes.known is not None and (classes.known >= 0).any():
            targets[KNOWN_LABELS] = {"sha256": _saved(folder, KNOWN_LABELS, classes.known)}
        manifest = {
            "format": FORMAT,
            "schema": SCHEMA,
            "nodes": rows.nodes,
            "edges": sum(one.edges for one in written),
            "features": rows.width,
            "parts": [{"nodes": one.nodes, "files": one.files} for one in written],
            "targets": targets,
            "class_names": classes.class_names,
            "classes": classes.count,
            "feature_encoding": None if classes.encoding is None else classes.encoding.to_value(),
        }
        sealed = manifest | {"checksum": checksum_of(json.loads(json.dumps(manifest)))}
        (folder / FILE_NAME).write_text(json.dumps(sealed))
    return sum(one.cut for one in written) / max(1, sum(one.edges for one in written))


@dataclass(frozen=True)
class _Written:
    """A part that is on disk."""

    nodes: int
    edges: int
    cut: int  # edges that come from other parts
    files: Files


@dataclass(frozen=True)
class _Layout:
    """Which nodes are in which part, and the numbers that they have in the store."""

    bounds: Integers  # [parts + 1], in the numbers of the store
    order: Integers | None = None  # [n], the nodes part by part; None for ranges
    position: Integers | None = None  # [n], the number of each node in the store; None for ranges

    @property
    def parts(self) -> int:
        return len(self.bounds) - 1

    @classmethod
    def ranges(cls, degrees: Integers, parts: int) -> "_Layout":
        """Ranges of nodes that have similar numbers of nodes and edges together."""
        cost = np.cumsum(degrees + 1)
        cuts = np.searchsorted(cost, cost[-1] * np.arange(1, parts) / parts) + 1
        least = np.arange(1, parts)  # no part is empty
        most = len(degrees) - least[::-1]
        cuts = np.minimum(np.maximum.accumulate(np.maximum(cuts - least, 0)) + least, most)
        return cls(np.concatenate([[0], cuts, [len(degrees)]]).astype(np.int64))

    @classmethod
    def chosen(cls, part_of: Integers, parts: int) -> "_Layout":
        """The parts that a partitioner chose."""
        sizes = np.bincount(part_of, minlength=parts)
        sizes = sizes[sizes > 0]
        order = np.argsort(part_of, kind="stable")
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        return cls(np.concatenate([[0], np.cumsum(sizes)]), order, position)

    def numbers(self, number: int) -> Integers:
        """The nodes of a part."""
        span = slice(int(self.bounds[number]), int(self.bounds[number + 1]))
        return np.arange(span.start, span.stop) if self.order is None else self.order[span]

    def placed(self, nodes: Integers) -> Integers:
        """The numbers of nodes in the store."""
        return nodes if self.position is None else self.position[nodes]


@dataclass(frozen=True)
class _Work:
    """The folder that becomes the store."""

    folder: Path
    rows: NodeRows
    on_progress: Callable[[float, str], None]

    def collect(self, spool: Path, edges: EdgeBlocks) -> Integers:
        """Write all edges to one file, and count the neighbours of every node, repeated ones too."""
        degrees, count = np.zeros(self.rows.nodes, np.int64), 0
        with spool.open("wb") as file:
            for block in edges:
                checks.check_range("edges", block, self.rows.nodes, "ids")
                degrees += np.bincount(block[1], minlength=self.rows.nodes)
                file.write(np.ascontiguousarray(block.T, np.int64).tobytes())
                count += block.shape[1]
                self.on_progress(0.0, f"{count:,} edges read")
        return degrees

    def distribute(self, spool: Path, layout: _Layout) -> None:
        """Write the edges of each part to a file of their own."""
        for number in range(layout.parts):
            (self.folder / part_folder(number)).mkdir()
        size = spool.stat().st_size
        for done, block in _pairs(spool):
            placed = layout.placed(block)
            part = np.searchsorted(layout.bounds, placed[:, 1], side="right") - 1
            order = np.argsort(part, kind="stable")
            starts = np.searchsorted(part[order], np.arange(layout.parts + 1))
            for number in np.flatnonzero(np.diff(starts)).tolist():
                with (self.folder / part_folder(number) / "edges").open("ab") as file:
                    file.write(placed[order[starts[number] : starts[number + 1]]].tobytes())
            self.on_progress(0.5 * done / size, "edges to parts")
        spool.unlink()

    def part(self, number: int, layout: _Layout) -> _Written:
        """Sort the edges of a part, and write all of its files."""
        folder, numbers = self.folder / part_folder(number), layout.numbers(number)
        first, count, whole = int(layout.bounds[number]), len(numbers), self.rows.nodes
        keys = [(block[:, 1] - first) * whole + block[:, 0] for _, block in _pairs(folder / "edges")]
        (folder / "edges").unlink(missing_ok=True)
        edges = np.sort(np.concatenate(keys)) if keys else np.zeros(0, np.int64)
        edges = edges[np.diff(edges, prepend=-1) != 0]  # repeated edges count once
        starts = np.concatenate([[0], np.cumsum(np.bincount(edges // whole, minlength=count))])
        sources = edges % whole
        is_own = (sources >= first) & (sources < first + count)
        outside = np.unique(sources[~is_own])
        if count + len(outside) > np.iinfo(np.int32).max:
            raise GraphError(f"part {number} would have too many nodes: choose more parts")
        rows = np.where(is_own, sources - first, count + np.searchsorted(outside, sources))
        arrays: dict[str, NDArray[Any]] = {
            "nodes": numbers,
            "starts": starts,
            "sources": rows.astype(np.int32),
            "outside": outside,
            **_features(self.rows.take(numbers)),
        }
        if self.rows.ids is not None:
            arrays["ids"] = self.rows.ids[numbers]
        files = {name: {"sha256": _saved(folder, name, array)} for name, array in arrays.items()}
        self.on_progress(0.5 + 0.5 * (number + 1) / layout.parts, f"part {number + 1} of {layout.parts}")
        return _Written(count, len(edges), int((~is_own).sum()), files)


def _features(found: Floats | SparseRows) -> dict[str, NDArray[Any]]:
    if isinstance(found, SparseRows):
        return dict(zip(SPARSE, (found.starts, found.columns, found.values), strict=True))
    return {DENSE[0]: checks.matrix("x", found)}


def _pairs(path: Path) -> Iterator[tuple[int, Integers]]:
    """The edges of a file in blocks [any number, 2], with the bytes that are read so far."""
    if not path.exists():
        return
    done = 0
    with path.open("rb") as file:
        while content := file.read(16 * BLOCK):
            done += len(content)
            yield done, np.frombuffer(content, np.int64).reshape(-1, 2)


def _saved(folder: Path, name: str, array: NDArray[Any]) -> str:
    """Write an array, and return the SHA-256 of its file."""
    path = folder / f"{name}.npy"
    write_array(path, array)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
