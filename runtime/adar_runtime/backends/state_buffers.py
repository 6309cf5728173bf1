"""The buffers of the states of one graph on the CPU: one block of memory, so that it gets large pages.

NumPy asks for large pages (2 MB) for 4 MB and more. With pages of 4 KB, a run of 10,000 nodes waited longer
for 3,000 pages than it took to prepare the neighbours.
"""

from collections.abc import Sequence

import numpy as np

from adar_runtime.graph import Floats

STATES = 3  # the cell reads one and writes another, and the third holds a kept state
VELOCITIES = 2  # the cell reads the previous one and writes the other
LINE = 16  # numbers of a cache line: every array begins at one


def state_buffers(first: Sequence[Floats]) -> tuple[list[list[Floats]], list[list[Floats]]]:
    """Sets of arrays for the states and for the velocities; each has the shapes of the first state.

    The first set of states holds the first state, and the first set of velocities zeros. The cell writes to
    the others before it reads them.
    """
    rounded = [-(-array.size // LINE) * LINE for array in first]
    count = STATES + VELOCITIES
    block = np.empty(count * sum(rounded) + LINE, np.float32)
    ends = np.cumsum([-block.ctypes.data // block.itemsize % LINE, *rounded * count])
    sets = [
        [
            block[start : start + array.size].reshape(array.shape)
            for start, array in zip(ends[index * len(first) :], first, strict=False)
        ]
        for index in range(count)
    ]
    states, velocities = sets[:STATES], sets[STATES:]
    for array, value, rest in zip(states[0], first, velocities[0], strict=True):
        array[...], rest[...] = value, 0
    return states, velocities
