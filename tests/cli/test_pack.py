"""`pack` and `unpack`, and the commands that open a pack as it is."""

import json
import shutil
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.bundle import pack
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.pack import encode, files_of
from adar_runtime.bundle.reading import read_manifest


@pytest.fixture
def packed(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> Path:
    write_graph(tmp_path / "board.npz", board)
    code, out, err = adar("pack", bundle_folder, "-o", "board.adar", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["files"][0] == "manifest.json"
    return tmp_path / "board.adar"


def test_commands_open_a_pack(adar, packed: Path, bundle_folder: Path) -> None:
    def steps(bundle: Path) -> object:
        code, out, err = adar("run", "board.npz", "--bundle", bundle, "--max-steps", 5, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)["alignment"]

    assert steps(packed) == steps(bundle_folder)
    code, out, _ = adar("inspect", packed, "--json")
    assert code == 0
    assert json.loads(out)["manifest"] == json.loads((bundle_folder / "manifest.json").read_text())
    assert adar("evaluate", packed, "board.npz", "--budgets", "3")[0] == 0
    assert adar("report", packed, "board.npz", "--budgets", "3")[0] == 0


def test_commands_that_write_into_a_bundle_need_a_folder(adar, packed: Path) -> None:
    for command in (
        ["build", packed],
        ["sign", packed, "--private-key", "k"],
        ["verify", packed, "--public-key", "k"],
    ):
        code, _, err = adar(*command)
        assert code == 2
        assert f"adar-deploy unpack {packed}" in " ".join(err.split())


@pytest.mark.parametrize("model", ["batched_cell", "phase_message"])
@pytest.mark.usefixtures("packed")
def test_damage_is_noticed_in_models_that_few_commands_read(
    model: str, adar, bundle_folder: Path, run_folder: Path, tmp_path: Path
) -> None:
    """They were packed, signed and shown as unchanged, and refused when a command needed them."""
    shutil.copytree(bundle_folder, tmp_path / "copy")
    damaged = tmp_path / "copy" / f"{model}.onnx"
    content = bytearray(damaged.read_bytes())
    content[-50] ^= 1
    damaged.write_bytes(content)
    manifest = read_manifest(tmp_path / "copy")
    (tmp_path / "damaged.adar").write_bytes(encode(files_of(tmp_path / "copy", manifest)))
    for command in (
        ["inspect", "copy"],
        ["inspect", "damaged.adar"],
        ["pack", "copy"],
        ["unpack", "damaged.adar", "--out", "out"],
        ["sign", "copy", "--private-key", "key"],
        ["triton", "copy", "--out", "models"],
        ["validate", "copy", "--run", run_folder],
    ):
        code, _, err = adar(*command)
        assert (code, f"{model}.onnx was changed" in " ".join(err.split())) == (2, True), (command, err)
    assert not any((tmp_path / name).exists() for name in ("copy.adar", "out", "models"))


@pytest.mark.usefixtures("packed")
def test_unpack(adar, bundle_folder: Path, tmp_path: Path) -> None:
    code, out, _ = adar("unpack", "board.adar")
    assert code == 0
    assert "next: adar-deploy run GRAPH --bundle board" in out
    assert (tmp_path / "board" / "cell.onnx").read_bytes() == (bundle_folder / "cell.onnx").read_bytes()
    assert adar("unpack", "board.adar")[0] == 2
    assert adar("unpack", "board.adar", "--overwrite")[0] == 0


def test_nothing_is_replaced_without_being_asked(adar, packed: Path, bundle_folder: Path) -> None:
    code, _, err = adar("pack", bundle_folder, "-o", packed)
    assert code == 2
    assert "--overwrite" in err
    assert adar("pack", bundle_folder, "-o", packed, "--overwrite")[0] == 0
    assert "a .adar file" in adar("pack", bundle_folder, "-o", "board.zip")[2]


def test_two_packs_into_one_file_at_once(adar, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commands succeeded, and the last one replaced the pack of the other."""

    def slow(folder: Path, manifest: Manifest) -> dict[str, bytes]:
        Path("new.adar").write_bytes(b"of the other command")
        return files_of(folder, manifest)

    monkeypatch.setattr(pack, "files_of", slow)
    code, _, err = adar("pack", bundle_folder, "-o", "new.adar")
    assert (code, "new.adar exists" in err) == (2, True)
    assert Path("new.adar").read_bytes() == b"of the other command"
    assert adar("pack", bundle_folder, "-o", "new.adar", "--overwrite")[0] == 0


@pytest.mark.usefixtures("packed")
def test_a_run_in_place_of_a_bundle(adar, run_folder: Path) -> None:
    code, _, err = adar("run", "board.npz", "--bundle", run_folder)
    assert code == 2
    assert f"this is a training run; export it: adar-deploy export {run_folder}" in err


def test_a_bundle_that_is_replaced_while_it_is_packed(
    adar, packed: Path, bundle_folder: Path, described_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old pack was replaced by one with models of two bundles, which nothing can open."""
    content = packed.read_bytes()

    def mixed(folder: Path, manifest: Manifest) -> dict[str, bytes]:
        return files_of(folder, manifest) | {"cell.onnx": (described_bundle / "cell.onnx").read_bytes()}

    monkeypatch.setattr(pack, "files_of", mixed)
    code, _, err = adar("pack", bundle_folder, "-o", packed, "--overwrite")
    assert (code, "was replaced while it was read" in err) == (2, True)
    assert packed.read_bytes() == content
