"""A graph store: a folder with the nodes, edges and features of a graph in parts, as `.npy` files.

    store.json          sizes, and the type, shape and SHA-256 of every file
    target_x.npy        [c, f], descriptions of the classes, if the graph has them
    known_y.npy         [n], known classes (those of train_mask) and -1, by the numbers in the graph, if any
    00000/nodes.npy     [k], the numbers of the part's nodes in the graph
    00000/starts.npy    [k + 1], the first incoming neighbour of each node in `sources`
    00000/sources.npy   [m], rows: below k a node of this part, then those of `outside`
    00000/outside.npy   [r], nodes of other parts that send to this part, ascending
    00000/x.npy         [k, f], features; sparse ones are x_indptr, x_indices and x_data
    00000/ids.npy       [k], ids, if the graph has them

The nodes of a store are numbered part by part; `outside` has these numbers. A part is read alone.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, UsageError, reason, short
from adar_runtime.files import Marker, open_regular
from adar_runtime.graph import FeatureEncoding, Floats, Graph, Ids, Integers, SparseRows
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.formats.npy import map_array
from adar_runtime.graph.limits import MAX_CLASSES, check_stored
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.json_files import parse_json

FILE_NAME = "store.json"
FORMAT, SCHEMA = "adar graph store", 1
MARKER = Marker(
    FILE_NAME, "format", FORMAT, own=r"store\.json|[0-9]{5}(/[a-z_]+\.npy)?|target_x\.npy|known_y\.npy"
)
MAX_MANIFEST = 64 * 2**20  # bytes: enough for 10,000 parts
MAX_NODES = 2**48  # sums and products with the number of nodes stay below 2^63
NUMBERS = ("starts", "sources", "outside", "nodes")
DENSE, SPARSE = ("x",), ("x_indptr", "x_indices", "x_data")
NO_EDGES = np.zeros((2, 0), np.int64)
TARGETS, KNOWN_LABELS = "target_x", "known_y"

Files = dict[str, dict[str, str]]
"""Name of an array -> {"sha256": …} of its file."""


def is_store(path: Path) -> bool:
    """Whether this folder is a graph store."""
    return (path / FILE_NAME).is_file()


def part_folder(number: int) -> str:
    """The folder of a part."""
    return f"{number:05d}"


@dataclass(frozen=True)
class GraphStore:
    """A graph on disk, in parts. `open_store` makes one.

    Attributes:
        path: The folder.
        nodes: Number of nodes.
        edges: Number of edges, each counted once.
        features: Number of feature columns.
        bounds: The first node of each part in the numbers of the store, and the number of nodes: [parts + 1].
        files: The files of each part.
        target_files: The files of the descriptions of the classes and of the known labels, if there are any.
        class_names: Names of the classes; None if the graph has none.
        classes: Number of classes, of descriptions or labels; 0 if unknown, as in stores of older versions.
        encoding: How a table became the features; None if unknown.
        checksum: Of the manifest, and so of all files.
    """

    path: Path
    nodes: int
    edges: int
    features: int
    bounds: Integers
    files: tuple[Files, ...]
    target_files: Files
    class_names: tuple[str, ...] | None
    classes: int
    encoding: FeatureEncoding | None
    checksum: str

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.files)

    def part(self, number: int) -> "Part":
        """One part."""
        return Part(self, number)

    @cached_property
    def target_features(self) -> Floats | None:
        """Descriptions of the classes, [c, f]; None if the graph has none."""
        return checks.matrix(TARGETS, self._map(".", TARGETS)) if TARGETS in self.target_files else None

    @property
    def known_labels(self) -> Integers | None:
        """Known classes by the numbers in the graph, [n], -1 elsewhere; None if the graph has none."""
        return np.array(self._map(".", KNOWN_LABELS)) if KNOWN_LABELS in self.target_files else None

    def check(self, on_part: Callable[[int], None] = lambda _: None) -> None:
        """Compare all files with their hashes, and check the numbers in them.

        Args:
            on_part: Receives the number of parts that are checked.

        Raises:
            GraphError: A file is missing or was changed, or its numbers do not describe a graph.
        """
        self._check_sizes()
        for name, facts in self.target_files.items():
            self._check_hash(".", name, facts)
        self._check_classes()
        for number, files in enumerate(self.files):
            for name, facts in files.items():
                self._check_hash(part_folder(number), name, facts)
            self.part(number).check()
            on_part(number + 1)
        if sum(self.part(number).edges for number in range(self.parts)) != self.edges:
            raise self._damaged(f"its parts do not have {self.edges:,} edges")
        seen = np.zeros(self.nodes, np.bool_)  # now the files show that the nodes exist
        for number in range(self.parts):
            seen[self.part(number).numbers] = True
        if not seen.all():
            raise self._damaged(f"node {int(seen.argmin())} is in no part")

    def _check_sizes(self) -> None:
        """Refuse files that would take hours to read, and are small on the disk."""
        folders = [(".", self.target_files), *((part_folder(i), each) for i, each in enumerate(self.files))]
        try:
            check_stored(self._file(folder, name) for folder, files in folders for name in files)
        except OSError as error:
            raise self._damaged(reason(error)) from error
        except GraphError as error:
            raise GraphError(f"{self.path}: {error}") from error

    def _check_classes(self) -> None:
        labels, described = self.known_labels, self.target_features
        if described is not None and self.classes > len(described):
            raise self._damaged(f"{self.classes:,} classes have {len(described):,} descriptions")
        if labels is None:
            return
        is_list = labels.dtype.str == "<i8" and labels.shape == (self.nodes,)
        if not is_list or labels.min() < -1 or labels.max() >= self.classes:
            raise self._damaged(f"{KNOWN_LABELS}.npy does not have the classes of its nodes")

    def _check_hash(self, folder: str, name: str, facts: Mapping[str, str]) -> None:
        try:
            with open_regular(self._file(folder, name)) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError) as error:
            raise self._damaged(f"{folder}/{name}.npy cannot be read ({reason(error)})") from error
        if found != facts.get("sha256"):
            raise self._damaged(f"{folder}/{name}.npy was changed after it was written")

    def _map(self, folder: str, name: str) -> NDArray[Any]:
        return map_array(self._file(folder, name))

    def _file(self, folder: str, name: str) -> Path:
        return self.path / folder / f"{name}.npy"

    def _damaged(self, what: str) -> GraphError:
        return GraphError(f"{self.path}: {what}: copy the store again, or write it again with data shard")


@dataclass(frozen=True)
class Part:
    """One part of a store. Its arrays are read when they are used."""

    store: GraphStore
    number: int

    @property
    def first(self) -> int:
        """The number of its first node in the store."""
        return int(self.store.bounds[self.number])

    @property
    def nodes(self) -> int:
        """The number of its nodes."""
        return int(self.store.bounds[self.number + 1]) - self.first

    @property
    def edges(self) -> int:
        """The number of edges that end at its nodes."""
        return len(self.array("sources"))

    @property
    def numbers(self) -> Integers:
        """The numbers of its nodes in the graph, [k]."""
        return self.array("nodes")

    @property
    def outside(self) -> Integers:
        """Nodes of other parts that send to its nodes, in the numbers of the store, [r]."""
        return self.array("outside")

    @property
    def neighbours(self) -> Neighbours:
        """The neighbours of its nodes. Sources are rows: first its own nodes, then `outside`."""
        return Neighbours(np.array(self.array("starts")), self.array("sources").astype(np.int64))

    @property
    def ids(self) -> Ids | None:
        """The ids of its nodes, [k]; None if the graph has none."""
        return np.array(self.array("ids")) if "ids" in self.store.files[self.number] else None

    def senders(self) -> list[int]:
        """The other parts that it receives from, ascending."""
        found: list[int] = np.unique(
            np.searchsorted(self.store.bounds, self.outside, side="right") - 1
        ).tolist()
        return found

    def received_from(self, number: int) -> Integers:
        """The rows of another part that this part receives, [r of that part], ascending."""
        first, last = self.store.bounds[number : number + 2]
        start, stop = np.searchsorted(self.outside, [first, last])
        return np.array(self.outside[start:stop]) - first

    def graph(self) -> Graph:
        """Its nodes with their features, without edges."""
        dense = DENSE[0] in self.store.files[self.number]
        features = self.array(DENSE[0]) if dense else self._sparse()
        return Graph(
            features,
            NO_EDGES,
            target_features=self.store.target_features,
            class_names=self.store.class_names,
            feature_encoding=self.store.encoding,
        )

    def _sparse(self) -> SparseRows:
        starts, columns, values = (self.array(name) for name in SPARSE)
        return SparseRows(starts, columns, values, (self.nodes, self.store.features))

    def array(self, name: str) -> NDArray[Any]:
        """An array of the part, mapped."""
        return self.store._map(part_folder(self.number), name)

    def check(self) -> None:
        """Raise a GraphError if the arrays do not describe a part of this store."""
        starts, sources, outside, numbers = map(self.array, NUMBERS)
        whole = self.store.nodes
        self._require(
            [one.dtype.str for one in (starts, sources, outside, numbers)] == ["<i8", "<i4", "<i8", "<i8"],
            "its numbers have other types",
        )
        self._require(
            starts.shape == (self.nodes + 1,) and numbers.shape == (self.nodes,), "its nodes differ in number"
        )
        self._require(sources.ndim == outside.ndim == 1, "its neighbours are not lists")
        in_order = starts[0] == 0 and starts[-1] == len(sources) and checks.rises(starts)
        self._require(in_order, "its neighbours are not in order")
        self._require(_within(sources, self.nodes + len(outside)), "a neighbour is in no part")
        self._require(_within(numbers, whole), "a node is not one of the graph")
        ascending = checks.rises(outside, strictly=True)
        self._require(_within(outside, whole) and ascending, "its outside nodes are not in order")
        own = np.searchsorted(outside, [self.first, self.first + self.nodes])
        self._require(own[0] == own[1], "its outside nodes are its own")
        features = self.array(DENSE[0]) if DENSE[0] in self.store.files[self.number] else None
        shape = (self.nodes, self.store.features)
        if features is not None:
            self._require(features.shape == shape, "its features have another shape")
            self._require(features.dtype.str == "<f4", "its features have another type")
        if "ids" in self.store.files[self.number]:
            checks.readable_ids(self.array("ids"), self.nodes)

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise self.store._damaged(f"part {self.number}: {problem}")


def open_store(path: str | Path) -> GraphStore:
    """Open a graph store. `GraphStore.check` reads and checks all files.

    Args:
        path: The folder that `adar-deploy data shard` wrote.

    Returns:
        The store.

    Raises:
        GraphError: The folder is not a store, or its manifest is damaged.
    """
    path = Path(path)
    try:
        with open_regular(path / FILE_NAME) as file:
            text = file.read(MAX_MANIFEST + 1)
        if len(text) > MAX_MANIFEST:
            raise ValueError("it is too large")
        raw = parse_json(text.decode())
        if raw["format"] != FORMAT:
            raise ValueError("it is not that of a graph store")
        if raw["schema"] != SCHEMA:
            raise GraphError(
                f"{path}: {FILE_NAME} has the schema {short(raw['schema'])}, and this version reads {SCHEMA}"
            )
        return _store(path, raw)
    except OSError as error:
        raise GraphError(f"{path}: not a graph store ({FILE_NAME}: {error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, UsageError) as error:
        raise GraphError(
            f"{path}: {FILE_NAME} is damaged ({short(error)}): write the store again with data shard"
        ) from error


def _store(path: Path, raw: Mapping[str, Any]) -> GraphStore:
    if raw["checksum"] != checksum_of(raw):
        raise ValueError("its checksum is not that of its fields")
    parts = raw["parts"]
    sizes = [int(part["nodes"]) for part in parts]
    if not sizes or min(sizes) < 1 or sum(sizes) != raw["nodes"] or sum(sizes) > MAX_NODES:
        raise ValueError("its parts do not have all nodes")
    bounds = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    files = tuple({name: dict(facts) for name, facts in part["files"].items()} for part in parts)
    known = {*NUMBERS, "ids", *DENSE, *SPARSE}
    for each in files:
        features = {*DENSE} <= set(each) or {*SPARSE} <= set(each)
        if not {*NUMBERS} <= set(each) <= known or not features:
            raise ValueError("a part has other files than a part of a graph")
    classes = int(raw.get("classes", 0))
    if not 0 <= classes <= MAX_CLASSES:
        raise ValueError(f"it has {short(classes)} classes")
    names = raw["class_names"]
    encoding = raw["feature_encoding"]
    return GraphStore(
        path=path,
        nodes=int(raw["nodes"]),
        edges=int(raw["edges"]),
        features=int(raw["features"]),
        bounds=bounds,
        files=files,
        target_files={
            name: dict(facts) for name, facts in raw["targets"].items() if name in (TARGETS, KNOWN_LABELS)
        },
        class_names=None if names is None else checks.names("class_names", names),
        classes=classes,
        encoding=None if encoding is None else FeatureEncoding.from_value(encoding),
        checksum=raw["checksum"],
    )


def checksum_of(fields: Mapping[str, Any]) -> str:
    """The SHA-256 of all other fields."""
    others = {name: value for name, value in fields.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _within(numbers: Integers, count: int) -> bool:
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < count)
