"""The block of memory that holds the states of a graph."""

from itertools import chain, combinations

import numpy as np

from adar_runtime.backends.state_buffers import LINE, STATES, VELOCITIES, state_buffers


def test_each_set_has_the_shapes_of_the_first_state_and_its_own_memory() -> None:
    first = [np.random.default_rng(0).random((n, 5), np.float32) for n in (103, 2, 7, 7)]
    states, velocities = state_buffers(first)
    assert (len(states), len(velocities)) == (STATES, VELOCITIES)
    assert all(
        [array.shape for array in one] == [array.shape for array in first] for one in states + velocities
    )
    assert all(np.array_equal(array, value) for array, value in zip(states[0], first, strict=True))
    assert not any(array.any() for array in velocities[0])
    arrays = list(chain(*states, *velocities))
    assert all(array.ctypes.data % (LINE * array.itemsize) == 0 for array in arrays)
    assert not any(np.shares_memory(one, other) for one, other in combinations(arrays, 2))
    for array in [*states[0], *velocities[0]]:
        array[...] = 1
    assert not any((value == 1).all() for value in first)


def test_the_states_are_one_block() -> None:
    """NumPy asks for large pages for 4 MB and more: one array of 10,000 nodes is smaller than that."""
    states, velocities = state_buffers([np.zeros((10_000, 64), np.float32)])
    blocks = {id(array.base) for one in states + velocities for array in one}
    assert len(blocks) == 1
    assert states[0][0].base.nbytes >= 4 * 2**20
