"""Sidecars of engines, and what happens to changed ones."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.sidecar import SUFFIX, read_engine, sidecars
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import BackendError, UsageError
from tests.runtime.simulated_gpu import QUICK

CHANGES = {
    "not JSON": lambda _: "{",
    "a list": lambda _: "[]",
    "another schema": lambda raw: json.dumps(raw | {"schema": 99}),
    "a missing field": lambda raw: json.dumps({k: v for k, v in raw.items() if k != "bytes"}),
    "an extra field": lambda raw: json.dumps(raw | {"more": 1}),
    "a number for text": lambda raw: json.dumps(raw | {"version": 7}),
    "invalid shapes": lambda raw: json.dumps(raw | {"shapes": [{"nodes": "abc"}]}),
    "invalid sizes": lambda raw: json.dumps(raw | {"profiles": [{"n": [1]}]}),
    "a path outside the folder": lambda raw: json.dumps(raw | {"graph": "../../cell"}),
    "another name": lambda raw: json.dumps(raw | {"graph": "head"}),
    "far too large": lambda raw: json.dumps(raw) + " " * 2**20,
    "deep": lambda _: "[" * 100_000,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_invalid_sidecar_is_skipped(engines_folder: Path, tmp_path: Path, change) -> None:
    folder = shutil.copytree(engines_folder, tmp_path / "bundle")
    path = folder / FOLDER / "cell-rtx.json"
    path.write_text(change(json.loads(path.read_text())))
    assert [one.onnx_model for one in sidecars(folder)] == ["clock", "encoder", "head"]


def test_links_are_not_followed(engines_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(engines_folder, tmp_path / "bundle")
    for name in ("cell-rtx.json", f"head-rtx{SUFFIX}"):
        (folder / FOLDER / name).rename(tmp_path / name)
        (folder / FOLDER / name).symlink_to(tmp_path / name)
    found = {one.onnx_model: one for one in sidecars(folder)}
    assert "cell" not in found
    with pytest.raises(BackendError, match="is not the engine that was built"):
        read_engine(folder, found["head"])


def test_a_linked_folder_is_left_alone(engines_folder: Path, copy: Path, tmp_path: Path) -> None:
    shutil.copytree(engines_folder / FOLDER, tmp_path / "elsewhere")
    (copy / FOLDER).symlink_to(tmp_path / "elsewhere")
    assert not list(sidecars(copy))
    before = sorted((tmp_path / "elsewhere").iterdir())
    with pytest.raises(UsageError, match="leads out of the bundle"):
        build_engines(copy, *read_bundle(copy), QUICK)
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


def test_a_changed_engine_is_refused(engines_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(engines_folder, tmp_path / "bundle")
    found = next(iter(sidecars(folder)))
    path = folder / FOLDER / found.file
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(BackendError, match="was changed after the build: build it again"):
        read_engine(folder, found)
    path.unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        read_engine(folder, found)
