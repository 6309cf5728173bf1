"""The cell on a GPU: two contexts of one engine whose buffers swap, and many steps captured as one.

Side 0 and side 1 each hold a state with its velocity. One context reads side 0 and writes side 1, the other
goes back; their addresses are set once. An even number of steps thus ends where it began, so that they can
be captured as one CUDA graph and replayed without end. What differs from step to step, the clock tells: a
context of its own, on each side, that reads a row of a table and moves on to the next.

Each step's scalars are copied to a row of a log; one copy brings all of them to the host.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adar_runtime.backends.prepared_graph import Arrays
from adar_runtime.backends.tensorrt.context import Context, Shape
from adar_runtime.backends.tensorrt.cuda import Arena, Array, Captured, Cuda
from adar_runtime.backends.tensorrt.encoder_head import Encoder, Head
from adar_runtime.backends.tensorrt.engines.clock import CODE, NEXT_TICK, ROWS, TABLE, TICK, row_width
from adar_runtime.backends.tensorrt.engines.flavours import Flavour
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.errors import BackendError
from adar_runtime.graph import Floats

BLOCK = 16  # steps that are captured as one; even, so that a replay ends on the side where it began
SAVED = 3  # states that are set aside: two that blocks began with, one in the way of another


class Session:
    """All that one graph needs on the device, and the next graph of the same shape again."""

    def __init__(self, flavour: Flavour, engines: Mapping[str, Any], hidden: int) -> None:
        self.cuda = Cuda()
        self.side = 0  # that holds the current state
        self._width = row_width(hidden)
        self._clock, self._cell = (
            [Context(flavour, self.cuda, name, engines[name]) for _ in range(2)] for name in ("clock", "cell")
        )
        self.encoder = Encoder(self.cuda, Context(flavour, self.cuda, "encoder", engines["encoder"]))
        self.head = Head(self.cuda, Context(flavour, self.cuda, "head", engines["head"]))
        self._shapes: dict[str, Shape] | None = None
        self._captured: Captured | None = None

    def fit(self, profile: int, states: Mapping[str, Shape], structure: Arrays) -> None:
        """Be ready for a graph of these shapes with these tables of neighbours."""
        shapes = dict(states) | {name: array.shape for name, array in structure.items()}
        new = shapes != self._shapes
        if new:
            self._shapes = None  # until it is done: a failure on the way must not look like success
            self._captured = None
            self._allocate(states, structure)
        self._upload(structure)
        if new:
            self._connect(profile, states, structure)
            self._warm_up()
            self._captured = self._capture()
            self._shapes = shapes

    def _allocate(self, states: Mapping[str, Shape], structure: Arrays) -> None:
        cuda = self.cuda
        self.sides, self._saved = [], []  # the old ones go before the new ones come
        sides = dict(states) | {f"{name}_velocity": shape for name, shape in states.items()}
        self.sides = [Arena(cuda, sides) for _ in range(2)]
        self._saved = [Arena(cuda, sides) for _ in range(SAVED)]
        self._structure = Arena(cuda, {name: array.shape for name, array in structure.items()})
        self._told = Arena(cuda, {CODE: (self._width - len(STEP),)} | dict.fromkeys(STEP, ()))
        self._table = Arena(cuda, {TABLE: (ROWS, self._width)})
        self._ticks = [Arena(cuda, {TICK: (1,)}) for _ in range(2)]
        self._heard = Arena(cuda, dict.fromkeys(SCALARS, ()))
        self._log = cuda.allocate(BLOCK * self._heard.memory.size)
        self._host_log = cuda.allocate_host(self._log.size)

    def _upload(self, structure: Arrays) -> None:
        for name, array in structure.items():
            self.cuda.upload(self._structure.addresses[name], array)

    def _connect(self, profile: int, states: Mapping[str, Shape], structure: Arrays) -> None:
        """Shapes and addresses of both sides' contexts. They take turns, so one scratch memory serves all."""
        shapes = {name: array.shape for name, array in structure.items()} | dict(states)
        shapes |= {f"previous_{name}_velocity": shape for name, shape in states.items()}
        needs = [context.fit(profile, shapes) for context in self._cell]
        needs += [context.fit(0, {}) for context in self._clock]
        self._scratch = self.cuda.allocate(max(needs))
        for side, (clock, cell) in enumerate(zip(self._clock, self._cell, strict=True)):
            here, there = self.sides[side].addresses, self.sides[1 - side].addresses
            ticks = self._ticks[side].addresses | {NEXT_TICK: self._ticks[1 - side].addresses[TICK]}
            clock.bind(self._table.addresses | self._told.addresses | ticks, self._scratch)
            inputs = {name: here[name] for name in STATE}
            inputs |= {f"previous_{name}_velocity": here[f"{name}_velocity"] for name in STATE}
            outputs = {f"next_{name}": there[name] for name in STATE}
            outputs |= {f"{name}_velocity": there[f"{name}_velocity"] for name in STATE}
            addresses = self._structure.addresses | self._told.addresses | self._heard.addresses
            cell.bind(addresses | inputs | outputs, self._scratch)

    def _warm_up(self) -> None:
        """Run both sides once, on zeros, before there is a state to lose.

        TensorRT may load, compile and allocate in a first run, which no capture allows.
        """
        for arena in (*self.sides, *self._ticks, self._table):
            self.cuda.clear(arena.memory)
        self._queue(2, side=0)
        self.cuda.wait()

    def _capture(self) -> Captured | None:
        """A whole block; None where TensorRT says or shows that it cannot be captured: it is queued then."""
        if not all(context.capturable() for context in (*self._clock, *self._cell)):
            return None
        try:
            with self.cuda.capturing() as captured:
                self._queue(BLOCK, side=0)
        except BackendError:  # if more than the capture is wrong, the next run says so
            return None
        return captured

    def _queue(self, steps: int, side: int) -> None:
        for step in range(steps):
            here = (side + step) % 2
            self._clock[here].run()
            self._cell[here].run()
            size = self._heard.memory.size
            self.cuda.copy(self._log.address + step * size, self._heard.memory.address, size)
        self.cuda.copy_out(self._host_log, self._log)

    def tell(self, rows: Sequence[Floats], at: int = 0) -> None:
        """Rows for the steps to come, and which of them is next."""
        self.cuda.upload(self._table.addresses[TABLE], np.stack(rows))
        self.cuda.upload(self._ticks[self.side].addresses[TICK], np.array([at], np.int32))

    def run(self, steps: int) -> list[dict[str, float]]:
        """At most a block of steps, and the scalars of each. Nothing is asked of the host in between."""
        if steps == BLOCK and self.side == 0 and self._captured is not None:
            self.cuda.launch(self._captured)
        else:
            self._queue(steps, self.side)
        self.cuda.wait()
        self.side = (self.side + steps) % 2
        return self._read(steps)

    def _read(self, steps: int) -> list[dict[str, float]]:
        size, base = self._heard.memory.size, self._heard.memory.address
        content = (ctypes.c_char * self._host_log.size).from_address(self._host_log.address)
        numbers = np.frombuffer(memoryview(content), np.float32).reshape(BLOCK, size // 4)[:steps]
        columns = {name: (address - base) // 4 for name, address in self._heard.addresses.items()}
        return [{name: float(row[column]) for name, column in columns.items()} for row in numbers]

    def save(self, slot: int) -> None:
        """Set the current state aside."""
        self._copy(self._saved[slot], self.sides[self.side])

    def restore(self, slot: int, side: int = 0) -> None:
        """Make a state that was set aside the current one."""
        self._copy(self.sides[side], self._saved[slot])
        self.side = side

    def _copy(self, to: Arena, source: Arena) -> None:
        self.cuda.copy(to.memory.address, source.memory.address, source.memory.size)

    def part(self, name: str) -> Array:
        """A copy of one part of the current state."""
        arena = self.sides[self.side]
        return self.cuda.download(arena.addresses[name], arena.shapes[name])
