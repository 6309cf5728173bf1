"""One thread for the linear algebra of numpy.

The closed-form start of the pretrained model consists of many products and decompositions of small matrices.
OpenBLAS with several threads waits for them actively after each one. On a busy machine, or in a container
with fewer cores than the machine, this takes many times as long as one thread does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, as a context or a decorator.

    The limit is that of the process. If several threads limit it at the same time, the first one decides.
    """
    with _controller().limit(limits=1, user_api="blas"):
        yield


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
