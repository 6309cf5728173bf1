"""Export writes a complete, compared and reproducible bundle, or nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adar_export import Check, Trial, export_bundle, writer
from adar_export.validate import STEPS
from adar_runtime import Graph
from adar_runtime.bundle.bundle import load
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import BundleError, ExportError, UsageError
from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
from tests.bundles import edit, forget_proof
from tests.helpers import awake, random_graph

FEW = (1, 10)  # steps, for tests of other things than the comparison


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_bundle_has_its_files_and_manifest(bundle_folder: Path) -> None:
    models = {"encoder.onnx", "cell.onnx", "head.onnx", "batched_cell.onnx"}
    models |= {f"phase_{name}.onnx" for name in ("absorb", "small", "message", "receive", "update")}
    assert {*contents(bundle_folder)} == {"manifest.json", "README.md", *models}
    manifest = read_manifest(bundle_folder)
    assert (manifest.opset, manifest.targets, manifest.features) == (17, 2, 10)
    assert manifest.class_names == ("safe", "mine")
    assert manifest.training["metric"] == "roc_auc"
    assert set(manifest.versions) == {"adar-deploy", "python", "torch", "onnx", "onnxruntime"}
    assert len(manifest.parity["checks"]) == 4 * len(STEPS)


def test_every_comparison_is_reported(described_run: Path, tmp_path: Path) -> None:
    reported: list[Check | Trial] = []
    run = load_run(described_run)
    export_bundle(run, tmp_path / "bundle", 18, steps=FEW, on_progress=reported.append)
    checks = [one for one in reported if isinstance(one, Check)]
    assert [check.steps for check in checks] == [*FEW] * 4
    assert all(check.relative < 1e-5 and check.predictions == 0 for check in checks)
    assert {trial.solver for trial in reported[len(checks) :]} == {"euler", "ab2", "adaptive"}


def test_a_disagreement_leaves_no_bundle(
    described_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is changed after its ONNX models were built, so that they really differ."""

    def build_then_change(model, *rest):
        onnx_models = original(model, *rest)
        with torch.no_grad():
            model.cell.message.linear.weight.add_(0.5)
        return onnx_models

    original = writer.build_onnx_models
    monkeypatch.setattr(writer, "build_onnx_models", build_then_change)
    with pytest.raises(ExportError, match="disagree") as error:
        export_bundle(load_run(described_run), tmp_path / "bundle", steps=(1, 2, 5, 10))
    assert str(error.value).count(" after ") >= 4  # all that differ are listed, not only the first
    assert list(tmp_path.iterdir()) == []


def test_an_old_bundle_is_replaced_completely(described_run: Path, tmp_path: Path) -> None:
    run, out = load_run(described_run), tmp_path / "bundle"
    export_bundle(run, out, steps=FEW)
    (out / "engines").mkdir()
    (out / "engines/cell-rtx.engine").write_text("")
    assert export_bundle(run, out, opset=19, steps=FEW).opset == read_manifest(out).opset == 19
    assert not (out / "engines").exists()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"also contains notes\.txt"):
        export_bundle(run, out, steps=FEW)
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").unlink()
    with pytest.raises(UsageError):
        export_bundle(run, out, opset=3)
    assert read_manifest(out).opset == 19


@pytest.mark.parametrize("stage", ["build_onnx_models", "part_of", "convergence.measure", "the last write"])
def test_a_failed_export_keeps_the_old_bundle(
    stage: str, described_run: Path, described_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    out = shutil.copytree(described_bundle, tmp_path / "bundle")
    before = contents(out)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if stage == "the last write":
        monkeypatch.setattr("adar_runtime.files._swap", fail)
    else:
        monkeypatch.setattr(f"adar_export.writer.{stage}", fail)
    with pytest.raises(Exception, match="No space left"):
        export_bundle(load_run(described_run), out, opset=18, steps=(1,))
    assert contents(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_two_exports_of_one_run_have_equal_bytes(
    described_run: Path, described_bundle: Path, tmp_path: Path
) -> None:
    export_bundle(load_run(described_run), tmp_path / "again")
    forget_proof(tmp_path / "again")  # as in the fixture
    assert contents(tmp_path / "again") == contents(described_bundle)


def test_a_model_that_diverges_is_not_exported(described_run: Path, tmp_path: Path) -> None:
    run = load_run(described_run)
    with torch.no_grad():
        run.model.cell.velocity.out.weight.fill_(float("inf"))
    with pytest.raises(Exception, match="no longer finite"):
        export_bundle(replace(run), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_the_error_for_an_old_bundle_names_the_version_that_reads_it(
    described_bundle: Path, tmp_path: Path
) -> None:
    import shutil

    old = shutil.copytree(described_bundle, tmp_path / "old")
    edit(old, lambda m: m.update(schema=1))
    with pytest.raises(BundleError, match=r"schema 1, this version reads 2.*or use adar-deploy 0\.1\.0"):
        load(old)
    edit(old, lambda m: m.update(schema=99))
    with pytest.raises(BundleError, match="schema 99, this version reads 2, 3, 4: export the run again"):
        load(old)


@pytest.mark.parametrize("level", ["edge", "graph"])
def test_large_graphs_of_every_level_are_exported(level: str, tmp_path: Path) -> None:
    """A part of the graph is compared; it must contain some of the pairs."""
    graph = random_graph(1_200, 2_000, level=level)
    model = awake(ModelConfig(graph.width, 3, 8, 2, level=level))
    manifest = _export(model, graph, tmp_path)
    assert manifest.parity["checks"][0]["graph"] == "1,000 nodes of the run's graph"


def test_numbers_are_the_same_within_one_percent_of_their_spread(tmp_path: Path) -> None:
    graph = random_graph(30, 60)
    numbers = Graph(graph.features, graph.edge_index, labels=torch.randn(30, 2).numpy())
    manifest = _export(awake(ModelConfig(graph.width, 2, 8, 2, regression=True)), numbers, tmp_path)
    assert all(check["predictions"] == 0 for check in manifest.parity["checks"])
    trials = manifest.convergence["trials"]
    assert all(trial["same"] >= 0.999 for trial in trials if trial["change"] < 1e-5)
    assert min(trial["same"] for trial in trials) < 1  # a trial with too few calls gives other numbers


def test_folders_of_the_data_are_not_recorded(described_run: Path, tmp_path: Path) -> None:
    run = load_run(described_run)
    run.config["data"] = ["/home/me/secret/graph.npz", "pyg:Planetoid/Cora"]
    export_bundle(run, tmp_path / "bundle", steps=(1,))
    assert read_manifest(tmp_path / "bundle").training["data"] == ["graph.npz", "pyg:Planetoid/Cora"]


def _export(model, graph: Graph, folder: Path):
    save_run(folder / "run", Fitted(model, {"metric": "accuracy"}, []), graph, ["random"], TrainConfig())
    return export_bundle(load_run(folder / "run"), folder / "bundle", steps=FEW)
