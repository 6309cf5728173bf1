"""How many threads training uses: PyTorch's threads spin while they wait for one that has no core."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

STAT = Path("/proc/stat")
SECONDS = 0.2  # in which other processes are watched
GIVEN = "OMP_NUM_THREADS"


def avoid_busy_cores(on_note: Callable[[str], None]) -> None:
    """Use as many threads as there are idle cores, at least one, unless the environment gives a number."""
    threads = torch.get_num_threads()
    busy = 0 if GIVEN in os.environ or threads == 1 else busy_cores()
    idle = max(1, len(os.sched_getaffinity(0)) - busy) if busy else threads
    if idle < threads:
        torch.set_num_threads(idle)
        words = f"{busy} processor {'core is' if busy == 1 else 'cores are'} busy with other work"
        on_note(f"{words}: training uses {idle} of {threads} threads ({GIVEN} chooses the number)")


def busy_cores() -> int:
    """The number of cores, of those of this process, that others use at present. 0 if it is not known."""
    before = _idle_and_total()
    time.sleep(SECONDS if before else 0)
    after = _idle_and_total()
    busy = [
        1 - (after[core][0] - idle) / max(1, after[core][1] - total)
        for core, (idle, total) in before.items()
        if core in after
    ]
    return round(sum(busy))


def _idle_and_total() -> dict[int, tuple[int, int]]:
    """For each core that this process may use, the ticks it was idle, and all ticks."""
    try:
        lines = STAT.read_text().splitlines()
    except OSError:  # not Linux
        return {}
    found = {}
    for line in lines:
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in os.sched_getaffinity(0):
            found[int(name[3:])] = (int(ticks[3]) + int(ticks[4]), sum(map(int, ticks[:8])))
    return found
