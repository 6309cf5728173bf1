"""Changed engine files, and invalid sidecars."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from adar_runtime.backends.tensorrt.engines.build import _exclusive
from adar_runtime.backends.tensorrt.engines.sidecar import (
    SCHEMA,
    Sidecar,
    read_engine,
    sha256,
    sidecars,
    write_engines,
)
from adar_runtime.backends.tensorrt.engines.timing_cache import TimingCache
from adar_runtime.errors import BackendError, UsageError

PLAN = b"a plan" * 1000
SIDECAR = Sidecar(
    onnx_model="cell",
    onnx_sha256="0" * 64,
    engine_sha256=sha256(PLAN),
    bytes=len(PLAN),
    package="rtx",
    version="1.0",
    version_compatible=False,
    compute_capabilities=(),
    precision="fp32",
    profiles=(),
    shapes=(),
    activation_bytes=(),
    user_allocation=True,
    optimization_level=3,
    workspace=None,
    built_by="0",
)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    write_engines(tmp_path, {"cell": (SIDECAR, PLAN)})
    return tmp_path / "engines" / SIDECAR.file


@pytest.mark.usefixtures("engine")
def test_a_written_engine_is_read(tmp_path: Path) -> None:
    (found,) = sidecars(tmp_path)
    assert (found, read_engine(tmp_path, found)) == (SIDECAR, PLAN)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_folders_and_links_beside_engines_are_kept(kind: str, engine: Path, tmp_path: Path) -> None:
    """A build deleted them without a word."""
    other = engine.parent / "notes"
    if kind == "link":
        other.symlink_to(tmp_path)
    else:
        other.mkdir()
        (other / "mine.txt").write_text("mine")
    with pytest.raises(BackendError, match="notes is not a file, and would be deleted"):
        write_engines(tmp_path, {"cell": (SIDECAR, PLAN)})
    assert other.is_symlink() or (other / "mine.txt").read_text() == "mine"


def test_a_file_with_a_hole_is_not_copied(engine: Path, tmp_path: Path) -> None:
    """The hole was filled: a bundle of some kilobytes took 8 TB of the disk."""
    (engine.parent / "big.bin").write_bytes(b"x")
    os.truncate(engine.parent / "big.bin", 2**30)
    with pytest.raises(BackendError, match="bytes to read, of which the disk has only"):
        write_engines(tmp_path, {"cell": (SIDECAR, PLAN)})
    assert (engine.parent / "big.bin").stat().st_blocks * 512 < 2**20


def to_link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def to_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


BYTES: dict[str, Callable[[Path], object]] = {
    "foreign bytes of the same length": lambda file: file.write_bytes(bytes(len(PLAN))),
    "one bit": lambda file: file.write_bytes(bytes([PLAN[0] ^ 1]) + PLAN[1:]),
    "half of them": lambda file: file.write_bytes(PLAN[: len(PLAN) // 2]),
    "more of them": lambda file: file.write_bytes(PLAN + PLAN),
    "none": lambda file: file.write_bytes(b""),
    "a link": to_link,
    "a pipe": to_pipe,
    "no file": Path.unlink,
}


@pytest.mark.parametrize("name", BYTES)
def test_changed_bytes_are_not_loaded(name: str, engine: Path, tmp_path: Path) -> None:
    BYTES[name](engine)
    (found,) = sidecars(tmp_path)
    with pytest.raises(BackendError) as error:
        read_engine(tmp_path, found)
    assert len(str(error.value).splitlines()) == 1


def described(**changes: object) -> bytes:
    return json.dumps({"schema": SCHEMA} | asdict(SIDECAR) | changes).encode()


TEXTS = {
    "not JSON": b"\xff",
    "a list": b"[]",
    "nested 100,000 deep": b"[" * 100_000,
    "2 MB": described(built_by="x" * 2**21),
    "another schema": described(schema=99),
    "an unknown field": described(code="os.system"),
    "a file elsewhere": described(graph="../../cell"),
    "an absolute path": described(graph="/etc/passwd"),
    "a number for text": described(version=7),
    "capabilities in words": described(compute_capabilities=["x"]),
    "invalid shapes": described(shapes=[{"nodes": [[1]]}]),
    "shapes of several ranks": described(shapes=[{"nodes": [[1, 1], [1, 1], [1]]}]),
    "shapes that shrink": described(shapes=[{"nodes": [[3], [2], [1]]}]),
    "an infinite shape": described(shapes=[{"nodes": [[1], [1], [float("inf")]]}]),
    "an infinite capability": described(compute_capabilities=[float("inf")]),
    "a capability of 1e999": described(compute_capabilities=["here"]).replace(b'"here"', b"1e999"),
    "a profile without end": described(profiles=[{key: [1, 1, float("inf")] for key in "nmck"}]),
    "a size in words": described(bytes="6000"),
    "a size of NaN": described(bytes=float("nan")),
    "a size below 0": described(bytes=-1),
    "a level that is a list": described(optimization_level=[3]),
    "a workspace in words": described(workspace="1 GB"),
    "activation bytes in words": described(activation_bytes=["1 GB"]),
    "rows that shrink": described(
        profiles=[{key: [1, 1, 1] for key in "nmck"} | {"rows": {"leaf_0": [2, 1, 1]}}]
    ),
    "rows that are a list": described(profiles=[{key: [1, 1, 1] for key in "nmck"} | {"rows": [1]}]),
    "a switch in words": described(user_allocation="yes"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_an_invalid_sidecar_is_ignored(name: str, engine: Path, tmp_path: Path) -> None:
    engine.with_suffix(".json").write_bytes(TEXTS[name])
    assert list(sidecars(tmp_path)) == []


def test_a_failed_write_leaves_the_old_engines(engine: Path, tmp_path: Path) -> None:
    (engine.parent / "notes.txt").write_text("mine")
    newer = replace(SIDECAR, engine_sha256=sha256(b"new"), bytes=3)
    broken = replace(SIDECAR, onnx_model="no/such/folder")
    with pytest.raises(UsageError):
        write_engines(tmp_path, {"cell": (newer, b"new"), "head": (broken, b"new")})
    (found,) = sidecars(tmp_path)
    assert read_engine(tmp_path, found) == PLAN
    write_engines(tmp_path, {"cell": (newer, b"new")})
    (found,) = sidecars(tmp_path)
    assert read_engine(tmp_path, found) == b"new"
    assert (engine.parent / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["engines"]


def test_concurrent_builds_lose_nothing(tmp_path: Path) -> None:
    """Each build is for another GPU, and copies the existing engines before it replaces the folder."""

    def write(capability: int) -> None:
        sidecar = replace(SIDECAR, compute_capabilities=(capability,))
        with _exclusive(tmp_path):
            write_engines(tmp_path, {"cell": (sidecar, PLAN)})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(80, 96)))
    assert [one.compute_capabilities for one in sidecars(tmp_path)] == [(n,) for n in range(80, 96)]
    assert all(read_engine(tmp_path, one) == PLAN for one in sidecars(tmp_path))


@pytest.mark.usefixtures("engine")
def test_a_size_beyond_every_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackendError):
        read_engine(tmp_path, replace(SIDECAR, bytes=10**30, engine_sha256="0" * 64))


@pytest.mark.parametrize("change", [to_link, to_pipe])
def test_a_sidecar_that_is_not_a_regular_file_is_ignored(
    change: Callable[[Path], object], engine: Path, tmp_path: Path
) -> None:
    """Reading a pipe without a writer would never end."""
    change(engine.with_suffix(".json"))
    assert list(sidecars(tmp_path)) == []


@pytest.mark.parametrize("change", [to_link, to_pipe])
def test_a_timing_cache_that_is_not_a_regular_file_is_ignored(
    change: Callable[[Path], object], engine: Path
) -> None:
    assert TimingCache(engine)._content == PLAN
    change(engine)
    assert TimingCache(engine)._content == b""


def test_an_engine_of_another_model_does_not_fit() -> None:
    """The bundle's own ONNX file decides, not the sidecar."""
    assert "built from a different cell.onnx" in str(SIDECAR.incompatibility("1" * 64, "rtx", "1.0"))
    assert SIDECAR.incompatibility("0" * 64, "rtx", "1.0") is None
    assert "1.0" in str(SIDECAR.incompatibility("0" * 64, "rtx", "2.0"))


@pytest.mark.parametrize(
    ("installed", "fits"), [("10.9", True), ("10.13.1", True), ("10.8", False), ("11.0", False), ("x", False)]
)
def test_a_version_compatible_engine_takes_later_minor_versions(installed: str, fits: bool) -> None:
    engine = replace(SIDECAR, package="tensorrt", version="10.9", version_compatible=True)
    assert (engine.incompatibility("0" * 64, "tensorrt", installed) is None) == fits


def test_without_a_query_of_tensorrt_the_compute_capability_decides() -> None:
    assert SIDECAR.other_gpu(80) is None
    assert "8.0 and later, but this GPU has 7.5" in str(SIDECAR.other_gpu(75))
    assert replace(SIDECAR, compute_capabilities=(86, 121)).other_gpu(121) is None
    assert "8.6, but this GPU has 8.9" in str(replace(SIDECAR, compute_capabilities=(86,)).other_gpu(89))
