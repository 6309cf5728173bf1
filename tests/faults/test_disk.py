"""A disk that is full or locked, a folder without permission: one line, and the old is as it was."""

import os
import time
from pathlib import Path

import pytest

from adar_runtime.bundle.reading import read_bundle, read_manifest
from adar_train import load_run
from tests.faults.conftest import Server, left_behind

TRAIN = ("train", "g.npz", "--hidden", 8, "--proxies", 2, "--train-steps", 1, "--epochs", 4, "--no-search")
COMMANDS = {
    "train": (*TRAIN, "--checkpoint-every", 1, "--out", "disk/r"),
    "export": ("export", "run", "--out", "disk/bundle"),
    "run": ("run", "g.npz", "--bundle", "bundle", "--max-steps", 3, "--output", "disk/p.json"),
}


def assert_one_line(got: dict, message: str) -> None:
    assert got["code"] == 2, got["stderr"]
    assert message in got["stderr"]
    assert len(got["stderr"].splitlines()) == 1, got["stderr"]


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    [("train", 4), ("train", 24), ("train", 60), ("export", 4), ("export", 24), ("run", 4)],
)
def test_a_full_disk(name: str, kilobytes: int, commands: Server, home: Path) -> None:
    disk = commands.mount(home / "disk", kilobytes)
    got = commands.run(home, *COMMANDS[name])
    assert_one_line(got, "cannot be written: No space left on device")
    assert left_behind(disk) == []
    assert not (disk / "bundle").exists()
    assert not (disk / "r" / "config.json").exists()


@pytest.mark.torture
def test_a_disk_that_has_no_room_for_a_second_bundle_keeps_the_first(commands: Server, home: Path) -> None:
    size = sum(file.stat().st_size for file in (home / "bundle").iterdir())
    disk = commands.mount(home / "disk", size // 1024 * 3 // 2)
    assert commands.run(home, *COMMANDS["export"])["code"] == 0
    got = commands.run(home, *COMMANDS["export"], "--opset", 18)
    assert_one_line(got, "No space left on device")
    assert read_bundle(disk / "bundle")[0].opset == 17
    assert left_behind(disk) == []


@pytest.mark.parametrize(
    "name", ["run", *(pytest.param(name, marks=pytest.mark.torture) for name in ("train", "export"))]
)
def test_a_locked_disk(name: str, commands: Server, home: Path) -> None:
    disk = commands.mount(home / "disk", 8192)
    assert commands.run(home, *COMMANDS[name])["code"] == 0
    before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
    commands.lock(home / "disk")
    assert_one_line(commands.run(home, *COMMANDS[name]), "Read-only file system")
    assert before == {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_without_permission(name: str, commands: Server, home: Path) -> None:
    (home / "disk").mkdir(mode=0o555)
    assert_one_line(commands.run(home, *COMMANDS[name], powerless=True), "Permission denied")
    assert list((home / "disk").iterdir()) == []


@pytest.mark.parametrize("file", ["g.npz", "bundle/manifest.json", "bundle/cell.onnx"])
def test_a_file_that_may_not_be_read(file: str, commands: Server, home: Path) -> None:
    (home / file).chmod(0)
    got = commands.run(home, "run", "g.npz", "--bundle", "bundle", powerless=True)
    assert_one_line(got, "Permission denied")


@pytest.mark.torture
def test_a_clock_that_goes_backwards(commands: Server, home: Path) -> None:
    """The clock goes back an hour at every look: train, export and run do not depend on it."""
    for arguments in (
        (*TRAIN, "--checkpoint-every", 1, "--out", "runs/a"),
        ("export", "runs/a", "--out", "bundle"),
        ("run", "g.npz", "--bundle", "bundle", "--output", "p.csv"),
    ):
        got = commands.run(home, *arguments, clock=-3600.0)
        assert (got["code"], got["stderr"]) == (0, "")
    assert load_run(home / "runs" / "a").graph().nodes == 144
    assert left_behind(home) == []


@pytest.mark.torture
def test_the_newest_run_is_the_last_that_was_trained(commands: Server, home: Path) -> None:
    """Even where the one before says that it was written tomorrow."""
    assert commands.run(home, *TRAIN, "--out", "runs/first")["code"] == 0
    tomorrow = time.time() + 86_400
    os.utime(home / "runs" / "first" / "config.json", (tomorrow, tomorrow))
    assert commands.run(home, *TRAIN, "--seed", 1, "--out", "runs/second")["code"] == 0
    assert commands.run(home, "export")["code"] == 0
    weights = read_manifest(home / "bundle").training["weights"]
    assert weights == load_run(home / "runs" / "second").fingerprint()


def test_a_bundle_that_is_write_protected_is_replaced_without_remains(commands: Server, home: Path) -> None:
    (home / "bundle").chmod(0o555)
    got = commands.run(home, "export", "run", "--out", "bundle", "--opset", 18, powerless=True)
    assert got["code"] == 0, got["stderr"]
    assert read_manifest(home / "bundle").opset == 18
    assert left_behind(home) == []
