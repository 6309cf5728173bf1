"""Files that lost their end or had a bit turned over, at every place: the same answer, or an error."""

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
from adar_runtime.bundle.bundle import read_manifest
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
    """One bit of each byte, a different one from byte to byte."""
    for place in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place // step % 8)
        yield bytes(damaged)


def is_the_same(graph: Graph) -> bool:
    """What the damage left alone: a time stamp, say, or labels whose name was hit, which are then unknown."""
    known = graph.labels is None or np.array_equal(graph.labels, LABELS)
    return np.array_equal(graph.features, X) and np.array_equal(graph.edge_index, EDGES) and known


@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_graph_is_the_same_or_an_error(name: str, damage, tmp_path: Path, stride: int) -> None:
    path, refused = tmp_path / name, 0
    content = FILES[name]()
    tried = list(damage(content, stride))
    for damaged in tried:
        path.write_bytes(damaged)
        try:
            graph = read_graph(path)
        except AdarError:
            refused += 1
        else:
            assert is_the_same(graph)
    assert refused > len(tried) / 2
    assert damage is flipped or refused == len(tried)


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


def test_a_bit_turned_over_in_a_manifest_is_seen(bundle_folder: Path, tmp_path: Path, stride: int) -> None:
    """What is let through says the same: the E of an exponent, say, or the name of the checksum itself."""
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    whole = read_manifest(bundle)
    tried = list(flipped((bundle / "manifest.json").read_bytes(), stride))
    refused = 0
    for damaged in tried:
        (bundle / "manifest.json").write_bytes(damaged)
        try:
            found = read_manifest(bundle)
        except BundleError:
            refused += 1
        else:
            assert replace(found, sealed=True) == whole
    assert refused > 0.97 * len(tried)


def test_a_truncated_manifest_is_an_error(bundle_folder: Path, tmp_path: Path, stride: int) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    content = (bundle / "manifest.json").read_bytes().rstrip()
    for damaged in truncated(content, 20 * stride):
        (bundle / "manifest.json").write_bytes(damaged)
        with pytest.raises(BundleError):
            adar_runtime.load(bundle)
