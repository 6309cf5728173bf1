import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adar_runtime import files
from adar_runtime import temporary_files as temporaries
from adar_runtime.bundle import reading
from adar_runtime.errors import UsageError
from adar_runtime.files import Marker, check_replaceable, check_writable, new_folder, write_file
from adar_runtime.graph.store import store
from adar_runtime.phases import context_files
from adar_serve import triton_repository

MARK = Marker("mark")
JSON_MARK = Marker("manifest.json", "graphs")


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "b", MARK) as folder:
        (folder / "mark").write_text("1")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "mark").read_text() == "1"
    assert names(tmp_path / "a") == ["b"]


def test_a_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with new_folder(path, MARK) as folder:
        (folder / "mark").write_text("old")
    with pytest.raises(RuntimeError), new_folder(path, MARK) as folder:
        (folder / "mark").write_text("new")
        raise RuntimeError
    assert (path / "mark").read_text() == "old"
    with new_folder(path, MARK) as folder:
        (folder / "mark").write_text("new")
    assert (path / "mark").read_text() == "new"
    assert names(tmp_path) == ["b"]


@pytest.mark.parametrize("content", ['{"name": "a web page"}', "[]", "{", "\udcff", "9" * 5000])
def test_a_json_file_of_another_program_is_no_marker(tmp_path: Path, content: str) -> None:
    """Many programs write a manifest.json or a config.json beside files that must not be lost."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "manifest.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match="of adar-deploy"), new_folder(tmp_path / "b", JSON_MARK):
        pass
    (tmp_path / "b" / "manifest.json").write_text('{"graphs": {}}')
    with new_folder(tmp_path / "b", JSON_MARK) as folder:
        (folder / "new").touch()
    assert names(tmp_path / "b") == ["new"]


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(UsageError, match="already"), new_folder(tmp_path / "thesis", MARK):
        pass
    assert names(tmp_path / "thesis") == ["chapter"]


def test_a_file_is_replaced_in_one_move(tmp_path: Path) -> None:
    write_file(tmp_path / "f", b"old")
    write_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert names(tmp_path) == ["f"]


def test_a_swap_that_fails_half_way_gives_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "b", Path.rename
    monkeypatch.setattr(files, "_exchange", lambda *_: False)  # as where a system has no exchange
    with new_folder(path, MARK) as folder:
        (folder / "mark").write_text("old")

    def fail_once(self: Path, target: Path) -> Path:
        if target == path and (self / "mark").read_text() == "new":
            raise OSError(5, "the disk is on fire")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(UsageError, match="on fire"), new_folder(path, MARK) as folder:
        (folder / "mark").write_text("new")
    assert (path / "mark").read_text() == "old"
    assert names(tmp_path) == ["b"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "mark").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with new_folder(tmp_path / "link", MARK) as folder:
        (folder / "mark").write_text("new")
    assert names(tmp_path) == ["link", "real"]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "mark").read_text() == "new"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file/p.csv", "Not a directory"),
        ("folder", "is a folder"),
        ("o" * 300, "too long"),
        ("new/" + "o" * 300 + "/p.csv", "too long"),
        ("/proc/p.csv", "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_known_before_and_after(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=message):
        check_writable(tmp_path / name)
    assert names(tmp_path) == ["file", "folder"]
    with pytest.raises(UsageError, match="cannot be written"):
        write_file(tmp_path / name, b"")
    with pytest.raises(UsageError), new_folder(tmp_path / name / "deeper" / ("x" * 300), MARK):
        pass


def test_a_place_that_can_be_written_to_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    for name in ("there", "a/b/c.csv", "n" * 250):
        check_writable(tmp_path / name)
    assert names(tmp_path) == ["there"]
    write_file(tmp_path / ("n" * 250), b"")  # a long name is no longer on the way


def test_what_a_dead_process_left_is_cleared_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from adar_runtime.temporary_files import temporary_file, temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder, temporary_file(Path(sys.argv[1])):
    (folder / "half").write_text("a bundle")
    print("ready", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        write_file(tmp_path / "f", b"1")
        assert len(names(tmp_path)) == 3  # both of them, and ours
        process.kill()
    assert len(names(tmp_path)) == 3  # nobody could clean up after kill -9
    write_file(tmp_path / "f", b"2")
    assert names(tmp_path) == ["f"]


def test_a_folder_that_another_command_wrote_meanwhile_is_checked_again(tmp_path: Path) -> None:
    """Two packs, or exports of two models, with the same new folder: the last one replaced the other."""
    path = tmp_path / "b"

    def check() -> None:
        if path.exists():
            raise UsageError("somebody was faster")

    with pytest.raises(UsageError, match="faster"), new_folder(path, MARK, check) as slow:
        (slow / "mark").write_text("slow")
        with new_folder(path, MARK, check) as fast:
            (fast / "mark").write_text("fast")
    assert (names(tmp_path), (path / "mark").read_text()) == (["b"], "fast")


def test_a_folder_of_the_user_that_appears_meanwhile_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with pytest.raises(UsageError, match="already exists"), new_folder(path, MARK) as folder:
        (folder / "mark").write_text("ours")
        path.mkdir()
        (path / "thesis.tex").write_text("theirs")
    assert (names(tmp_path), names(path)) == (["b"], ["thesis.tex"])


@pytest.mark.parametrize("exchange", [True, False])
def test_two_that_write_one_folder_both_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    path = tmp_path / "b"
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)  # as where a system has none

    def write(text: str) -> None:
        for _ in range(50):
            with new_folder(path, MARK) as folder:
                (folder / "mark").write_text(text)
                (folder / "twin").write_text(text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    assert (path / "mark").read_text() == (path / "twin").read_text()
    assert names(tmp_path) == ["b"]


def test_a_swap_that_was_killed_half_way_gives_the_old_folder_back(tmp_path: Path) -> None:
    """Without an atomic swap, the only copy is moved away for a moment: the next writer restores it."""
    write_bundle = "with files.new_folder(path, files.Marker('mark')) as folder: (folder / 'mark').write_text"
    code = f"""
import os, signal, sys
from pathlib import Path
from adar_runtime import files
path, rename = Path(sys.argv[1]) / "b", Path.rename
{write_bundle}('old')
def killed(self, target):
    if not path.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)
files._exchange = lambda *_: False
Path.rename = killed
{write_bundle}('new')
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert not (tmp_path / "b").exists()
    write_file(tmp_path / "f", b"1")
    assert names(tmp_path) == ["b", "f"]
    assert (tmp_path / "b" / "mark").read_text() == "old"


@pytest.mark.parametrize("name", [".adar-0123456789abcdef", ".adar-aside-0123456789abcdef"])
def test_what_nobody_here_made_is_left_alone(tmp_path: Path, name: str) -> None:
    """Opening a pipe would wait forever, and a link leads to a foreign folder."""
    os.mkfifo(tmp_path / name)
    (tmp_path / "other").mkdir()
    (tmp_path / (name[:-1] + "0")).symlink_to("other")
    code = "from pathlib import Path; from adar_runtime import temporary_files; temporary_files.clear(Path())"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
    assert names(tmp_path) == sorted([name, name[:-1] + "0", "other"])


def test_clearing_what_cannot_be_removed_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".adar-0123456789abcdef").write_text("")

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(Path, "unlink", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        temporaries.clear(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_marker_with_a_value_is_not_that_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": "other", "checksum": "x"}')
    assert Marker("store.json", "format").marks(tmp_path)
    assert not Marker("store.json", "format", "ours").marks(tmp_path)
    with pytest.raises(UsageError, match="contains no"), new_folder(tmp_path, store.MARKER):
        pass


@pytest.mark.parametrize(
    ("marker", "own"),
    [
        (reading.MARKER, ("cell.onnx", "README.md", "model.sig", "engines")),
        (store.MARKER, ("00000", "target_x.npy")),
        (context_files.MARKER, ("scores.npy", "receiver_starts.npy")),
    ],
)
def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path, marker: Marker, own: tuple[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / marker.name).write_text(json.dumps({marker.key: marker.value}))
    for name in own:
        (folder / name).touch()
    check_replaceable(folder, marker)
    (folder / "features.npy").write_text("of the user")
    message = r"also contains features\.npy, which would be deleted"
    with pytest.raises(UsageError, match=message), new_folder(folder, marker):
        pass
    assert (folder / "features.npy").read_text() == "of the user"


@pytest.mark.parametrize(
    ("marker", "own", "other"),
    [
        (reading.MARKER, "phase_absorb.onnx", "resnet.onnx"),
        (reading.MARKER, "engines/cell-rtx.engine", "engines/notes.txt"),
        (reading.MARKER, "LICENSE", "README.md/notes.txt"),
        (store.MARKER, "00000/x_indptr.npy", "00000/notes.txt"),
        (context_files.MARKER, "sent.npy", "scores.npy/notes.txt"),
        (triton_repository.VERSION, "__pycache__/model.cpython-311.pyc", "notes.txt"),
    ],
)
def test_a_folder_with_files_of_others_in_its_folders_is_not_replaced(
    tmp_path: Path, marker: Marker, own: str, other: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / marker.name).write_text(json.dumps({marker.key: marker.value}))
    for name in (own, other):
        check_replaceable(folder, marker)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    with pytest.raises(UsageError, match=f"also contains {other}, which would be deleted"):
        check_replaceable(folder, marker)
