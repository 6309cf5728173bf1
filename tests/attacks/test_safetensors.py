"""Weights with an invalid header, in a run and in a checkpoint."""

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from adar_runtime.bundle.run_files import CHECKPOINT, CONFIG, WEIGHTS
from adar_runtime.errors import RunFolderError
from adar_train import AdaR, ModelConfig, load_run
from adar_train.checkpoints import load_checkpoint, save_checkpoint

Header = dict[str, dict]


def header_of(content: bytes) -> Header:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def changed(change: Callable[[Header], object]) -> Callable[[bytes], bytes]:
    """The same numbers with a changed header."""

    def make(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        header = header_of(content)
        change(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return make


def first_two(header: Header) -> tuple[dict, dict]:
    """The first two tensors of the file."""
    tensors = sorted((one for name, one in header.items() if name != "__metadata__"), key=offsets)
    return tensors[0], tensors[1]


def offsets(tensor: dict) -> list[int]:
    return tensor["data_offsets"]


def overlapping(header: Header) -> None:
    first, second = first_two(header)
    second["data_offsets"] = first["data_offsets"]
    second["shape"], second["dtype"] = first["shape"], first["dtype"]


def shifted(header: Header) -> None:
    _, second = first_two(header)
    second["data_offsets"] = [at - 4 for at in second["data_offsets"]]


def backwards(header: Header) -> None:
    first, _ = first_two(header)
    first["data_offsets"].reverse()


def beyond(header: Header) -> None:
    first, _ = first_two(header)
    first["data_offsets"][1] += 2**40


def negative(header: Header) -> None:
    first, _ = first_two(header)
    first["data_offsets"][0] = -8


def overflowing(header: Header) -> None:
    first, _ = first_two(header)
    first["shape"] = [2**32, 2**32, 2**3]


def unknown_type(header: Header) -> None:
    first, _ = first_two(header)
    first["dtype"] = "PICKLE"


def with_length(length: int) -> Callable[[bytes], bytes]:
    return lambda content: struct.pack("<Q", length) + content[8:]


ATTACKS = {
    "tensors in the same place": changed(overlapping),
    "tensors that overlap by one number": changed(shifted),
    "a tensor that ends before it begins": changed(backwards),
    "a tensor beyond the end": changed(beyond),
    "a tensor before the start": changed(negative),
    "a shape whose product is zero in 64 bits": changed(overflowing),
    "an unknown type": changed(unknown_type),
    "no tensors": changed(dict.clear),
    "a header of 2^60 bytes": with_length(2**60),
    "a header of 2^64 bytes": with_length(2**64 - 1),
    "a header of no bytes": with_length(0),
    "a header that is not text": lambda content: content[:8] + b"\xff" * (len(content) - 8),
    "a header nested 30,000 deep": lambda _: struct.pack("<Q", 30_000) + b"[" * 30_000,
    "half of it": lambda content: content[: len(content) // 2],
    "nothing": lambda _: b"",
    "a pickle": lambda _: b"\x80\x02cposix\nsystem\nU\x0etouch code-was-runR.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_weights_of_a_run(name: str, run_folder: Path, tmp_path: Path) -> None:
    """The configuration has the hash of the hostile weights, as an attacker would write it."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    content = ATTACKS[name]((run / WEIGHTS).read_bytes())
    (run / WEIGHTS).write_bytes(content)
    config = json.loads((run / CONFIG).read_text())
    config["weights"] = hashlib.sha256(content).hexdigest()
    (run / CONFIG).write_text(json.dumps(config))
    with pytest.raises(RunFolderError) as error:
        load_run(run)
    assert "cannot be read" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("name", ATTACKS)
def test_a_checkpoint(name: str, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(ATTACKS[name]((run_folder / WEIGHTS).read_bytes()))
    model = AdaR(ModelConfig(4, 2, hidden=4, proxies=2))
    with pytest.raises(RunFolderError) as error:
        load_checkpoint(tmp_path / CHECKPOINT, model, torch.optim.Adam(model.parameters()), None)
    assert "cannot be resumed" in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("part", "change"),
    [
        (".step", lambda found: found.to(torch.bool)),
        (".step", lambda found: found.to(torch.complex64)),
        (".step", lambda found: -found),
        (".exp_avg", lambda found: found * float("nan")),
        (".exp_avg_sq", lambda found: found - 1),
    ],
)
def test_the_optimiser_of_a_checkpoint(tmp_path: Path, part: str, change) -> None:
    """PyTorch would raise an exception, or divide by zero, in the middle of an epoch."""
    model, random = AdaR(ModelConfig(4, 2, hidden=4, proxies=2)), np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters())
    sum(each.sum() for each in model.parameters()).backward()
    optimizer.step()
    save_checkpoint(tmp_path / CHECKPOINT, model, model.state_dict(), optimizer, random, {})
    load_checkpoint(tmp_path / CHECKPOINT, model, optimizer, random)
    with safe_open(tmp_path / CHECKPOINT, framework="pt") as file:
        meta = file.metadata()
    tensors = load_file(tmp_path / CHECKPOINT)
    changed = {name: change(found) for name, found in tensors.items() if name.endswith(part)}
    save_file(tensors | changed, tmp_path / CHECKPOINT, metadata=meta)
    with pytest.raises(RunFolderError, match="its optimiser is not that of the model"):
        load_checkpoint(tmp_path / CHECKPOINT, model, optimizer, random)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.complex64])
def test_weights_of_another_type(run_folder: Path, tmp_path: Path, kind: torch.dtype) -> None:
    """PyTorch would raise an exception in the first step."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    tensors = load_file(run / WEIGHTS)
    name = "cell.velocity.relation.weight"
    save_file(tensors | {name: tensors[name].to(kind)}, run / WEIGHTS)
    config = json.loads((run / CONFIG).read_text())
    config["weights"] = hashlib.sha256((run / WEIGHTS).read_bytes()).hexdigest()
    (run / CONFIG).write_text(json.dumps(config))
    with pytest.raises(RunFolderError, match="numbers of another type"):
        load_run(run)


def test_changed_weights_are_detected(run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    content = bytearray((run / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (run / WEIGHTS).write_bytes(content)
    with pytest.raises(RunFolderError, match="was changed after training"):
        load_run(run)


def test_sizes_of_the_configuration_allocate_no_memory(run_folder: Path, tmp_path: Path) -> None:
    """4 TB of weights, if the model were built before the weights are checked."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    config = json.loads((run / CONFIG).read_text())
    config["model"]["hidden"] = 10**6
    (run / CONFIG).write_text(json.dumps(config))
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_run(run)
