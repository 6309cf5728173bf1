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
from adar_runtime.loop.registry import is_number
from adar_train.cell import current_settings
from adar_train.weight_average import WeightAverage

ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}
CHECKSUM = "sha256"  # in the metadata: of all tensors and the other metadata. Older checkpoints have none
UNREADABLE = (
    SafetensorError,
    OSError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
)
"""The exceptions of reading a damaged checkpoint."""


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
    write_file(path, save(content, metadata=meta | {CHECKSUM: _checksum(content, meta)}))


def read_progress(path: Path) -> dict[str, Any]:
    """The JSON metadata of a checkpoint, checked; the tensors are not loaded."""
    with reading(path):
        with safe_open(path, framework="pt") as file:
            progress = dict(parse_json(file.metadata()["progress"]))
        _check_progress(progress)
        return progress


def _check_progress(progress: Mapping[str, Any]) -> None:
    """Check the types of everything that a training uses: a stranger may have written the file."""
    settings, search = progress.get("settings"), progress.get("search", [])
    if not isinstance(search, list) or not all(
        isinstance(one, dict) and isinstance(one.get("settings"), dict) for one in search
    ):
        raise ValueError("its search is not a list of settings")
    if settings is None:  # of another version: `check_settings` says so
        return
    if not isinstance(settings, dict):
        raise ValueError("its settings are not an object")
    if search and not search[0]["settings"].items() <= settings.items():
        raise ValueError("its search chose other settings than it has")
    best = progress["best_val"]
    if not is_history(progress["history"]):
        raise ValueError("its history is not a list of epochs")
    if not is_number(progress["seconds"]) or not (best is None or is_number(best)):
        raise ValueError("its time or its best validation is not a number")


def is_history(content: Any) -> bool:
    """Whether this is a history: a list of epochs, from the first one on."""
    return isinstance(content, list) and all(map(_is_epoch, content, range(1, len(content) + 1)))


def _is_epoch(row: Any, number: int) -> bool:
    """Whether this is the row of an epoch in the history."""
    return (
        isinstance(row, dict)
        and row.get("epoch") == number
        and "loss" in row
        and all(map(is_number, row.values()))
    )


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
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    random: np.random.Generator,
    average: WeightAverage | None = None,
) -> dict[str, Tensor]:
    """Restore model, optimiser, random states and averaged weights in place; return the best weights."""
    with reading(path):
        with safe_open(path, framework="pt") as file:
            meta, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        best = _part(tensors, "best")
        model.load_state_dict(_part(tensors, "model"))
        _check_weights(model, best)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": _optimizer_state(tensors, optimizer)})
        torch.set_rng_state(tensors["random.torch"])
        random.bit_generator.state = parse_json(meta["random.numpy"])
        if average is not None:
            average.load(_part(tensors, "average"))
        if meta.pop(CHECKSUM, None) not in (None, _checksum(tensors, meta)):
            raise ValueError("its content was changed since it was written")
        return best


def _checksum(tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> str:
    """A sha256 of a checkpoint: a changed bit in it would give other weights without an error."""
    digest = hashlib.sha256(json.dumps(sorted(meta.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_weights(model: torch.nn.Module, best: Mapping[str, Tensor]) -> None:
    """Check the best weights now: they are used at the end of the training."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if {name: tensor.shape for name, tensor in best.items()} != shapes:
        raise ValueError("its best weights are not those of the model")


def _optimizer_state(
    tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """The state of each parameter by its number. Parameters without a gradient have none."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer").items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = tensor
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, values in state.items():
        if set(values) != ADAM_STATE or any(
            tensor.shape != (parameters[number].shape if key != "step" else ())
            or not tensor.is_floating_point()
            or not tensor.isfinite().all()
            or (key != "exp_avg" and (tensor < 0).any())
            for key, tensor in values.items()
        ):
            raise ValueError("its optimiser is not that of the model")
    return state


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
def reading(path: Path) -> Iterator[None]:
    """Turn every error of a damaged checkpoint into a RunFolderError."""
    try:
        yield
    except UNREADABLE as error:
        raise RunFolderError(
            f"{path} cannot be resumed ({reason(error)}): train again without --resume"
        ) from error


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"{prefix}.")
    }
