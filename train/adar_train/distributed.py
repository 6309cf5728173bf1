"""Several processes, each with its share of the graphs (`torchrun … -m adar_deploy train A B …`)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adar_runtime.errors import UsageError


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the group that torchrun set up; alone, do nothing."""
    if world_size() == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def world_size() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this is; the first one writes and prints."""
    return int(os.environ.get("RANK", "0"))


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a CUDA device where there is one, each process its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("cuda was asked for, and PyTorch sees no CUDA device: use --device cpu")
    if name == "cuda" and world_size() > 1:
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return torch.device(name)


def mean(total: Tensor) -> float:
    """The mean of every process's value."""
    if world_size() > 1:
        distributed.all_reduce(total)
        total = total / world_size()
    return float(total)


def shared(module: nn.Module) -> nn.Module:
    """The module with its gradients averaged over all processes; alone, itself."""
    return DistributedDataParallel(module) if world_size() > 1 else module
