"""One Ray cluster for all tests of this folder: starting it takes seconds."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from adar_runtime.distributed.cluster import connected

# Ray leaves its processes to the operating system, and warns about its next version.
IGNORED = ("pytest.PytestUnraisableExceptionWarning", "ResourceWarning", "FutureWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings that Ray causes."""
    for item in items:
        if item.get_closest_marker("ray"):
            for kind in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@contextmanager
def without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    pytest.importorskip("ray", reason="Ray is not installed (extra scale)")
    stack = ExitStack()
    with without_warnings():
        stack.enter_context(connected("2"))
    yield
    with without_warnings():
        stack.close()
        gc.collect()
