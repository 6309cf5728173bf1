"""`adar-deploy straighten`: a new run beside the old one, or the same weights and the reason."""

import json
import shutil
from pathlib import Path

from adar_runtime.bundle.run_files import CONFIG, HISTORY, WEIGHTS


def test_a_run_that_needs_few_calls_is_copied(adar, run_folder: Path, tmp_path: Path) -> None:
    code, out, _ = adar("straighten", run_folder, "--out", "fast", "--updates", 2)
    assert code == 0
    assert "not straightened" in out
    assert "because 4 calls are enough already" in " ".join(out.split())
    assert "adar-deploy export fast" in out
    assert (tmp_path / "fast" / WEIGHTS).read_bytes() == (run_folder / WEIGHTS).read_bytes()
    code, out, _ = adar("evaluate", "fast", "fast/graph.pt", "--budgets", 4, "--json")
    assert code == 0
    assert json.loads(out)["budgets"]


def test_the_name_follows_from_the_run(adar, run_folder: Path) -> None:
    code, out, _ = adar("straighten", run_folder, "--updates", 1, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["run"] == "runs/board-straight"
    assert found["calls"] == found["calls_before"] <= 10
    assert found["kept"]


def test_a_finished_run_is_not_replaced(adar, run_folder: Path) -> None:
    assert adar("straighten", run_folder, "--out", "fast", "--updates", 1)[0] == 0
    code, _, err = adar("straighten", run_folder, "--out", "fast", "--updates", 1)
    assert code == 2
    assert "contains a finished run" in err
    assert adar("straighten", run_folder, "--out", "fast", "--updates", 1, "--overwrite")[0] == 0


def test_damaged_files_are_found_before_the_long_work(adar, run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    config = json.loads((copy / CONFIG).read_text())
    for name, content, message in (
        (HISTORY, "[", "history.json cannot be read"),
        (CONFIG, json.dumps(config | {"training": {"other": 1}}), "was made by another version"),
    ):
        kept = (copy / name).read_text()
        (copy / name).write_text(content)
        code, _, err = adar("straighten", copy, "--out", "fast", "--updates", 1)
        assert (code, message in " ".join(err.split())) == (2, True), err
        (copy / name).write_text(kept)


def test_the_run_itself_is_not_replaced(adar, run_folder: Path) -> None:
    code, _, err = adar("straighten", run_folder, "--out", run_folder, "--overwrite")
    assert (code, "is the run itself" in err) == (2, True)
