from pathlib import Path

import pytest

from adar_runtime.errors import UsageError
from adar_runtime.files import new_folder, write_file


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a" / "b", "mark") as folder:
        (folder / "mark").write_text("1")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "mark").read_text() == "1"
    assert names(tmp_path / "a") == ["b"]


def test_a_failure_leaves_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with new_folder(path, "mark") as folder:
        (folder / "mark").write_text("old")
    with pytest.raises(RuntimeError), new_folder(path, "mark") as folder:
        (folder / "mark").write_text("new")
        raise RuntimeError
    assert (path / "mark").read_text() == "old"
    with new_folder(path, "mark") as folder:
        (folder / "mark").write_text("new")
    assert (path / "mark").read_text() == "new"
    assert names(tmp_path) == ["b"]


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(UsageError, match="already"), new_folder(tmp_path / "thesis", "mark"):
        pass
    assert names(tmp_path / "thesis") == ["chapter"]


def test_a_file_is_replaced_in_one_move(tmp_path: Path) -> None:
    write_file(tmp_path / "f", b"old")
    write_file(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert names(tmp_path) == ["f"]
