"""Truncated files and files with a flipped bit: the same result as before, or an error."""

import io
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import adar_runtime
from adar_runtime import Graph, read_graph
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import AdarError, BundleError

X, EDGES = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([[0, 1, 2], [1, 2, 3]])
LABELS = np.array([0, 1, 1, -1])


def npz(save: Callable[..., None]) -> bytes:
    buffer = io.BytesIO()
    save(buffer, x=X, edge_index=EDGES, y=LABELS)
    return buffer.getvalue()


def pt() -> bytes:
    buffer = io.BytesIO()
    given = {"x": X, "edge_index": EDGES, "y": LABELS}
    torch.save(Data(**{name: torch.from_numpy(value) for name, value in given.items()}), buffer)
    return buffer.getvalue()


FILES = {
    "stored.npz": lambda: npz(np.savez),
    "compressed.npz": lambda: npz(np.savez_compressed),
    "pyg.pt": pt,
}


def truncated(content: bytes, step: int) -> Iterator[bytes]:
    for length in range(0, len(content), step):
        yield content[:length]


def flipped(content: bytes, step: int) -> Iterator[bytes]:
    """Flip one bit, another one for each byte."""
    for place in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place // step % 8)
        yield bytes(damaged)


def is_the_same(graph: Graph) -> bool:
    """The graph is unchanged. Labels may be missing, if the damage hit their name."""
    known = graph.labels is None or np.array_equal(graph.labels, LABELS)
    return np.array_equal(graph.features, X) and np.array_equal(graph.edge_index, EDGES) and known


@pytest.mark.filterwarnings("ignore::adar_runtime.errors.AdarWarning")  # of a key with a damaged name
@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_graph_is_the_same_or_an_error(name: str, damage, tmp_path: Path, stride: int) -> None:
    path, refused = tmp_path / name, 0
    content = FILES[name]()
    damaged_files = list(damage(content, stride))
    for damaged in damaged_files:
        path.write_bytes(damaged)
        try:
            graph = read_graph(path)
        except AdarError:
            refused += 1
        else:
            assert is_the_same(graph)
    assert refused > len(damaged_files) / 2
    assert damage is flipped or refused == len(damaged_files)


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.parametrize("name", ["encoder.onnx", "cell.onnx", "head.onnx"])
def test_a_damaged_bundle_is_an_error(
    name: str, damage, bundle_folder: Path, tmp_path: Path, stride: int
) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    content = (bundle / name).read_bytes()
    for damaged in damage(content, max(1, len(content) // (2000 // stride))):
        (bundle / name).write_bytes(damaged)
        with pytest.raises(BundleError):
            adar_runtime.load(bundle)


def test_a_flipped_bit_in_a_manifest_is_detected(bundle_folder: Path, tmp_path: Path, stride: int) -> None:
    """An accepted manifest has the same content: the bit was in an exponent or the checksum's key."""
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    original = read_manifest(bundle)
    damaged_files = list(flipped((bundle / "manifest.json").read_bytes(), stride))
    refused = 0
    for damaged in damaged_files:
        (bundle / "manifest.json").write_bytes(damaged)
        try:
            found = read_manifest(bundle)
        except BundleError:
            refused += 1
        else:
            assert replace(found, sealed=True) == original
    assert refused > 0.97 * len(damaged_files)


def test_a_truncated_manifest_is_an_error(bundle_folder: Path, tmp_path: Path, stride: int) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    content = (bundle / "manifest.json").read_bytes().rstrip()
    for damaged in truncated(content, 20 * stride):
        (bundle / "manifest.json").write_bytes(damaged)
        with pytest.raises(BundleError):
            adar_runtime.load(bundle)
