"""Sides that take turns, each in a process of its own.

Thread pools that share two cores with another framework's would be timed waiting for each other.
"""

import multiprocessing as mp
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

Turn = Callable[[], tuple[float, NDArray[np.float32]]]
"""How long it took, and the answer."""


class Worker:
    """The process of one side; it ends with its parent. `build` makes the turn there, from `args`."""

    def __init__(self, build: Callable[..., Turn], *args: Any) -> None:
        context = mp.get_context("spawn")
        self._pipe, other = context.Pipe()
        context.Process(target=_serve, args=(other, build, args), daemon=True).start()

    def turn(self) -> tuple[float, NDArray[np.float32]]:
        """Let it have a turn, while the others wait."""
        self._pipe.send(True)
        answer: tuple[float, NDArray[np.float32]] = self._pipe.recv()
        return answer


def race(workers: Mapping[str, Worker], repeats: int) -> dict[str, list[float]]:
    """Seconds of each turn, by side."""
    seconds: dict[str, list[float]] = {side: [] for side in workers}
    for _ in range(repeats):
        for side, worker in workers.items():
            seconds[side].append(worker.turn()[0])
    return seconds


def _serve(pipe: Connection, build: Callable[..., Turn], args: tuple[Any, ...]) -> None:
    turn = build(*args)
    with suppress(EOFError):  # the parent has ended
        while pipe.recv():
            pipe.send(turn())
