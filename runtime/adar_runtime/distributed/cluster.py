"""A Ray cluster: one on this machine, or one that runs already."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adar_runtime.errors import BackendError, MissingExtraError, UsageError, reason, short

AUTO, PREFIX = "auto", "ray://"
RETRIES = 2  # times that lost work is done again
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
ENVIRONMENT = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # workers have the environment of this process
    "RAY_agent_register_timeout_ms": "300000",  # 30 s by default, which is too short on a busy machine
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Settings of Ray, unless the user has set them."""


def check_workers(workers: str, option: str = "--workers") -> None:
    """Raise a UsageError unless this is "auto", a number of processes, or the address of a cluster."""
    is_count = workers.isascii() and workers.isdecimal() and len(workers) < 6 and int(workers) > 0
    if workers != AUTO and not is_count and not workers.startswith(PREFIX):
        raise UsageError(
            f"{option} takes {AUTO}, a number of processes, or a Ray cluster ({PREFIX}HOST:PORT); got "
            f"{short(workers)!r}"
        )


@contextmanager
def connected(workers: str) -> Iterator[int]:
    """Connect to the cluster, and yield the number of its CPUs. A cluster that was started here is stopped.

    Raises:
        MissingExtraError: Ray is not installed.
        UsageError: `workers` is neither a number nor an address.
        BackendError: The cluster does not start, or there is none at the address.
    """
    check_workers(workers)
    ray = import_ray()
    if ray.is_initialized():  # by the caller, who also stops it
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        _start(ray, workers)
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


def _start(ray: Any, workers: str) -> None:
    """Start a cluster, or connect to one. A start that takes too long for Ray is tried again."""
    if workers.startswith(PREFIX):
        _connect(ray, workers)
        return
    here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    for attempt in range(RETRIES + 1):
        try:
            ray.init(num_cpus=os.cpu_count() if workers == AUTO else int(workers), **here, **QUIET)
            return
        except Exception as error:  # Ray raises many types
            ray.shutdown()
            if attempt == RETRIES:
                raise BackendError(f"Ray did not start ({short(workers)}): {reason(error)}") from error


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster. A process for this client that takes too long for Ray is started again."""
    for attempt in range(RETRIES + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(address=address, **QUIET)
            return
        except Exception as error:  # Ray raises many types
            if isinstance(error, ConnectionAbortedError) and attempt < RETRIES:
                continue
            raise BackendError(  # Ray says only that time ran out, also if the cluster refuses a token
                f"Ray did not connect ({short(address)}): {reason(error)}; give the address of the cluster's "
                "client server (port 10001 after ray start --head); set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN if the cluster asks for a token"
            ) from error


def import_ray() -> Any:
    """Ray, or a MissingExtraError."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("--workers", "scale") from error
    return ray


def is_lost(error: BaseException) -> bool:
    """Whether a process ended before its work was done, or one that it waited for."""
    lost = import_ray().exceptions
    kinds = (lost.RayActorError, lost.ObjectLostError, lost.WorkerCrashedError, lost.OutOfMemoryError)
    return isinstance(error, kinds) or isinstance(getattr(error, "cause", None), kinds)
