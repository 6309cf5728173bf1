"""A Ray cluster: one on this machine, or one that runs already."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from adar_runtime.errors import BackendError, MissingExtraError, UsageError, reason, short

AUTO, PREFIX = "auto", "ray://"
RETRIES = 2  # times that lost work is done again
ENVIRONMENT = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # workers have the environment of this process
    "RAY_agent_register_timeout_ms": "300000",  # 30 s by default, which is too short on a busy machine
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Settings of Ray, unless the user has set them."""


def check_workers(workers: str) -> None:
    """Raise a UsageError unless this is "auto", a number of processes, or the address of a cluster."""
    is_count = workers.isascii() and workers.isdecimal() and len(workers) < 6 and int(workers) > 0
    if workers != AUTO and not is_count and not workers.startswith(PREFIX):
        raise UsageError(
            f"--workers takes {AUTO}, a number of processes, or a Ray cluster ({PREFIX}HOST:PORT); got "
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
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    here = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    for attempt in range(RETRIES + 1):
        try:
            if workers.startswith(PREFIX):
                ray.init(address=workers, **quiet)
            else:
                ray.init(num_cpus=os.cpu_count() if workers == AUTO else int(workers), **here, **quiet)
            return
        except Exception as error:  # Ray raises many types
            ray.shutdown()
            if attempt == RETRIES or workers.startswith(PREFIX):
                raise BackendError(
                    f"Ray did not start or connect ({short(workers)}): {reason(error)}"
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
