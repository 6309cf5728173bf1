"""The name `pretrained` on the command line, and `run` without a bundle."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import write_graph
from tests.in_context_graphs import block_graph


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_graph(tmp_path / "graph.npz", block_graph())
    return "graph.npz"


def test_run_without_a_bundle_uses_the_pretrained_model(adar, graph: str) -> None:
    code, out, err = adar("run", graph, "--json", "--threads", "1", "-o", "predictions.csv")
    assert code == 0, err
    assert "using the pretrained model" in err
    assert json.loads(out)["classes"] == 3
    assert len(Path("predictions.csv").read_text().splitlines()) == 241


def test_run_names_the_pretrained_model(adar, graph: str) -> None:
    for words in (("run", graph, "--bundle", "pretrained"), ("run", "pretrained", graph)):
        code, out, err = adar(*words, "--json", "--threads", "1")
        assert (code, err) == (0, "")
        assert json.loads(out)["nodes"] == 240


@pytest.mark.usefixtures("graph")
def test_run_says_what_the_pretrained_model_needs(adar) -> None:
    write_graph(Path("bare.npz"), replace(block_graph(), target_features=None, train_mask=None))
    code, _, err = adar("run", "bare.npz")
    assert code == 2
    assert "target_x" in err
    assert "train_mask" in err


@pytest.mark.usefixtures("graph")
def test_evaluate_uses_the_labels_of_the_chosen_split_only(adar) -> None:
    first = block_graph().train_mask
    assert first is not None
    masks = np.stack([first[0], np.roll(first[0], 50)])
    write_graph(Path("splits.npz"), replace(block_graph(), train_mask=masks))
    code, out, err = adar("evaluate", "pretrained", "splits.npz", "--split", "1", "--budgets", "4", "--json")
    assert code == 0, err
    assert json.loads(out)["part"] == "test"
    assert "228" in json.loads(out)["counted"]


@pytest.mark.usefixtures("graph")
def test_inspect_shows_the_pretrained_model(adar) -> None:
    code, out, _ = adar("inspect", "pretrained", "--json")
    assert code == 0
    assert json.loads(out)["manifest"]["in_context"] is True


@pytest.mark.usefixtures("graph")
def test_a_bundle_in_a_folder_of_this_name_is_preferred() -> None:
    assert named_bundle(PRETRAINED).is_absolute()
    Path("pretrained").mkdir()
    (Path("pretrained") / "manifest.json").write_text("{}")
    assert named_bundle(PRETRAINED) == PRETRAINED
