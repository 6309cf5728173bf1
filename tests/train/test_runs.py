"""Run folders: written, read, found, and never replaced by accident."""

from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Graph
from adar_runtime.errors import RunFolderError
from adar_train import load_run
from adar_train.run_folders import free_name, make_newest, newest_run


def test_a_run_is_read_as_it_was_written(run_folder: Path, board: Graph) -> None:
    run = load_run(run_folder)
    assert run.metrics["metric"] == "roc_auc"
    assert run.config["training"]["epochs"] == 3
    assert np.array_equal(run.graph().features, board.features)
    assert {path.name for path in run_folder.iterdir()} == {
        "model.safetensors",
        "config.json",
        "metrics.json",
        "graph.pt",
        "history.json",
        "learning.png",
    }


def test_folders_without_a_readable_run_are_refused(tmp_path: Path, run_folder: Path) -> None:
    with pytest.raises(RunFolderError, match="adar-deploy train"):
        load_run(tmp_path)
    with pytest.raises(RunFolderError, match="no run in"):
        newest_run(tmp_path)
    for file in run_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_run(tmp_path)


def test_a_new_run_never_takes_an_existing_name(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        names.append(free_name(tmp_path, "a").name)
        (tmp_path / names[-1]).mkdir()
    assert names == ["a", "a-2", "a-3"]


def test_a_run_that_is_rewritten_at_the_same_time_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its config.json may disappear between listing and reading."""
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    glob = Path.glob

    def list_then_remove(folder: Path, pattern: str) -> list[Path]:
        found = list(glob(folder, pattern))
        (tmp_path / "other" / "config.json").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Path, "glob", list_then_remove)
    make_newest(tmp_path / "mine")
    (tmp_path / "other" / "config.json").write_text("{}")
    assert newest_run(tmp_path) == tmp_path / "mine"
