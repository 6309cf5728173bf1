"""Run folders with invalid files."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adar_deploy.model_folders import ModelFolders, find_folders
from adar_deploy.report.facts import collect
from adar_export import export_bundle
from adar_runtime import write_graph
from adar_runtime.bundle import run_files
from adar_runtime.bundle.run_files import has_weights
from adar_runtime.errors import GraphError, RunFolderError, UsageError
from adar_runtime.graph.synthetic import minesweeper
from adar_train import load_run
from adar_train.run_folders import check_free
from adar_train.runs import finished_metrics


def without(key: str):
    def change(config: dict) -> dict:
        return {name: value for name, value in config.items() if name != key}

    return change


def forget_hashes(run: Path) -> None:
    """Remove the hashes, as older runs have none: the checks after them are reached."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(without("files")(config)))


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
    ("config.json", lambda c: c | {"files": []}, "not a JSON object"),
    ("config.json", lambda c: c | {"format": 3}, "newer version"),
    ("config.json", lambda c: c | {"format": "x"}, "newer version"),
    ("config.json", lambda c: c | {"format": 1, "model": {"isotropic": True}}, "train it again"),
]


@pytest.mark.parametrize(("file", "change", "message"), CASES)
def test_json_of_another_structure(run_folder: Path, tmp_path: Path, file: str, change, message: str) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    if file != "config.json":
        forget_hashes(run)
    (run / file).write_text(json.dumps(change(json.loads((run / file).read_text()))))
    with pytest.raises(RunFolderError) as error:
        load_run(run)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_bytes_and_folders_instead_of_json(run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    forget_hashes(run)
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
    forget_hashes(run)
    (run / "history.json").write_text("[" * 100_000)
    with pytest.raises(RunFolderError, match=r"history\.json: it is nested"):
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


def test_the_metrics_of_another_run(run_folder: Path, tmp_path: Path) -> None:
    """Its scores became those of the bundle and of the report, without a word."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps(metrics | {"test": 0.99}))
    with pytest.raises(RunFolderError, match=r"metrics\.json was changed after training"):
        load_run(run)
    with pytest.raises(RunFolderError, match=r"metrics\.json was changed after training"):
        ModelFolders(run, None).read("metrics.json")
    assert finished_metrics(run_folder, data=["board"])["epochs"] == 3
    assert finished_metrics(run, data=["board"]) is None, "train --resume would report them"


@pytest.mark.parametrize("name", ["graph.pt", "history.json"])
def test_a_report_does_not_use_files_of_another_run(name: str, run_folder: Path, tmp_path: Path) -> None:
    """The report measured the graph of another run, and showed its training curve."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    if name == "graph.pt":
        write_graph(run / name, minesweeper(side=6))
    else:
        (run / name).write_text("[]")
    with pytest.raises(RunFolderError, match="was changed after training"):
        collect(ModelFolders(run, None), None, [3])


def test_a_report_does_not_mix_a_run_with_the_weights_of_another(
    run_folder: Path, bundle_folder: Path, tmp_path: Path
) -> None:
    """The page had the metrics of one run, and the measurements of the bundle of the other one."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"weights": "0" * 64}))
    with pytest.raises(RunFolderError, match=r"model\.safetensors was changed after training"):
        find_folders(run, None, bundle_folder)
    assert finished_metrics(run, data=["board"]) is None, "train --resume would call it finished"


@pytest.mark.parametrize("name", ["graph.pt", "history.json", "model.safetensors"])
def test_a_run_without_a_file_of_the_training_is_refused(
    name: str, run_folder: Path, bundle_folder: Path, tmp_path: Path
) -> None:
    """A bundle without class names, a page without a curve, and "nothing to resume" were the result."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    weights = load_run(run).fingerprint()
    (run / name).unlink()
    with pytest.raises(RunFolderError, match=f"{name}.*(is missing|not found)"):
        load_run(run)
    for named in ((run, None, bundle_folder), (bundle_folder, run)):
        with pytest.raises(RunFolderError, match=f"{name} is missing"):
            find_folders(*named)
    assert finished_metrics(run, data=["board"]) is None
    assert not has_weights(run, weights)


def test_a_run_with_large_weights_is_finished(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a search for weights, 1 GiB, was that of every run: train --resume trained it again."""
    monkeypatch.setattr(run_files, "MAX_WEIGHTS_BYTES", 10)
    assert finished_metrics(run_folder, data=["board"]) is not None
    assert find_folders(run_folder, None).run == run_folder


def test_a_run_with_a_long_record_of_its_graphs_is_found(run_folder: Path, tmp_path: Path) -> None:
    """The splits of large graphs in config.json have up to 4 MiB, and a search read 1 MiB."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"fingerprint": "a" * 2**22}))
    assert has_weights(run, config["weights"])


def test_a_run_with_a_graph_of_another_is_not_finished(run_folder: Path, tmp_path: Path) -> None:
    """`train --resume` had nothing to do, and `export` then refused the run."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    write_graph(run / "graph.pt", minesweeper(side=6))
    assert finished_metrics(run, data=["board"]) is None
    os.truncate(run / "graph.pt", 2**30)
    assert finished_metrics(run, data=["board"]) is None


def test_a_run_without_its_configuration_is_replaced_only_on_request(
    run_folder: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    (run / "config.json").unlink()
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "adar-deploy").touch()
    for resume in (False, True):
        with pytest.raises(UsageError, match="replace it with --overwrite"):
            check_free(run, resume=resume)
    check_free(run, overwrite=True)


def test_a_bundle_names_the_weights_that_were_loaded(run_folder: Path, tmp_path: Path) -> None:
    """Another training with the same graph may replace the run after it was loaded."""
    run = load_run(shutil.copytree(run_folder, tmp_path / "run"))
    trained = json.loads((run_folder / "config.json").read_text())["weights"]
    (run.path / "model.safetensors").write_bytes(b"weights of the next training")
    assert run.fingerprint() == trained
    assert export_bundle(run, tmp_path / "bundle", steps=(1,)).training["weights"] == trained


@pytest.mark.parametrize("file", ["graph.pt", "model.safetensors"])
def test_a_file_with_a_hole_is_not_hashed(file: str, run_folder: Path, tmp_path: Path) -> None:
    """It takes no space on the disk, and its hash a second for each gigabyte."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    weights = load_run(run).fingerprint()
    os.truncate(run / file, 5 * 2**30)
    started = time.process_time()
    if file == "graph.pt":
        with pytest.raises(GraphError, match="the disk has only"):
            load_run(run).graph()
    else:
        assert not has_weights(run, weights)
    assert time.process_time() - started < 2


def test_a_folder_with_the_configuration_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    """Models of Hugging Face have a config.json and a model.safetensors, too."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UsageError, match=r"no config\.json of adar-deploy"):
        check_free(tmp_path, overwrite=True)


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.json", "history.json", "model.safetensors", "graph.pt", "learning.png"]
)
def test_a_link_in_a_run_is_not_followed(name: str, run_folder: Path, tmp_path: Path) -> None:
    """A stranger's run could name a graph of the user, and pages and bundles then had its content."""
    run = shutil.copytree(run_folder, tmp_path / "run")
    weights = load_run(run).fingerprint()
    forget_hashes(run)
    (run / name).rename(tmp_path / name)
    (run / name).symlink_to(tmp_path / name)
    for read in (load_run, lambda path: find_folders(path, None)):
        with pytest.raises(RunFolderError, match="is a link, not a regular file"):
            read(run)
    assert not has_weights(run, weights)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "tensorboard", "tensorboard/adar-deploy"])
def test_a_training_uses_no_link(name: str, tmp_path: Path) -> None:
    """Logs were written into the folder of a link, and an empty file where a link pointed to."""
    run = tmp_path / "run"
    if name != "tensorboard":
        (run / "tensorboard").mkdir(parents=True)
    run.mkdir(exist_ok=True)
    (tmp_path / "theirs").mkdir()
    (run / name).symlink_to(tmp_path / "theirs" / ("" if name == "tensorboard" else "new"))
    for options in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UsageError, match="is a link, and a training uses no links"):
            check_free(run, **options)


def test_a_record_of_training_graphs_of_another_type(run_folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"fingerprint": [[]]}))
    with pytest.raises(RunFolderError, match="'fingerprint' that is not a JSON object"):
        load_run(run)
