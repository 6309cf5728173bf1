"""Run folders with invalid files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adar_deploy.model_folders import ModelFolders
from adar_export import export_bundle
from adar_runtime import write_graph
from adar_runtime.errors import RunFolderError, UsageError
from adar_train import load_run
from adar_train.runs import check_free


def without(key: str):
    def change(config: dict) -> dict:
        return {name: value for name, value in config.items() if name != key}

    return change


CASES = [
    ("metrics.json", lambda _: [], "no JSON object"),
    ("config.json", lambda _: None, "no JSON object"),
    ("config.json", without("data"), "no 'data'"),
    ("config.json", without("kind"), "no 'kind'"),
    ("config.json", without("model"), "no 'model'"),
    ("config.json", without("training"), "no 'training'"),
    ("config.json", lambda c: c | {"kind": "x" * 10**4}, "unknown model"),
    ("config.json", lambda c: c | {"kind": []}, "cannot be read"),
    ("config.json", lambda c: c | {"model": []}, "cannot be read"),
    ("config.json", lambda c: c | {"model": c["model"] | {"hidden": "x"}}, "cannot be read"),
    ("config.json", lambda c: c | {"model": c["model"] | {"hidden": -1}}, "cannot be read"),
    ("config.json", lambda c: c | {"model": c["model"] | {"proxies": 0}}, "not a positive integer"),
    ("config.json", lambda c: c | {"model": c["model"] | {"dropout": float("nan")}}, "between 0 and 1"),
    ("config.json", lambda c: c | {"model": c["model"] | {"level": 3}}, "unknown level"),
    ("config.json", lambda c: c | {"model": c["model"] | {"alignment": "x"}}, "unknown alignment"),
    ("config.json", lambda c: c | {"graph_files": []}, "not a JSON object"),
    ("config.json", lambda c: c | {"format": 1, "model": {"isotropic": True}}, "train it again"),
]


@pytest.mark.parametrize(("file", "change", "message"), CASES)
def test_json_of_another_structure(run_folder: Path, tmp_path: Path, file: str, change, message: str) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / file).write_text(json.dumps(change(json.loads((run / file).read_text()))))
    with pytest.raises(RunFolderError) as error:
        load_run(run)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_bytes_and_folders_instead_of_json(run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / "metrics.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_run(run)
    (run / "metrics.json").unlink()
    (run / "metrics.json").mkdir()
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_run(run)
    with pytest.raises(RunFolderError, match="cannot be read"):
        load_run(tmp_path / ("r" * 300))


def test_deeply_nested_json(run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / "history.json").write_text("[" * 100_000)
    with pytest.raises(RunFolderError, match=r"history\.json"):
        ModelFolders(run, None).read("history.json")


def test_the_graph_of_another_run(run_folder: Path, tmp_path: Path) -> None:
    """Its class names became those of the bundle, without a word."""
    shutil.copytree(run_folder, tmp_path / "run")
    graph = load_run(tmp_path / "run").graph()
    names = [f"other {number}" for number in range(graph.targets)]
    write_graph(tmp_path / "run" / "graph.pt", replace(graph, class_names=names))
    with pytest.raises(RunFolderError, match="changed after training"):
        export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", steps=[1])
    assert not (tmp_path / "bundle").exists()


def test_a_folder_with_the_configuration_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    """Models of Hugging Face have a config.json and a model.safetensors, too."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UsageError, match=r"no config\.json of adar-deploy"):
        check_free(tmp_path, overwrite=True)
