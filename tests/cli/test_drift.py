"""`adar-deploy drift`, and the warnings of `run`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph
from tests.bundles import edit


@pytest.fixture
def graphs(board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "same.npz", board)
    write_graph(tmp_path / "other.npz", replace(board, features=board.rows(0, board.nodes) + 1))


@pytest.mark.usefixtures("graphs")
def test_exit_codes_for_a_pipeline(adar, bundle_folder: Path) -> None:
    code, out, err = adar("drift", bundle_folder, "same.npz", "--max-steps", 5)
    assert (code, err) == (0, "")
    assert "largest PSI" in out
    assert "degree" in out
    assert "warning" not in out
    code, out, err = adar("drift", bundle_folder, "other.npz", "--max-steps", 5)
    assert (code, err) == (3, "")
    assert "warning: the graph is unlike the training data (PSI above 0.25)" in out
    code, out, _ = adar("drift", bundle_folder, "other.npz", "--max-steps", 5, "--json")
    report = json.loads(out)
    assert code == 3
    assert report["unlike"]
    assert report["score"] == report["changes"][0]["psi"] > 0.25
    code, out, _ = adar("drift", bundle_folder, "same.npz", "other.npz", "--max-steps", 5, "--json")
    assert code == 3
    assert [one["unlike"] for one in json.loads(out)] == [False, True]


@pytest.mark.usefixtures("graphs")
def test_run_warns(adar, bundle_folder: Path) -> None:
    quiet = adar("run", "same.npz", "--bundle", bundle_folder, "--max-steps", 5)
    assert "unlike" not in quiet[1]
    code, out, _ = adar("run", "other.npz", "--bundle", bundle_folder, "--max-steps", 5)
    assert code == 0
    assert "warning: the graph is unlike the training data" in " ".join(out.split())
    code, out, _ = adar("run", "other.npz", "--bundle", bundle_folder, "--max-steps", 5, "--json")
    assert json.loads(out)["drift"]["score"] > 0.25


@pytest.mark.usefixtures("graphs")
def test_a_bundle_without_statistics(adar, bundle_folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(bundle_folder, tmp_path / "old")
    edit(old, lambda fields: fields.pop("statistics"))
    code, _, err = adar("drift", "old", "same.npz")
    assert code == 2
    assert "export the run with this version" in err
