"""The states of one graph on a GPU, computed a block of steps ahead of the loop.

The loop requests one step at a time; a GPU is faster with many at once. If the next moves are known, the
device runs a whole block, and `step` hands out the results one by one. Three things follow.

* An actual move may differ from the planned move (adaptive solver). Then the device returns to the start of
  the block, repeats the steps that the loop has requested, and runs single steps from there on.
* The same happens when the caller reads a state in the middle of a block.
* A kept state is stored as the start of its block and the steps from there. The device repeats these steps
  (at most one block) only when the state is needed.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from adar_runtime.backends import Capture
from adar_runtime.backends.tensorrt.engines.clock import ROWS
from adar_runtime.backends.tensorrt.session import BLOCK, SLOTS, Session
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Motion, Move

TEMPORARY = SLOTS - 1  # the slot that holds the current state while another one is computed


class _PlannedStep(NamedTuple):
    move: Move
    row: Floats  # of the clock's table


class _SavedState(NamedTuple):
    number: int  # identifies the state
    slot: int  # of the session, where its block begins
    rows: tuple[Floats, ...]  # step inputs from the state in the slot to this state


class TensorRtRecurrence:
    """The `Recurrence` protocol on a TensorRT session."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self._session = session
        self._scalars = dict.fromkeys(SCALARS, 0.0) | {"alignment": session.head.run(session.sides[0])}
        self._numbers = count(1)
        self._number = 0  # of the loop's current state; every state has its own number
        self._kept: _SavedState | None = None
        self._plan: Iterator[_PlannedStep] = iter(())  # steps after those in the table
        self._table: list[_PlannedStep] = []  # steps in the device's table
        self._next = 0  # index of the next row of the table
        self._block: list[_PlannedStep] = []  # steps that the device ran since the last saved state
        self._used = 0  # how many of them the loop has requested
        self._slot = 0  # slot of the state before the block
        self._ready: deque[dict[str, float]] = deque()  # scalars of the steps not yet requested

    @property
    def alignment(self) -> float:
        return self._scalars["alignment"]

    @property
    def motion(self) -> Motion:
        return Motion(self._scalars["speed"], self._scalars["turn"])

    @property
    def capture(self) -> Capture:
        return self._session.capture

    @property
    def device(self) -> int:
        """Number of the CUDA device."""
        return self._session.cuda.device

    @property
    def device_bytes(self) -> int:
        """Device memory of this graph's buffers and scratch memory."""
        return self._session.bytes

    def use_captured_steps(self, on: bool) -> None:
        """Replay captured steps, or queue every step: for comparisons."""
        self._session.replays = on

    def plan_ahead(self, moves: Iterator[tuple[Floats, Move]]) -> None:
        self._rewind()
        self._plan = (_PlannedStep(move, _row(code, move)) for code, move in moves)
        self._table, self._next = [], 0

    def step(self, code: Floats, move: Move) -> None:
        if not self._ready and self._is_planned(move):
            self._run_ahead()
        if self._ready and self._block[self._used].move == move:
            self._scalars = self._ready.popleft()
            self._used += 1
        else:
            self._rewind()
            self._drop_plan()
            self._session.set_steps([_row(code, move)])
            (self._scalars,) = self._session.run(1)
        self._number = next(self._numbers)

    def keep(self) -> None:
        if self._block:
            self._kept = self._current()
        else:
            slot = self._free_slot()
            self._session.save(slot)
            self._kept = _SavedState(self._number, slot, ())

    def recall(self) -> None:
        if self._kept is not None:
            self._drop_plan()
            self._go_to(self._kept)
            self._number = self._kept.number

    def scores(self, *, kept: bool) -> Floats:
        if not kept or self._kept is None or self._kept.number == self._number:
            self._rewind()
            return self._scores()
        side = self._session.side
        self._session.save(TEMPORARY)
        self._go_to(self._kept)
        found = self._scores()
        self._session.restore(TEMPORARY, side)
        self._write_table()
        return found

    def state(self) -> dict[str, Floats]:
        self._rewind()
        return {name: self._session.part(name) for name in STATE}

    def _is_planned(self, move: Move) -> bool:
        """Whether this move is the next planned one. Refills the table when all rows are used."""
        if self._next == len(self._table):
            self._table, self._next = list(islice(self._plan, ROWS)), 0
            self._write_table()
        return bool(self._table) and self._table[self._next].move == move

    def _write_table(self) -> None:
        if self._table:
            self._session.set_steps([step.row for step in self._table], self._next)

    def _run_ahead(self) -> None:
        """Run a block or the rest of the table. On side 1, run one step to get to side 0."""
        steps = 1 if self._session.side else min(BLOCK, len(self._table) - self._next)
        slot = self._free_slot()
        self._session.save(slot)
        if self._kept is not None and self._kept.number == self._number:
            self._kept = _SavedState(
                self._number, slot, ()
            )  # the end of the last block is the start of this one
        self._slot, self._used = slot, 0
        self._block = self._table[self._next : self._next + steps]
        self._next += steps
        self._ready.extend(self._session.run(steps))

    def _current(self) -> _SavedState:
        """The loop's current state, as the start of its block and the steps from there."""
        return _SavedState(self._number, self._slot, tuple(step.row for step in self._block[: self._used]))

    def _rewind(self) -> None:
        """If the device is ahead of the loop, bring it back to the loop's current state."""
        if self._ready:
            current = self._current()
            self._drop_plan()
            self._go_to(current)

    def _drop_plan(self) -> None:
        """Run single steps from here on."""
        self._plan = iter(())
        self._table, self._next = [], 0
        self._block, self._used = [], 0
        self._ready.clear()

    def _go_to(self, saved: _SavedState) -> None:
        """Restore a saved state on the device."""
        self._session.restore(saved.slot)
        if saved.rows:
            self._session.set_steps(saved.rows)
            self._session.run(len(saved.rows))

    def _free_slot(self) -> int:
        used = () if self._kept is None else (self._kept.slot,)
        return next(slot for slot in range(TEMPORARY) if slot not in used)

    def _scores(self) -> Floats:
        """Run the head on the current state."""
        self._session.head.run(self._session.sides[self._session.side])
        return self._session.head.scores()


def _row(code: Floats, move: Move) -> Floats:
    """The row of the clock's table for one step."""
    return np.concatenate([code, np.array([getattr(move, name) for name in STEP], np.float32)])
