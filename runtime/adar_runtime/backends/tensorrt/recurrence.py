"""The states of one graph on a GPU, a block of steps ahead of whoever asks for them.

A loop asks for one step at a time; a GPU likes many at once. So, where the moves to come are foreseen, a
whole block is run, and its steps are handed out one by one. Three things follow.

* A foreseen move may turn out different (an adaptive solver's). Then the device goes back to the start of the
  block, repeats the steps that were asked for, and from there on takes one step at a time.
* The same, where somebody wants to see a state in the middle of a block.
* A state that is kept is the start of its block and how many steps from there. Only when it is asked for are
  they run again, at most a block of them.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from adar_runtime.backends.tensorrt.engines.clock import ROWS
from adar_runtime.backends.tensorrt.session import BLOCK, SAVED, Session
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Motion, Move

ASIDE = SAVED - 1  # the slot for a state that has to make room for a moment


class _Told(NamedTuple):
    """One step of the future."""

    move: Move
    row: Floats  # of the clock's table


class _Kept(NamedTuple):
    number: int  # of the state that is meant
    slot: int
    rows: tuple[Floats, ...]  # of the steps from what is in the slot to that state


class TensorRtRecurrence:
    """Behind the same interface as every other."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self._session = session
        self._heard = dict.fromkeys(SCALARS, 0.0) | {"alignment": session.head.run(session.sides[0])}
        self._numbers = count(1)
        self._number = 0  # of the state that the loop is at; no two states have the same
        self._kept: _Kept | None = None
        self._future: Iterator[_Told] = iter(())
        self._table: list[_Told] = []  # what the device's table holds,
        self._next = 0  # and which row of it comes next
        self._block: list[_Told] = []  # steps since the last state that was set aside, done on the device
        self._asked = 0  # how many of them have been asked for
        self._slot = 0  # where the state before the block is
        self._ready: deque[dict[str, float]] = deque()  # what the steps not yet asked for have to say

    @property
    def alignment(self) -> float:
        return self._heard["alignment"]

    @property
    def motion(self) -> Motion:
        return Motion(self._heard["speed"], self._heard["turn"])

    def plan_ahead(self, moves: Iterator[tuple[Floats, Move]]) -> None:
        self._settle()
        self._future = (_Told(move, _row(code, move)) for code, move in moves)
        self._table, self._next = [], 0

    def step(self, code: Floats, move: Move) -> None:
        if not self._ready and self._foreseen(move):
            self._run_ahead()
        if self._ready and self._block[self._asked].move == move:
            self._heard = self._ready.popleft()
            self._asked += 1
        else:
            self._settle()
            self._forget()
            self._session.tell([_row(code, move)])
            (self._heard,) = self._session.run(1)
        self._number = next(self._numbers)

    def keep(self) -> None:
        if self._block:
            self._kept = self._here()
        else:
            slot = self._free_slot()
            self._session.save(slot)
            self._kept = _Kept(self._number, slot, ())

    def recall(self) -> None:
        if self._kept is not None:
            self._forget()
            self._go_to(self._kept)
            self._number = self._kept.number

    def scores(self, *, kept: bool) -> Floats:
        if not kept or self._kept is None or self._kept.number == self._number:
            self._settle()
            return self._scores()
        side = self._session.side
        self._session.save(ASIDE)
        self._go_to(self._kept)
        found = self._scores()
        self._session.restore(ASIDE, side)
        self._fill()
        return found

    def state(self) -> dict[str, Floats]:
        self._settle()
        return {name: self._session.part(name) for name in STATE}

    def _foreseen(self, move: Move) -> bool:
        """Whether this move was, and hence those after it are; a table that is used up is filled again."""
        if self._next == len(self._table):
            self._table, self._next = list(islice(self._future, ROWS)), 0
            self._fill()
        return bool(self._table) and self._table[self._next].move == move

    def _fill(self) -> None:
        if self._table:
            self._session.tell([told.row for told in self._table], self._next)

    def _run_ahead(self) -> None:
        """A block, or what is left of the table; from the odd side, the one step to the even side."""
        steps = 1 if self._session.side else min(BLOCK, len(self._table) - self._next)
        slot = self._free_slot()
        self._session.save(slot)
        if self._kept is not None and self._kept.number == self._number:
            self._kept = _Kept(self._number, slot, ())  # the end of one block is the start of the next
        self._slot, self._asked = slot, 0
        self._block = self._table[self._next : self._next + steps]
        self._next += steps
        self._ready.extend(self._session.run(steps))

    def _here(self) -> _Kept:
        """The state in a block that the loop is at, as one would keep it."""
        return _Kept(self._number, self._slot, tuple(told.row for told in self._block[: self._asked]))

    def _settle(self) -> None:
        """Bring the device back to where the loop is, if it is ahead of it."""
        if self._ready:
            here = self._here()
            self._forget()
            self._go_to(here)

    def _forget(self) -> None:
        """Take one step at a time from here on."""
        self._future = iter(())
        self._table, self._next = [], 0
        self._block, self._asked = [], 0
        self._ready.clear()

    def _go_to(self, kept: _Kept) -> None:
        self._session.restore(kept.slot)
        if kept.rows:
            self._session.tell(kept.rows)
            self._session.run(len(kept.rows))

    def _free_slot(self) -> int:
        used = () if self._kept is None else (self._kept.slot,)
        return next(slot for slot in range(ASIDE) if slot not in used)

    def _scores(self) -> Floats:
        """The head, on the current state."""
        self._session.head.run(self._session.sides[self._session.side])
        return self._session.head.scores()


def _row(code: Floats, move: Move) -> Floats:
    """What the clock's table holds for a step."""
    return np.concatenate([code, np.array([getattr(move, name) for name in STEP], np.float32)])
