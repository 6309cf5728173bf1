"""Checkpoints: one file with everything that is needed to resume a training exactly."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from adar_runtime.errors import RunFolderError, reason
from adar_runtime.files import write_file
from adar_runtime.graph import Graph, SparseRows
from adar_runtime.json_files import parse_json
from adar_train.cell import current_settings


def save_checkpoint(
    path: Path,
    model: torch.nn.Module,
    best: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    random: np.random.Generator,
    progress: Mapping[str, Any],
    average: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights (also best and averaged), optimiser and random states; `progress` as JSON metadata."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    tensors |= {f"average.{name}": tensor for name, tensor in (average or {}).items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
    tensors["random.torch"] = torch.get_rng_state()
    meta = {"progress": json.dumps(progress), "random.numpy": json.dumps(random.bit_generator.state)}
    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_file(path, save(content, metadata=meta))


def read_progress(path: Path) -> dict[str, Any]:
    """The JSON metadata of a checkpoint; the tensors are not loaded."""
    with _reading(path), safe_open(path, framework="pt") as file:
        return dict(parse_json(file.metadata()["progress"]))


def check_settings(path: Path, saved: Mapping[str, Any] | None, current: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of a training with different settings, model or data."""
    if saved is None:
        raise RunFolderError(
            f"{path} was made by another version of adar-deploy: train again without --resume"
        )
    saved = current_settings(saved)
    changed = [name for name, value in current.items() if saved.get(name) != value]
    if changed:
        raise RunFolderError(
            f"the checkpoint {path} was made with different {', '.join(changed)}: "
            "resume with the same options and data, or train again without --resume"
        )


def load_checkpoint(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, random: np.random.Generator
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Restore model, optimiser and random states in place; return the best and the averaged weights."""
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
        random.bit_generator.state = parse_json(meta["random.numpy"])
        return _part(tensors, "best"), _part(tensors, "average")


def fingerprint(graphs: Sequence[Graph]) -> str:
    """A sha256 of all contents of the graphs, in their order."""
    digest = hashlib.sha256()
    for graph in graphs:
        _add(digest, graph)
    return digest.hexdigest()


def _add(digest: Any, value: Graph | SparseRows) -> None:
    for field in fields(value):
        content = getattr(value, field.name)
        if isinstance(content, SparseRows):
            _add(digest, content)
        elif isinstance(content, np.ndarray):
            digest.update(f"{field.name} {content.dtype} {content.shape}".encode())
            digest.update(np.ascontiguousarray(content))
        else:
            digest.update(f"{field.name} {content!r}".encode())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be resumed ({reason(error)}): train again without --resume"
        ) from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{prefix}.")
    }
