"""The bundle comes first and graphs follow, in every command; the other order is understood too."""

import json
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph

QUICK = {
    "run": ["--max-steps", 3, "--json"],
    "evaluate": ["--budgets", 3, "--json"],
    "report": ["--budgets", 3, "--json"],
    "drift": ["--max-steps", 3, "--json"],
    "validate": ["--steps", 1, "--json"],
}


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.parametrize("turned", [False, True])
def test_both_orders(
    command: str, turned: bool, adar, bundle_folder: Path, run_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    words = [bundle_folder, "board.npz"]
    run = ["--run", run_folder] if command == "validate" else []
    code, out, err = adar(command, *(reversed(words) if turned else words), *QUICK[command], *run)
    assert (code, err) == (0, "")
    shown = json.loads(out)
    if command == "report":
        assert (shown["bundle"], shown["graph"]["file"]) == (str(bundle_folder), "board.npz")
    elif command != "validate":
        assert shown["graph"] == "board.npz"


def test_what_is_not_certain_is_an_error(
    adar, bundle_folder: Path, run_folder: Path, board: Graph, tmp_path: Path
):
    write_graph(tmp_path / "board.npz", board)
    code, _, err = adar("run", bundle_folder, run_folder, "board.npz")
    assert (code, "is a model, not a graph" in err) == (2, True)
    code, _, err = adar("run", bundle_folder, "board.npz", "--bundle", bundle_folder)
    assert (code, "is a model, not a graph" in err) == (2, True)
    code, _, err = adar("run", bundle_folder)
    assert (code, "name a graph to run it on" in err) == (2, True)
    code, _, err = adar("evaluate", "board.npz", "board.npz")
    assert (code, "not a packed bundle" in err) == (2, True)
