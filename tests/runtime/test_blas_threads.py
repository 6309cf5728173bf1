"""The number of threads of numpy's linear algebra."""

from collections.abc import Iterator
from threading import Thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import blas_threads, load
from adar_runtime.blas_threads import one_blas_thread
from adar_runtime.in_context import start
from tests.in_context_graphs import block_graph


def threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    blas_threads._controller.cache_clear()  # other tests may have loaded scipy's BLAS since
    with threadpool_limits(2, user_api="blas"):
        if threads() != {2}:
            pytest.skip("the BLAS of numpy has no setting for threads here")
        yield


def test_an_error_restores_the_threads() -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread(), one_blas_thread():
        assert threads() == {1}
        raise ZeroDivisionError
    assert threads() == {2}


def test_a_thread_that_ends_first_leaves_the_limit() -> None:
    def use() -> None:
        with one_blas_thread():
            pass

    with one_blas_thread():
        other = Thread(target=use)
        other.start()
        other.join()
        assert threads() == {1}
    assert threads() == {2}


def test_the_start_of_the_pretrained_model_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []

    def watched(name: str) -> None:
        own = getattr(start, name)
        monkeypatch.setattr(start, name, lambda *given: seen.append(threads()) or own(*given))

    watched("leading_directions")
    watched("_reduced")
    load(named_bundle(PRETRAINED), threads=1).prepare(block_graph())
    assert len(seen) > 1
    assert all(one == {1} for one in seen)
    assert threads() == {2}
