"""`adar-deploy straighten`: a new run beside the old one, or the same weights and the reason."""

import json
from pathlib import Path

from adar_runtime.bundle.run_files import WEIGHTS


def test_a_new_run_is_written(adar, run_folder: Path, tmp_path: Path) -> None:
    code, out, _ = adar("straighten", run_folder, "--out", "fast", "--updates", 2)
    assert code == 0
    assert "not straightened" in out
    assert "4 calls give the result already" in " ".join(out.split())
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
