"""What a model was trained on: a fingerprint of each training graph with its split, and a sample of outputs.

A score on training labels says little. With this record, the runtime recognises a training graph and scores
its test part. Of other graphs, the sample shows whether many of their outputs were trained on.

The fingerprint covers features, edges and pairs, not labels or masks: labels may be renumbered or completed
later, and the same outputs were trained on. The two nodes of a pair may be exchanged: the score is the same.
"""

import base64
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adar_runtime.errors import BundleError
from adar_runtime.evaluation.graph_profile import profile
from adar_runtime.graph import GRAPH, PARTS, Graph, Mask, SparseRows
from adar_runtime.loop.registry import is_count

KEY = "fingerprint"  # of the record in the manifest's `training`, and in a run's config.json
STATISTICS = "statistics"  # in the record of a run; a bundle keeps them beside the fingerprint
VERSION = 2
DIRECTED = 1  # an older version, in which exchanged nodes make another pair; otherwise the same
SAMPLED = 1024  # hashes of trained outputs in the sample
DISTINCT = 0.95  # least share of distinct hashes for a sample: of others, new graphs would match by chance
MAX_ROUNDS = 2  # of adding the neighbours' hashes to the hash of a node
MAX_TEXT = 4 * 2**20  # characters of all splits; of larger data, only the sample is kept
BLOCK = 2**22  # features that are hashed at a time

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def describe(graphs: Sequence[Graph], split: int) -> dict[str, Any]:
    """The record of a training on this split of these graphs, as JSON values."""
    entries = [_entry(graph, split) for graph in graphs]
    if sum(len(entry["split"]) + 64 for entry in entries) > MAX_TEXT:
        entries = []
    return {
        "version": VERSION,
        "graphs": entries,
        "sample": _sample(graphs, split),
        STATISTICS: profile(graphs, split),
    }


def joined(first: Any, second: dict[str, Any]) -> dict[str, Any]:
    """The record of two trainings, one after the other. Samples of different kinds cannot be joined.

    Outputs of a graph in both count as trained on if one of the trainings used them.

    Raises:
        BundleError: A stranger wrote the first record, and it is damaged.
    """
    TrainingData(first)
    before = first if _is_known(first) else {}  # of nodes, so that both versions are the same
    samples = [each for each in (before.get("sample"), second["sample"]) if each]
    sample = samples[-1] if samples else None
    if len(samples) == 2 and samples[0]["rounds"] == samples[1]["rounds"]:
        hashes = [np.frombuffer(base64.b64decode(each["hashes"]), "<u8") for each in samples]
        lowest = np.unique(np.concatenate(hashes))[:SAMPLED].astype("<u8").tobytes()
        sample = samples[1] | {"hashes": base64.b64encode(lowest).decode()}
    graphs = {entry["sha256"]: entry for entry in before.get("graphs", [])}
    for entry in second["graphs"]:
        old, new = graphs.get(entry["sha256"]), _unpack(entry["split"], entry["outputs"])
        if old is not None:
            new["train"] = new["train"] | _recorded(old["split"], entry["outputs"])["train"]
        graphs[entry["sha256"]] = entry | {"split": _pack(new, entry["outputs"])}
    return second | {"graphs": [*graphs.values()], "sample": sample}


def _entry(graph: Graph, split: int) -> dict[str, Any]:
    return {
        "sha256": identity(graph),
        "nodes": graph.nodes,
        "edges": graph.edges,
        "outputs": graph.outputs,
        "split": _pack({part: graph.labelled(part, split) for part in PARTS}, graph.outputs),
    }


def _pack(masks: Mapping[str, Mask | None], outputs: int) -> str:
    """The part of each output: two bits each, compressed. An output of several parts counts as trained on."""
    parts = np.zeros(-(-outputs // 4) * 4, np.uint8)
    for number, part in reversed([*enumerate(PARTS, start=1)]):
        mask = masks[part]
        if mask is not None:
            parts[:outputs][mask] = number
    packed = (parts.reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(axis=1).astype(np.uint8)
    return base64.b64encode(zlib.compress(packed.tobytes(), 9)).decode()


def _unpack(text: str, outputs: int) -> dict[str, Mask]:
    """The masks of an entry. Its length is checked while it is decompressed."""
    size = -(-outputs // 4)
    packed = np.frombuffer(zlib.decompressobj().decompress(base64.b64decode(text), size + 1), np.uint8)
    if len(packed) != size:
        raise ValueError("the split has another length than the graph")
    parts = (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)[:outputs]
    return {part: parts == number for number, part in enumerate(PARTS, start=1)}


def _recorded(text: str, outputs: int) -> dict[str, Mask]:
    """The masks of an entry that a stranger may have written."""
    try:
        return _unpack(text, outputs)
    except (ValueError, zlib.error) as error:
        raise BundleError(
            "the record of the training split is damaged: export the run again, or train again"
        ) from error


class TrainingData:
    """The record of a training, as a bundle or run keeps it. A stranger may have written it."""

    def __init__(self, record: Any) -> None:
        try:
            self._read(record)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BundleError(
                "the record of the training data is damaged: export the run again, or train again"
            ) from error

    def _read(self, record: Any) -> None:
        known = _is_known(record)
        self._version = record["version"] if known else VERSION
        self._entries = [dict(entry) for entry in record["graphs"]] if known else []
        for entry in self._entries:
            if not all(isinstance(entry[key], str) for key in ("sha256", "split")):
                raise TypeError("not a text")
            if not all(is_count(entry[key], 0) for key in ("nodes", "edges", "outputs")):
                raise TypeError("not a count")
        sample = record.get("sample") if known else None
        self._rounds = sample["rounds"] if sample else 0
        if not is_count(self._rounds, 0) or self._rounds > MAX_ROUNDS:
            raise ValueError("unknown number of rounds")
        packed = base64.b64decode(sample["hashes"]) if sample else b""
        self._trained: Hashes = np.sort(np.frombuffer(packed, "<u8").astype(np.uint64))
        self._used: set[int] = set()

    def split_of(self, graph: Graph) -> dict[str, Mask] | None:
        """The masks of a training graph; None for another graph. Equal graphs are matched in their order."""
        sizes = (graph.nodes, graph.edges, graph.outputs)
        alike = [
            index
            for index, entry in enumerate(self._entries)
            if (entry["nodes"], entry["edges"], entry["outputs"]) == sizes
        ]
        if not alike:
            return None
        own = identity(graph, self._version)
        same = [index for index in alike if self._entries[index]["sha256"] == own]
        if not same:
            return None
        index = next((index for index in same if index not in self._used), same[0])
        self._used.add(index)
        return _recorded(self._entries[index]["split"], graph.outputs)

    def trained_share(self, graph: Graph, scored: Mask) -> float:
        """The estimated share of the scored outputs that were trained on; 0 where it is unknown."""
        if not len(self._trained):
            return 0.0
        hashes = np.unique(output_hashes(graph, self._rounds, self._version)[scored])
        comparable = hashes[hashes <= self._trained[-1]]
        found = int(np.isin(comparable, self._trained).sum())
        return found / len(comparable) if found > 1 or found == len(hashes) else 0.0


def _is_known(record: Any) -> bool:
    """Whether this is a record of a version that can be read."""
    return isinstance(record, Mapping) and record.get("version") in (DIRECTED, VERSION)


def _sample(graphs: Sequence[Graph], split: int) -> dict[str, Any] | None:
    """The lowest hashes of the outputs that were trained on; None where outputs look too much alike."""
    trained = [(graph, mask) for graph in graphs if (mask := graph.labelled("train", split)) is not None]
    for rounds in range(MAX_ROUNDS + 1):
        hashes = np.concatenate(
            [output_hashes(graph, rounds)[mask] for graph, mask in trained] or [np.zeros(0, np.uint64)]
        )
        distinct = np.unique(hashes)
        if len(hashes) and len(distinct) >= DISTINCT * len(hashes):
            lowest = distinct[:SAMPLED].astype("<u8").tobytes()
            return {"rounds": rounds, "hashes": base64.b64encode(lowest).decode()}
    return None


def identity(graph: Graph, version: int = VERSION) -> str:
    """A sha256 of features, edges, edge weights and pairs, for any order of edges and any storage."""
    digest = hashlib.sha256(f"{graph.level} {graph.nodes} {graph.width} {graph.outputs} ".encode())
    digest.update(_row_hashes(graph).astype("<u8").tobytes())
    edges = graph.edge_index[0] * graph.nodes + graph.edge_index[1]
    if graph.edge_weight is None:
        digest.update(np.sort(edges).astype("<i8").tobytes())
    else:
        order = np.lexsort([graph.edge_weight, edges])
        digest.update(edges[order].astype("<i8").tobytes() + graph.edge_weight[order].astype("<f4").tobytes())
    if graph.pairs is not None:
        pairs = graph.pairs if version == DIRECTED else np.sort(graph.pairs, axis=0)
        digest.update(pairs.astype("<i8").tobytes())
    return digest.hexdigest()


def output_hashes(graph: Graph, rounds: int, version: int = VERSION) -> Hashes:
    """A hash of what the model sees of each output, [k]: features, and `rounds` of neighbours."""
    hashes = _row_hashes(graph)
    source, target = graph.edge_index
    for _ in range(rounds):
        received = np.zeros(graph.nodes, np.uint64)
        np.add.at(received, target, _mix(hashes[source]))
        hashes = _mix(hashes + _mix(received))
    if graph.pairs is not None:
        first, second = hashes[graph.pairs]
        return _mix((first if version == DIRECTED else _mix(first)) + _mix(second))
    if graph.level == GRAPH:
        return _mix(_mix(hashes).sum(keepdims=True, dtype=np.uint64))
    return hashes


def _row_hashes(graph: Graph) -> Hashes:
    """A hash of the features of each node, [n]: zeros add nothing, so sparse storage gives the same hash."""
    factors = _mix(np.arange(1, graph.width + 1, dtype=np.uint64)) | np.uint64(1)
    if isinstance(graph.features, SparseRows):
        rows = graph.features
        products = _bits(rows.values) * factors[rows.columns]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(products, dtype=np.uint64)])
        return _mix(sums[rows.starts[1:]] - sums[rows.starts[:-1]])
    hashes = np.empty(graph.nodes, np.uint64)
    step = max(1, BLOCK // graph.width)
    for start in range(0, graph.nodes, step):
        hashes[start : start + step] = _bits(graph.features[start : start + step]) @ factors
    return _mix(hashes)


def _bits(values: Any) -> Hashes:
    """The bits of float32 numbers; -0 counts as 0."""
    return (values + np.float32(0)).astype("<f4").view("<u4").astype(np.uint64)


def _mix(values: Hashes) -> Hashes:
    """The finaliser of SplitMix64: every bit of the input changes half of the output's bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
