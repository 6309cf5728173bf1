"""`adar-deploy validate` as a user types it."""

import hashlib
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from adar_export import export_bundle
from adar_export.validate import compare
from adar_runtime import write_graph
from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
from tests.bundles import change_model, change_weight, edit
from tests.helpers import awake, random_graph


@pytest.fixture
def runs(described_run: Path, tmp_path: Path) -> None:
    """The run where the command looks for it."""
    shutil.copytree(described_run, tmp_path / "runs" / "mine")


@pytest.mark.usefixtures("runs")
def test_a_bundle_finds_its_run_and_agrees(adar, described_bundle: Path) -> None:
    code, out, _ = adar("validate", described_bundle, "--steps", "1,5")
    assert code == 0
    assert "agrees with PyTorch" in out
    for graph in ("a random graph", "a star", "one node"):
        assert graph in out
    assert re.search(r"backend +onnxruntime-cpu", out)


@pytest.mark.usefixtures("runs")
def test_a_bundle_that_is_replaced_meanwhile_is_refused(
    adar, described_bundle: Path, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(described_bundle, tmp_path / "bundle")

    def replacing(*given: Any) -> Any:
        shutil.rmtree(tmp_path / "bundle")
        shutil.copytree(bundle_folder, tmp_path / "bundle")
        return compare(*given)

    monkeypatch.setattr("adar_runtime.backends.available", lambda: ["onnxruntime-cpu"])
    monkeypatch.setattr("adar_export.validate.compare", replacing)
    code, _, err = adar("validate", "bundle", "--steps", 1)
    assert (code, err) == (2, "error: bundle was replaced while it was measured: run the command again\n")


@pytest.mark.usefixtures("runs")
def test_graphs_of_ones_own_are_compared_on(adar, described_bundle: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", random_graph(20, 50, classes=7))
    code, out, _ = adar("validate", described_bundle, "g.npz", "--steps", "1,5", "--json")
    assert code == 0
    *_, report = json.loads(out)  # of the CPU, the last backend
    assert [(check["graph"], check["steps"]) for check in report["checks"]] == [("g.npz", 1), ("g.npz", 5)]
    assert report["needed"] <= report["tolerance"]


@pytest.mark.usefixtures("runs")
def test_a_folder_of_graphs_is_compared_on(adar, described_bundle: Path, tmp_path: Path) -> None:
    for name in "ab":
        write_graph(tmp_path / "graphs" / f"{name}.npz", random_graph(20, 50))
    code, out, _ = adar("validate", described_bundle, "graphs", "--steps", "1", "--json")
    assert code == 0
    assert [check["graph"] for check in json.loads(out)[-1]["checks"]] == ["graphs/a.npz", "graphs/b.npz"]


@pytest.mark.usefixtures("runs")
def test_one_weight_changed_is_found(adar, described_bundle: Path, tmp_path: Path) -> None:
    bundle = change_model(described_bundle, tmp_path / "bundle", "cell", change_weight)
    code, _, err = adar("validate", bundle, "--steps", "1,5")
    assert code == 3
    assert "disagree (allowed difference 1e-03, largest difference " in err
    assert err.count(" after 1 steps") >= 2  # every graph that shows it
    assert len(err.strip().splitlines()) == 1


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("batched_cell", "the batched cell and the cell"),
        ("phase_update", "the phases of a step and the cell"),
    ],
)
def test_one_weight_of_the_batched_cell_or_of_a_phase_changed_is_found(
    adar, described_bundle: Path, tmp_path: Path, file: str, said: str
) -> None:
    bundle = shutil.copytree(described_bundle, tmp_path / "bundle")
    model = onnx.load(bundle / f"{file}.onnx")
    change_weight(model, by=100.0)
    content = model.SerializeToString()
    (bundle / f"{file}.onnx").write_bytes(content)
    manifest = json.loads((bundle / "manifest.json").read_text())
    parts = [manifest["batched_cell"], *manifest["phases"].values()]
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    next(part for part in parts if part["file"] == f"{file}.onnx").update(facts)
    edit(bundle, lambda m: m.update(manifest))
    code, _, err = adar("validate", bundle, "--steps", "1")
    assert code == 3
    assert f"{said} disagree (allowed difference 1e-03, largest difference " in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.usefixtures("runs")
def test_a_bf16_bundle_is_compared_by_its_emulation(adar, tmp_path: Path) -> None:
    run = load_run(tmp_path / "runs" / "mine")
    manifest = export_bundle(run, tmp_path / "b", precision="bf16", steps=(1, 5))
    code, out, err = adar("validate", "b", "--steps", "1,5", "--json")
    assert code == 0
    *_, report = json.loads(out)  # of the CPU, the last backend
    exported = {(c["graph"], c["steps"]): c["relative"] for c in manifest.parity["checks"]}
    assert report["checks"]
    for check in report["checks"]:
        assert check["relative"] == exported[check["graph"], check["steps"]]
    assert "the bf16 emulation was compared" in err
    bundle = change_model(tmp_path / "b", tmp_path / "changed", "cell", partial(change_weight, by=100.0))
    code, _, err = adar("validate", bundle, "--steps", "1,5")
    assert code == 3
    assert "disagree (allowed difference 1e-01, largest difference " in err
    bundle = change_model(tmp_path / "b", tmp_path / "mixed", "cell", mix_types)
    code, _, err = adar("validate", bundle, "--steps", "1")
    assert code == 2
    assert "cell.onnx is not a model that this version of adar-deploy exports" in err
    assert len(err.strip().splitlines()) == 1


def mix_types(model: onnx.ModelProto) -> None:
    """A product of two types, which ONNX has none of."""
    weight = next(w for w in model.graph.initializer if w.data_type == onnx.TensorProto.BFLOAT16)
    array = onnx.numpy_helper.to_array(weight).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))


def other_run(folder: Path) -> Path:
    graph = random_graph(10, 20)
    fitted = Fitted(awake(ModelConfig(graph.width, None, 8, 2), seed=5), {"metric": "accuracy"}, [])
    save_run(folder, fitted, graph, ["random"], TrainConfig())
    return folder


def test_another_run_is_refused(adar, described_bundle: Path, tmp_path: Path) -> None:
    code, _, err = adar("validate", described_bundle, "--run", other_run(tmp_path / "other"))
    assert code == 2
    assert "the bundle was not exported from" in err


def test_no_run_at_all_says_how_to_name_one(adar, described_bundle: Path, tmp_path: Path) -> None:
    other_run(tmp_path / "runs" / "other")
    code, _, err = adar("validate", described_bundle)
    assert code == 2
    assert "give its folder with --run" in err


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["training"].pop("weights"), "does not record which weights"),
        (lambda m: m["training"].update(weights=["x"]), "does not record which weights"),
        (lambda m: m["graphs"]["cell"]["inputs"][0].update(shape=[1]), "cell.onnx"),
    ],
)
def test_a_manifest_that_lies_is_one_line(
    adar, described_bundle: Path, tmp_path: Path, change, message: str
) -> None:
    bundle = shutil.copytree(described_bundle, tmp_path / "bundle")
    edit(bundle, change)
    code, _, err = adar("validate", bundle, "--steps", "1")
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.usefixtures("runs")
def test_a_graph_that_does_not_fit_is_one_line(adar, described_bundle: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "wide.npz", random_graph(20, 50, features=9))
    code, _, err = adar("validate", described_bundle, "wide.npz", "--steps", "1")
    assert code == 2
    assert "9 features and the bundle takes 6" in err
