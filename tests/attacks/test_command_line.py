"""Every attack of this folder on the command line: one error line, exit code 2, and no side effects.

`make torture` runs all attacks, each in its own process. The default tests run a few of each kind.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.bundle.run_files import CONFIG, WEIGHTS
from tests.attacks import (
    measured,
    test_manifest,
    test_npz,
    test_onnx,
    test_onnx_topology,
    test_pt,
    test_pt_archives,
    test_pt_pickles,
    test_pt_tensors,
    test_runs,
    test_safetensors,
)
from tests.attacks.payload import assert_no_code_ran
from tests.attacks.pt_files import save
from tests.bundles import change_model, edit

SECONDS, MEGABYTES = 2.0, 500.0

Build = Callable[[Path], object]


class Attack(NamedTuple):
    """How a folder with g.npz, bundle/ and run/ is changed, and the command that then reads it."""

    build: Build
    arguments: tuple[str, ...]
    preload: str = ""


RUN = ("run", "g.npz", "--bundle", "bundle")


def on_graph(make: Build, name: str, preload: str = "") -> Attack:
    return Attack(lambda folder: make(folder / name), ("run", name, "--bundle", "bundle"), preload)


def on_manifest(change: Callable[[dict], object], *, seal: bool) -> Attack:
    return Attack(lambda folder: edit(folder / "bundle", change, seal=seal), RUN)


def on_cell(change: Callable) -> Attack:
    return Attack(lambda folder: change_model(folder / "bundle", folder / "bundle", "cell", change), RUN)


def on_weights(change: Callable[[bytes], bytes]) -> Attack:
    def build(folder: Path) -> None:
        content = change((folder / "run" / WEIGHTS).read_bytes())
        (folder / "run" / WEIGHTS).write_bytes(content)
        config = json.loads((folder / "run" / CONFIG).read_text())
        config["weights"] = hashlib.sha256(content).hexdigest()
        (folder / "run" / CONFIG).write_text(json.dumps(config))

    return Attack(build, ("export", "run"), "torch")


def on_run(file: str, change: Callable[[dict], object]) -> Attack:
    def build(folder: Path) -> None:
        path = folder / "run" / file
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return Attack(build, ("export", "run"), "torch")


def on_entries(entries: dict) -> Build:
    return lambda path: save(path, **entries)


def on_file(file: str, change: Callable[[Path], object]) -> Attack:
    return Attack(lambda folder: change(folder / "bundle" / file), RUN)


def on_text(text: bytes) -> Attack:
    return on_file("manifest.json", lambda file: file.write_bytes(text))


ATTACKS: dict[str, Attack] = {
    **{f"npz, {name}": on_graph(make, "h.npz") for name, (make, _) in test_npz.ATTACKS.items()},
    **{
        f"pt, {name}": on_graph(make, "h.pt")
        for name, (make, _) in (test_pt_pickles.FILES | test_pt_archives.FILES).items()
    },
    **{
        f"pt, {name}": on_graph(on_entries(entries), "h.pt")
        for name, (entries, _) in (test_pt.ATTACKS | test_pt_tensors.ATTACKS).items()
    },
    **{
        f"manifest, {name}": on_manifest(change, seal=test_manifest.sealed(name))
        for name, (change, _) in test_manifest.ATTACKS.items()
    },
    **{f"manifest, {name}": on_text(text) for name, (text, _) in test_manifest.TEXTS.items()},
    **{
        f"{file}, {kind}": on_file(file, change)
        for kind, (change, _) in test_manifest.KINDS.items()
        for file in ("manifest.json", "cell.onnx")
    },
    **{f"onnx, {name}": on_cell(change) for name, (change, _) in test_onnx.ATTACKS.items()},
    **{f"topology, {name}": on_cell(change) for name, change in test_onnx_topology.HOSTILE.items()},
    **{f"weights, {name}": on_weights(change) for name, change in test_safetensors.ATTACKS.items()},
    **{f"run, {index}": on_run(file, change) for index, (file, change, _) in enumerate(test_runs.CASES)},
}
FAST = (
    "npz, a pickle that runs code",
    "npz, a zip bomb",
    "manifest, a file above",
    "cell.onnx, a link",
    "onnx, weights by an absolute path",
    "topology, SIGFPE in Div",
    "pt, bytearray(10^11), which PyTorch allows",
)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if not path.is_dir()
    }


def run_attack(attack: Attack, folder: Path, materials: Path) -> None:
    """Build the attack, run the command, and check that nothing forbidden happened."""
    home, report = shutil.copytree(materials, folder / "home"), folder / "report.json"
    attack.build(home)
    before = tree(home)
    command = [sys.executable, measured.__file__, str(report), attack.preload, *attack.arguments]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 1000
    facts = json.loads(report.read_text())
    assert facts["violations"] == []
    assert facts["seconds"] < SECONDS, facts
    assert facts["megabytes"] < MEGABYTES, facts
    assert tree(home) == before
    assert_no_code_ran(home)


@pytest.fixture(scope="session")
def materials(
    board: Graph, bundle_folder: Path, run_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A valid graph, bundle and run."""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    home = tmp_path_factory.mktemp("materials")
    write_graph(home / "g.npz", board)
    shutil.copytree(bundle_folder, home / "bundle")
    shutil.copytree(run_folder, home / "run")
    return home


@pytest.mark.parametrize("name", FAST)
def test_an_attack_gets_one_line(name: str, materials: Path, tmp_path: Path) -> None:
    run_attack(ATTACKS[name], tmp_path, materials)


@pytest.mark.torture
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_gets_one_line(name: str, materials: Path, tmp_path: Path) -> None:
    run_attack(ATTACKS[name], tmp_path, materials)


@pytest.mark.torture
def test_the_same_commands_accept_valid_files(materials: Path, tmp_path: Path) -> None:
    """Otherwise a program that always fails would pass the tests above."""
    home = shutil.copytree(materials, tmp_path / "home")
    for arguments, preload in (RUN, ""), (("export", "run"), "torch"):
        command = [sys.executable, measured.__file__, str(tmp_path / "report.json"), preload, *arguments]
        assert (
            subprocess.run(command, cwd=home, capture_output=True, timeout=120, check=False).returncode == 0
        )
