"""adar-deploy run for people: several graphs, pictures, a line that moves, and nothing lost."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from adar_deploy import console, live_status
from adar_deploy.console import sparkline
from adar_deploy.options import Backend, ExitRule, SolverName
from adar_runtime import Graph, write_graph
from adar_runtime.backends import AUTO, BACKENDS
from adar_runtime.bundle import small_graphs
from adar_runtime.loop.solvers import DEFAULT_SOLVER, SOLVERS
from adar_runtime.loop.stopping import RULES
from adar_runtime.prediction_files import OUTPUT_FORMATS
from tests.bundles import edit
from tests.helpers import random_graph


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three graphs and something else."""
    path = tmp_path / "graphs"
    path.mkdir()
    for name, nodes in (("a", 10), ("b", 20), ("c", 30)):
        write_graph(path / f"{name}.npz", random_graph(nodes, 40))
    (path / "notes.txt").write_text("not a graph")
    return path


def test_a_folder_is_answered_as_a_table(adar, described_bundle: Path, folder: Path) -> None:
    code, out, err = adar("run", folder, "--bundle", described_bundle, "--max-steps", 5)
    assert (code, err) == (0, "")
    assert [name for name in ("a.npz", "b.npz", "c.npz", "notes.txt") if name in out] == [
        "a.npz",
        "b.npz",
        "c.npz",
    ]
    assert "3 of 3 graphs" in out


def test_several_graphs_are_a_list_in_json(adar, described_bundle: Path, folder: Path) -> None:
    options = ["--bundle", described_bundle, "--max-steps", 5, "--exit", "final", "--json"]
    code, out, err = adar("run", folder / "b.npz", folder / "a.npz", *options)
    assert (code, err) == (0, "")
    assert [(Path(one["graph"]).name, one["nodes"]) for one in json.loads(out)] == [
        ("b.npz", 20),
        ("a.npz", 10),
    ]
    single = json.loads(adar("run", folder / "a.npz", *options)[1])
    assert single["alignment"] == pytest.approx(json.loads(out)[1]["alignment"], rel=1e-5)  # in a batch
    assert single["times"] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert set(single["timings"]) == {"prepare", "loop", "head"}


def test_one_bad_graph_does_not_cost_the_others_their_answers(
    adar, described_bundle: Path, folder: Path, tmp_path: Path
) -> None:
    (folder / "ab.npz").write_text("no graph")
    write_graph(folder / "bb.npz", random_graph(5, 5, features=9))
    options = ["--bundle", described_bundle, "--max-steps", 3, "--output", "out/{name}.csv"]
    code, out, err = adar("run", folder, *options)
    assert code == 2
    lines = err.strip().splitlines()
    assert len(lines) == 2
    assert all(line.count(str(folder)) == 1 for line in lines)
    assert "9 features" in lines[1]
    assert "3 of 5 graphs" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.csv", "b.csv", "c.csv"]
    code, out, _ = adar("run", folder, *options, "--json")
    assert code == 2
    assert [sorted(one)[:2] for one in json.loads(out) if "error" in one] == [["error", "graph"]] * 2


def test_predictions_and_pictures_of_several_graphs(
    adar, described_bundle: Path, folder: Path, tmp_path: Path
) -> None:
    code, out, _ = adar(
        "run", folder, "--bundle", described_bundle, "--max-steps", 4,
        "--output", "out/{name}.npz", "--plot", "out/{name}.svg",
    )  # fmt: skip
    assert code == 0
    assert "6 files, the first out/a.npz" in out
    with np.load(tmp_path / "out" / "b.npz") as written:
        assert written["prediction"].shape == (20,)
    assert (tmp_path / "out" / "c.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    "solver",
    [["euler"], ["ab2", "--calls", 8], ["adaptive", "--tolerance", 0.01]],
    ids=lambda words: words[0],
)
def test_a_picture_of_a_run(adar, bundle_folder: Path, board: Graph, tmp_path: Path, solver: list) -> None:
    write_graph(tmp_path / "board.npz", board)
    code, out, err = adar(
        "run",
        "board.npz",
        "--bundle",
        bundle_folder,
        "--solver",
        *solver,
        "--plot",
        "curve.png",
        "--threads",
        1,
    )
    assert (code, err) == (0, "")
    assert "curve.png" in out
    with Image.open(tmp_path / "curve.png") as picture:
        assert picture.size[0] > 500


def test_solvers_are_heard(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["run", "board.npz", "--bundle", bundle_folder, "--exit", "final", "--max-steps", 100, "--json"]
    euler, ab2 = (json.loads(adar(*options, *more)[1]) for more in ([], ["--solver", "ab2", "--calls", 10]))
    assert (euler["cell_calls"], ab2["cell_calls"]) == (100, 10)
    assert ab2["metrics"]["test"] == pytest.approx(euler["metrics"]["test"], abs=0.02)
    calls = [
        json.loads(adar(*options, "--solver", "adaptive", "--tolerance", tolerance)[1])["cell_calls"]
        for tolerance in (0.1, 1e-6)
    ]
    assert calls[0] <= calls[1] <= 100


def test_more_calls_than_the_budget_has_are_noted(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["run", "board.npz", "--bundle", bundle_folder, "--exit", "final", "--max-steps", 5]
    options += ["--json", "--solver", "ab2", "--calls"]
    code, out, err = adar(*options, 1001)
    assert (code, json.loads(out)["cell_calls"]) == (0, 5)
    assert err == "note: --calls 1,001 exceeds --max-steps: at most 5 calls are made\n"
    assert adar(*options, 1001, "--quiet")[2] == ""
    assert adar(*options, 5)[2] == ""


def test_an_exit_of_every_kind(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["run", "board.npz", "--bundle", bundle_folder, "--max-steps", 20, "--json"]
    reasons = {
        name: json.loads(adar(*options, "--exit", name)[1])["stop_reason"]
        for name in ("time", "peak", "converged", "final")
    }
    assert reasons["time"] == "time"
    assert reasons["final"] == "budget"
    assert reasons["converged"] in ("converged", "not_converged")
    assert reasons["peak"] in ("peak", "rising", "no_peak", "no_peak_by_time")


def test_how_near_to_rest_the_nodes_have_to_be(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["run", "board.npz", "--bundle", bundle_folder, "--max-steps", 20, "--json", "--exit"]
    near = json.loads(adar(*options, "converged", "--within", 0.5)[1])
    assert near["stop_reason"] == "converged"
    assert near["steps"] < json.loads(adar(*options, "converged", "--within", 1e-9)[1])["steps"] == 20
    for rule in ("peak", "final"):
        code, _, err = adar(*options, rule, "--within", 0.5)
        assert code == 2
        assert "add --exit converged" in err


def test_a_setting_of_the_rule_of_the_bundle_needs_no_exit(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    own = shutil.copytree(bundle_folder, tmp_path / "own")
    edit(own, lambda m: m.update(exit={"rule": "converged", "tolerance": 1e-9}))
    options = ["run", "board.npz", "--bundle", own, "--max-steps", 20, "--json"]
    assert json.loads(adar(*options)[1])["stop_reason"] == "not_converged"
    assert json.loads(adar(*options, "--within", 0.5)[1])["stop_reason"] == "converged"
    code, _, err = adar(*options, "--patience", 3)
    assert (code, err) == (2, "error: --patience is a setting of the stop rule peak: add --exit peak\n")


def test_answers_have_the_names_of_their_classes(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["--bundle", bundle_folder, "--max-steps", 2, "--output", "p.csv", "--json"]
    assert json.loads(adar("run", "board.npz", *options)[1])["class_names"] == ["safe", "mine"]
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["prediction"], row["class"]) for row in rows} <= {("0", "safe"), ("1", "mine")}


def test_quiet_is_quiet(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    options = ["--bundle", bundle_folder, "--max-steps", 2, "--quiet"]
    assert adar("run", "board.npz", *options, "--output", "p.csv") == (0, "", "")
    assert (tmp_path / "p.csv").exists()
    code, out, err = adar("run", "missing.npz", *options)
    assert (code, out) == (2, "")
    assert "no such file" in err


def test_a_run_without_an_output_says_how_to_write_one(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    words = ("run", "board.npz", "--bundle", bundle_folder, "--max-steps", 2)
    assert "nothing: add --output predictions.csv" in adar(*words)[1]
    assert "nothing" not in adar(*words, "--output", "p.csv")[1]


@pytest.mark.parametrize("width", [60, 120])
def test_the_line_of_a_run_fits_the_window(
    adar, bundle_folder, board, tmp_path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    screen = Console(file=io.StringIO(), width=width, force_terminal=True)
    monkeypatch.setattr(console, "err", screen)
    monkeypatch.setattr(live_status, "err", screen)
    monkeypatch.setattr(live_status, "REFRESH", 0.0)
    monkeypatch.setattr(small_graphs, "LARGEST", 0)  # as if the graphs were too large for a batch
    write_graph(tmp_path / "board-with-a-rather-long-name.npz", board)
    write_graph(tmp_path / "b.npz", board)
    graphs = ["board-with-a-rather-long-name.npz", "b.npz"]
    code, *_ = adar("run", *graphs, "--bundle", bundle_folder, "--max-steps", 60, "--exit", "final")
    assert code == 0
    drawn = screen.file.getvalue()
    assert "▁" in drawn
    assert "t 1.00" in drawn
    assert ("alignment" in drawn) == (width == 120)
    assert "/s" in drawn


def test_exit_codes_are_in_the_help(adar) -> None:
    out = " ".join(adar("run", "--help")[1].split())
    for code in ("0 success", "2 an error", "130 Ctrl-C", "143 SIGTERM"):
        assert code in out


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([3.0], "▁"),
        ([1.0, 1.0, 1.0], "▁▁▁"),
        ([0.0, 1.0, 2.0, 3.0], "▁▃▆█"),
        ([float(i) for i in range(1000)], "▁▂▄▅▇█"),
        ([0.0, -1.0], "█▁"),
    ],
)
def test_sparklines(values: list[float], drawn: str) -> None:
    assert sparkline(values, 6) == drawn


def test_the_command_offers_the_registries_of_the_runtime() -> None:
    assert [name.value for name in ExitRule] == list(RULES)
    assert [name.value for name in SolverName] == [DEFAULT_SOLVER, *SOLVERS]
    assert [name.value for name in Backend] == [AUTO, *BACKENDS]


def test_the_help_names_every_format_of_predictions(adar) -> None:
    out = " ".join(adar("run", "--help")[1].split())
    assert all(suffix in out for suffix in OUTPUT_FORMATS)
