"""What an inference leaves for new nodes: of each cell call, the small matrices, and what every node sent."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import GraphError, UsageError, short
from adar_runtime.files import writing
from adar_runtime.graph import Floats, Integers
from adar_runtime.in_context.start import ROUNDS
from adar_runtime.loop.solvers import Motion, Move, Solver
from adar_runtime.phases.kept_edges import KeptEdges
from adar_runtime.phases.sharded_step import Arrays, ShardedState

FACTORS = 4  # small matrices that the messages of a trained model are made with


@dataclass(frozen=True)
class Storage:
    """Where and how the rows are kept.

    Args:
        folder: Folder for a memory-mapped temporary file; None keeps the rows in memory.
        half: True keeps 16-bit numbers: half the space, and three digits.
        max_bytes: Most bytes to keep; None for the free memory, or the free space of the folder's disk.
    """

    folder: Path | str | None = None
    half: bool = False
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.folder is not None and not Path(self.folder).is_dir():
            raise UsageError(f"{short(self.folder)} is not a folder: choose one for the temporary file")

    @property
    def type(self) -> "np.dtype[Any]":
        return np.dtype(np.float16 if self.half else np.float32)

    def limit(self) -> int | None:
        """The most bytes that may be kept; None if unknown."""
        if self.max_bytes is not None:
            return self.max_bytes
        return memory.limit_bytes() if self.folder is None else shutil.disk_usage(self.folder).free


@dataclass(frozen=True)
class KeptCall:
    """What new nodes need of one cell call."""

    for_message: Arrays
    for_update: Arrays  # with the weights of the solver


def _close(file: IO[bytes]) -> None:
    """Close a temporary file. Closing writes what is left, which fails again if the disk is full."""
    with suppress(OSError):
        file.close()


class KeptCalls:
    """The calls that lead from the first state to the one that the answers come from."""

    def __init__(self, storage: Storage, nodes: int, width: int, beside: int = 0) -> None:
        """`beside`: bytes that are kept beside the calls, and count for the limit."""
        self._storage, self._shape, self._beside = storage, (nodes, width), beside
        self._limit = storage.limit()
        self.rows: list[NDArray[Any]] = []  # of each call, what every node sent: [n, d]
        # Without a name, the file disappears with the process, whatever happens.
        self._file = None if storage.folder is None else tempfile.TemporaryFile(dir=storage.folder)  # noqa: SIM115
        if self._file is not None:
            weakref.finalize(self, _close, self._file)
        self.calls: list[KeptCall] = []

    @classmethod
    def mapped(cls, rows: NDArray[Any], calls: list[KeptCall]) -> "KeptCalls":
        """Calls that are on disk; `rows` [calls, n, d] is mapped."""
        found = cls(Storage(half=rows.dtype == np.float16), *rows.shape[1:])
        found.rows, found.calls = list(rows), calls
        return found

    def __len__(self) -> int:
        return len(self.calls)

    @property
    def bytes(self) -> int:
        """The size of all that is kept."""
        small = sum(
            array.nbytes
            for call in self.calls
            for array in (*call.for_message.values(), *call.for_update.values())
        )
        return small + len(self.calls) * self._call_bytes

    @property
    def _call_bytes(self) -> int:
        return self._shape[0] * self._shape[1] * self._storage.type.itemsize

    def add(self, state: ShardedState, move: Move) -> None:
        """Keep the call that just moved the state."""
        check_size(self.bytes + self._beside + self._call_bytes, self._limit, len(self.calls) + 1)
        numbers = {name: np.array(getattr(move, name), np.float32) for name in ("weight", "previous_weight")}
        with np.errstate(over="ignore"):
            rows = state.sent.astype(self._storage.type)
        if self._storage.half and not np.isfinite(rows).all():
            raise GraphError("what the nodes send does not fit into 16 bits: use half=False")
        self._store(rows)
        self.calls.append(KeptCall(state.for_message, state.for_update | numbers))

    def _store(self, rows: NDArray[Any]) -> None:
        if self._file is None:
            self.rows.append(rows)
            return
        offset = len(self.calls) * self._call_bytes
        with writing(Path(self._storage.folder or "")):
            self._file.seek(offset)
            self._file.write(rows.tobytes())
            self._file.flush()
        self.rows.append(np.memmap(self._file, rows.dtype, "r+", offset, self._shape))

    def cut(self, length: int) -> None:
        """Forget the calls after the first `length` ones."""
        del self.calls[length:], self.rows[length:]

    def sent(self, nodes: Integers) -> Iterator[Floats]:
        """What these nodes sent in each call: [k, d]."""
        for rows in self.rows:
            yield rows[nodes].astype(np.float32, copy=False)

    def replace(self, nodes: Integers, sent: list[Floats]) -> None:
        """Change what these nodes sent in each call."""
        for rows, changed in zip(self.rows, sent, strict=True):
            rows[nodes] = changed


def check_size(needed: int, limit: int | None, calls: int) -> None:
    """Refuse to keep more bytes than allowed."""
    if limit is not None and needed > limit:
        raise GraphError(
            f"keeping {calls:,} or more cell calls of this graph needs about {needed:,} bytes, and {limit:,} "
            "are allowed: use a solver with fewer calls, such as ab2; 16-bit numbers (--half, in Python "
            "half=True); or a larger limit (--max-size; in Python max_bytes, and folder for a file on a disk)"
        )


def row_width(manifest: Manifest, targets: int) -> int:
    """Numbers that a node sends in one call: those of a pretrained model have its classes too."""
    return manifest.hidden + (targets + 1 if manifest.in_context else 0)


def bytes_beside(manifest: Manifest, edges: KeptEdges) -> int:
    """What is kept beside the calls: edges, and the nodes after the encoder and in the smoothing."""
    rounds = ROUNDS if manifest.in_context else manifest.smoothing
    return edges.bytes + (1 + rounds) * edges.incoming.nodes * manifest.hidden * memory.FLOAT


def estimated_bytes(
    manifest: Manifest, edges: KeptEdges, targets: int, storage: Storage, moves: tuple[Solver, float, float]
) -> int:
    """Refuse an inference that would keep more than allowed, before it starts.

    Args:
        manifest: The manifest of the bundle.
        edges: The edges that are kept.
        targets: Number of targets.
        storage: Where and how the rows are kept.
        moves: The solver, the end of its time, and the step size of the budget.

    Returns:
        The estimated bytes. A solver that chooses its steps by the motion of the nodes may need more.

    Raises:
        GraphError: More bytes are needed than allowed.
    """
    d, p = manifest.hidden, manifest.proxies
    small = 4 * ((p + targets) * d + FACTORS * (p + targets + d) * d + d * d + d + 2)
    one_call = edges.incoming.nodes * row_width(manifest, targets) * storage.type.itemsize + small
    beside, limit = bytes_beside(manifest, edges), storage.limit()
    solver, end, h = moves
    calls, following = 1, solver.moves(0.0, end, h)
    next(following, None)
    try:
        while True:
            check_size(beside + calls * one_call, limit, calls)
            following.send(Motion(0.0, 0.0))
            calls += 1
    except StopIteration:
        return beside + calls * one_call
