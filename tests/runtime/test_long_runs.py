"""What lives for weeks: many runs, many steps, several threads, and nothing that grows."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import adar_runtime
from adar_runtime import Bundle, Final, Graph, Peak
from tests.helpers import random_graph
from tests.runtime.test_loop import resident_kb

long = pytest.mark.torture


class Held(NamedTuple):
    """By this process, now."""

    kilobytes: int
    files: int
    threads: int


def held() -> Held:
    return Held(resident_kb(), *(len([*Path(f"/proc/self/{kind}").iterdir()]) for kind in ("fd", "task")))


def assert_nothing_grows(work: Callable[[], object], times: int, most_kb: int) -> None:
    """After as many as it takes to fill every cache and pool."""
    for _ in range(times // 10 + 5):
        work()
    gc.collect()  # files that cycles of earlier tests still hold
    before = held()
    for _ in range(times):
        work()
    after = held()
    assert (after.files, after.threads) == (before.files, before.threads)
    assert after.kilobytes - before.kilobytes < most_kb


@pytest.fixture(scope="module")
def described(described_bundle: Path) -> Bundle:
    return adar_runtime.load(described_bundle, "onnxruntime-cpu", threads=2)


@pytest.mark.parametrize("times", [100, pytest.param(10_000, marks=long)])
def test_runs_in_one_process(times: int, described: Bundle) -> None:
    graph = random_graph(300, 900)  # a run's states are 100 kB: kept, 100 of them would be 10 MB
    assert_nothing_grows(lambda: described.run(graph, 5), times, most_kb=4096)


@pytest.mark.parametrize("times", [10, pytest.param(300, marks=long)])
def test_bundles_opened_in_one_process(times: int, described_bundle: Path) -> None:
    graph = random_graph(20, 60)
    assert_nothing_grows(lambda: adar_runtime.load(described_bundle).run(graph, 2), times, most_kb=8192)


@pytest.mark.parametrize("times", [10, pytest.param(500, marks=long)])
def test_runs_that_fail(times: int, described: Bundle) -> None:
    """An error holds on to nothing either."""
    wild = Graph(
        np.full((300, 6), 3e38, np.float32),
        np.zeros((2, 0), int),
        target_features=np.ones((2, 6), np.float32),
    )

    def fail() -> None:
        with pytest.raises(adar_runtime.AdarError):
            described.run(wild, 5)

    assert_nothing_grows(fail, times, most_kb=4096)


@pytest.mark.parametrize("steps", [2_000, pytest.param(100_000, marks=long)])
def test_steps_of_one_run(steps: int, described: Bundle) -> None:
    graph = random_graph(300, 900)
    loop = described.loop(graph, steps, Peak(patience=steps, prominence=0.0))
    for _ in range(500):
        next(loop)
    before = held()
    for _ in loop:
        pass
    after = held()
    assert loop.result().steps == steps
    assert (after.files, after.threads) == (before.files, before.threads)
    assert after.kilobytes - before.kilobytes < 4096 + steps // 20  # 16 bytes a step, and what rounds them up


@pytest.mark.parametrize("times", [3, pytest.param(200, marks=long)])
def test_four_threads_that_share_a_bundle(times: int, described: Bundle) -> None:
    graphs = [random_graph(50 + 40 * seed, 400, seed=seed) for seed in range(4)]
    expected = [described.run(graph, 20, Final()) for graph in graphs]

    def work(index: int) -> list[bool]:
        results = [described.run(graphs[index], 20, Final()) for _ in range(times)]
        return [np.array_equal(result.scores, expected[index].scores) for result in results]

    with ThreadPoolExecutor(4) as pool:
        same = [one for of_thread in pool.map(work, range(4)) for one in of_thread]
    assert same == [True] * 4 * times
