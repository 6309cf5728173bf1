"""`--allow-unknown-model` of run and evaluate."""

import json
from pathlib import Path

import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.backends.isolated.backend import IsolatedBackend
from tests.bundles import change_model


def renamed_output(model) -> None:
    """The same numbers by one more operator."""
    last = next(node for node in model.graph.node if node.output[0] == "alignment")
    last.output[0] = "real_alignment"
    model.graph.node.add(op_type="Identity", input=["real_alignment"], output=["alignment"])


@pytest.fixture
def unknown(bundle_folder: Path, tmp_path: Path) -> Path:
    return change_model(bundle_folder, tmp_path / "unknown", "cell", renamed_output)


@pytest.mark.skipif(IsolatedBackend.problem() is not None, reason="no limits on this platform")
def test_an_unknown_model_runs_only_on_request(
    adar, unknown: Path, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "g.npz", board)
    run = ("run", tmp_path / "g.npz", "--max-steps", 3, "--json", "--bundle")
    evaluate = ("evaluate", unknown, tmp_path / "g.npz", "--budgets", "3", "--json")
    for command in ((*run, unknown), evaluate):
        code, out, err = adar(*command)
        assert (code, out) == (2, "")
        assert len(err.strip().splitlines()) == 1
        assert "--allow-unknown-model" in err
        code, out, _ = adar(*command, "--allow-unknown-model")
        assert code == 0
        assert json.loads(out)
    expected, found = (
        json.loads(adar(*run, one, "--allow-unknown-model")[1]) for one in (bundle_folder, unknown)
    )
    assert found["alignment"] == expected["alignment"]


@pytest.mark.skipif(IsolatedBackend.problem() is not None, reason="no limits on this platform")
def test_a_settings_file_that_the_user_names_can_allow_it(
    adar, unknown: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "g.npz", board)
    (tmp_path / "settings.toml").write_text("allow-unknown-model = true\n[run]\nmax-steps = 3\n")
    for command in (("run", "g.npz", "--bundle", unknown), ("evaluate", unknown, "g.npz", "--budgets", "3")):
        code, _, err = adar("--config", "settings.toml", *command)
        assert code == 0, err


def test_a_settings_file_in_the_working_folder_cannot_allow_it(
    adar, unknown: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "g.npz", board)
    (tmp_path / "adar.toml").write_text(
        "[run]\nallow_unknown_model = true\n[evaluate]\nallow_unknown_model = true\n"
    )
    for command in (("run", "g.npz", "--bundle", unknown), ("evaluate", unknown, "g.npz")):
        code, _, err = adar(*command)
        assert code == 2
        assert "allow_unknown_model decides which model is loaded" in err
