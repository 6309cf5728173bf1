"""Train in several processes, each with its share of the graphs: `torchrun … -m adar_deploy train A B …`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from adar_runtime.errors import UsageError


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the process group of torchrun; a single process does nothing."""
    if world_size() == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def world_size() -> int:
    """The number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process, from 0. Only process 0 writes files and prints."""
    return int(os.environ.get("RANK", "0"))


def choose_device(name: str) -> torch.device:
    """The device of this name; "auto" is CUDA if available, with one CUDA device per process."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch found no CUDA device: use --device cpu")
    if name == "cuda" and world_size() > 1:
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return torch.device(name)


def mean(value: Tensor) -> float:
    """The mean of this value over all processes."""
    if world_size() > 1:
        distributed.all_reduce(value)
        value = value / world_size()
    return float(value)


def share_gradients(module: nn.Module) -> nn.Module:
    """Average the module's gradients over all processes; a single process gets the module itself."""
    return DistributedDataParallel(module) if world_size() > 1 else module
