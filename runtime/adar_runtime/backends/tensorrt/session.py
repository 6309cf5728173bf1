"""The cell on a GPU: two execution contexts with swapped buffers, and many steps in one CUDA graph.

Side 0 and side 1 are buffers; each holds a state and its velocity. One context reads side 0 and writes
side 1, the other reads side 1 and writes side 0. Their addresses are set once. An even number of steps ends
on the side where it began, so a block of steps can be captured as one CUDA graph and replayed any number of
times. The clock (see `engines/clock.py`) supplies the inputs that differ from step to step. It has one
context per side too.

The scalar outputs of each step go to one row of a log. One copy brings the log to the host.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from adar_runtime.backends import Capture
from adar_runtime.backends.prepared_graph import Arrays
from adar_runtime.backends.tensorrt.context import Context, Shape
from adar_runtime.backends.tensorrt.cuda import Arena, Array, Captured, Cuda
from adar_runtime.backends.tensorrt.encoder_head import Encoder, Head
from adar_runtime.backends.tensorrt.engines.clock import CLOCK, CODE, NEXT_TICK, ROWS, TABLE, TICK, row_width
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.errors import BackendError
from adar_runtime.graph import Floats

BLOCK = 16  # steps per captured CUDA graph; even, so that a replay ends on the side where it began
SLOTS = 3  # saved states: the start of the current block, the start of a kept block, one temporary


class Session:
    """Contexts and buffers for one graph at a time. A later graph of the same shapes reuses all of them."""

    def __init__(
        self, cuda: Cuda, make_context: Callable[[Cuda, str], Context], hidden: int, *, eager: bool
    ) -> None:
        self.cuda = cuda
        self.eager = eager  # the first run waits for kernels that are compiled for its shapes
        self.side = 0  # the side that holds the current state
        self.replays = True  # use captured steps
        self._width = row_width(hidden)
        self._clock, self._cell = ([make_context(cuda, name) for _ in range(2)] for name in (CLOCK, "cell"))
        self.encoder = Encoder(cuda, make_context(cuda, "encoder"))
        self.head = Head(cuda, make_context(cuda, "head"))
        self._shapes: dict[str, Shape] | None = None
        self._captured: Captured | None = None
        self.capture = Capture(captured=False, why="nothing was captured yet")

    def fit(self, profile: int, states: Mapping[str, Shape], structure: Arrays) -> bool:
        """Prepare for a graph with these state shapes and neighbour tables; return whether they are new."""
        shapes = dict(states) | {name: array.shape for name, array in structure.items()}
        new = shapes != self._shapes
        if new:
            self._shapes = None  # set again at the end: a failure in between must not look like success
            self._captured = None
            self._allocate(states, structure)
        self._upload(structure)
        if new:
            self._connect(profile, states, structure)
            self._warm_up()
            self._capture()
            self._shapes = shapes
        return new

    @property
    def bytes(self) -> int:
        """Device memory of the buffers and the scratch memory."""
        arenas = (*self.sides, *self._slots, self._structure)
        return sum(arena.memory.size for arena in arenas) + self._scratch.size + self.head.bytes

    def _allocate(self, states: Mapping[str, Shape], structure: Arrays) -> None:
        cuda = self.cuda
        self.sides, self._slots = [], []  # free the old buffers before allocating the new ones
        sides = dict(states) | {f"{name}_velocity": shape for name, shape in states.items()}
        self.sides = [Arena(cuda, sides) for _ in range(2)]
        self._slots = [Arena(cuda, sides) for _ in range(SLOTS)]
        self._structure = Arena(cuda, {name: array.shape for name, array in structure.items()})
        self._step_inputs = Arena(cuda, {CODE: (self._width - len(STEP),)} | dict.fromkeys(STEP, ()))
        self._table = Arena(cuda, {TABLE: (ROWS, self._width)})
        self._ticks = [Arena(cuda, {TICK: (1,)}) for _ in range(2)]
        self._scalars = Arena(cuda, dict.fromkeys(SCALARS, ()))
        self._log = cuda.allocate(BLOCK * self._scalars.memory.size)
        self._host_log = cuda.allocate_host(self._log.size)

    def _upload(self, structure: Arrays) -> None:
        for name, array in structure.items():
            self.cuda.upload(self._structure.addresses[name], array)

    def _connect(self, profile: int, states: Mapping[str, Shape], structure: Arrays) -> None:
        """Set shapes and addresses of all contexts. They run one at a time, so they share scratch memory."""
        shapes = {name: array.shape for name, array in structure.items()} | dict(states)
        shapes |= {f"previous_{name}_velocity": shape for name, shape in states.items()}
        needs = [context.fit(profile, shapes) for context in self._cell]
        needs += [context.fit(0, {}) for context in self._clock]
        self._scratch = self.cuda.allocate(max(needs))
        for side, (clock, cell) in enumerate(zip(self._clock, self._cell, strict=True)):
            here, there = self.sides[side].addresses, self.sides[1 - side].addresses
            ticks = self._ticks[side].addresses | {NEXT_TICK: self._ticks[1 - side].addresses[TICK]}
            clock.bind(self._table.addresses | self._step_inputs.addresses | ticks, self._scratch)
            inputs = {name: here[name] for name in STATE}
            inputs |= {f"previous_{name}_velocity": here[f"{name}_velocity"] for name in STATE}
            outputs = {f"next_{name}": there[name] for name in STATE}
            outputs |= {f"{name}_velocity": there[f"{name}_velocity"] for name in STATE}
            addresses = self._structure.addresses | self._step_inputs.addresses | self._scalars.addresses
            cell.bind(addresses | inputs | outputs, self._scratch)

    def _warm_up(self) -> None:
        """Run both sides once, on zeros, before the buffers hold a state.

        In its first run TensorRT may load, compile and allocate, which a capture does not allow.
        """
        for arena in (*self.sides, *self._ticks, self._table):
            self.cuda.clear(arena.memory)
        self._queue(2, side=0)
        self.cuda.wait()

    def _capture(self) -> None:
        """Capture a block of steps. If that is impossible, steps are queued; `capture` has the reason."""
        for context in (*self._clock, *self._cell):
            if not context.capturable():
                why = f"TensorRT says that the engine of the {context.name} cannot be captured"
                self.capture = Capture(captured=False, why=why)
                return
        try:
            with self.cuda.capturing() as captured:
                self._queue(BLOCK, side=0)
        except BackendError as error:  # if more than the capture failed, the next run raises an error
            self.capture = Capture(captured=False, why=str(error))
            return
        self._captured, self.capture = captured, Capture(captured=True)

    def _queue(self, steps: int, side: int) -> None:
        for step in range(steps):
            here = (side + step) % 2
            self._clock[here].run()
            self._cell[here].run()
            size = self._scalars.memory.size
            self.cuda.copy(self._log.address + step * size, self._scalars.memory.address, size)
        self.cuda.copy_out(self._host_log, self._log)

    def set_steps(self, rows: Sequence[Floats], at: int = 0) -> None:
        """Upload the step inputs of the next steps, and the index of the row to start with."""
        self.cuda.upload(self._table.addresses[TABLE], np.stack(rows))
        self.cuda.upload(self._ticks[self.side].addresses[TICK], np.array([at], np.int32))

    def run(self, steps: int) -> list[dict[str, float]]:
        """Run at most one block of steps, without the host in between; return the scalars of each step."""
        if steps == BLOCK and self.side == 0 and self._captured is not None and self.replays:
            self.cuda.launch(self._captured)
        else:
            self._queue(steps, self.side)
        self.cuda.wait()
        self.side = (self.side + steps) % 2
        return self._read_log(steps)

    def _read_log(self, steps: int) -> list[dict[str, float]]:
        size, base = self._scalars.memory.size, self._scalars.memory.address
        content = (ctypes.c_char * self._host_log.size).from_address(self._host_log.address)
        numbers = np.frombuffer(memoryview(content), np.float32).reshape(BLOCK, size // 4)[:steps]
        columns = {name: (address - base) // 4 for name, address in self._scalars.addresses.items()}
        return [{name: float(row[column]) for name, column in columns.items()} for row in numbers]

    def save(self, slot: int) -> None:
        """Copy the current state to a slot."""
        self._copy(self._slots[slot], self.sides[self.side])

    def restore(self, slot: int, side: int = 0) -> None:
        """Copy a slot to a side and make it the current state."""
        self._copy(self.sides[side], self._slots[slot])
        self.side = side

    def _copy(self, to: Arena, source: Arena) -> None:
        self.cuda.copy(to.memory.address, source.memory.address, source.memory.size)

    def part(self, name: str) -> Array:
        """Download one part of the current state."""
        arena = self.sides[self.side]
        return self.cuda.download(arena.addresses[name], arena.shapes[name])
