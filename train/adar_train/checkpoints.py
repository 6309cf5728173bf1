"""A training that was cut short, in one file, from which it goes on as if it had not been."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from adar_runtime.errors import RunFolderError
from adar_runtime.files import write_file

FILE_NAME = "checkpoint.safetensors"


def save_checkpoint(
    path: Path,
    model: torch.nn.Module,
    best: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    random: np.random.Generator,
    progress: Mapping[str, Any],
) -> None:
    """Weights, best weights, optimiser and random numbers as tensors; `progress` as JSON beside them."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
    tensors["random.torch"] = torch.get_rng_state()
    meta = {"progress": json.dumps(progress), "random.numpy": json.dumps(random.bit_generator.state)}
    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_file(path, save(content, metadata=meta))


def read_progress(path: Path) -> dict[str, Any]:
    """What was written beside the tensors, to see whether they are worth loading."""
    with _reading(path), safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["progress"]))


def load_checkpoint(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, random: np.random.Generator
) -> dict[str, Tensor]:
    """Put everything back where it was; the best weights are returned."""
    with _reading(path):
        with safe_open(path, framework="pt") as file:
            meta, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        model.load_state_dict(_part(tensors, "model"))
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(tensors, "optimizer").items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        torch.set_rng_state(tensors["random.torch"])
        random.bit_generator.state = json.loads(meta["random.numpy"])
        return _part(tensors, "best")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RunFolderError(f"{path} does not fit this training and cannot be resumed: {reason}") from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{prefix}.")
    }
