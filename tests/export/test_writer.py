from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adar_export import Check, Trial, export_bundle
from adar_export.validate import STEPS
from adar_runtime.bundle import read_manifest
from adar_runtime.errors import ExportError, UsageError
from adar_train import load_run


def test_a_bundle_holds_what_its_manifest_says(bundle_folder: Path) -> None:
    assert {path.name for path in bundle_folder.iterdir()} == {
        "manifest.json",
        "encoder.onnx",
        "cell.onnx",
        "head.onnx",
    }
    manifest = read_manifest(bundle_folder)
    assert (manifest.opset, manifest.targets, manifest.features) == (17, 2, 10)
    assert manifest.class_names == ("safe", "mine")
    assert manifest.training["metric"] == "roc_auc"
    assert set(manifest.versions) == {"adar-deploy", "python", "torch", "onnx", "onnxruntime"}
    assert len(manifest.parity["checks"]) == 4 * len(STEPS)


def test_every_comparison_is_told(described_run: Path, tmp_path: Path) -> None:
    told: list[Check | Trial] = []
    export_bundle(load_run(described_run), tmp_path / "bundle", 18, on_progress=told.append)
    checks = [one for one in told if isinstance(one, Check)]
    assert [check.steps for check in checks] == [*STEPS] * 4
    assert all(check.relative < 1e-5 and check.predictions == 0 for check in checks)
    assert {trial.solver for trial in told[len(checks) :]} == {"euler", "ab2", "adaptive"}


def test_a_disagreement_leaves_no_bundle(
    described_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is changed after its graphs were made, so that they really differ."""
    run = load_run(described_run)
    from adar_export import writer

    def build_then_change(model, *rest):
        graphs = original(model, *rest)
        with torch.no_grad():
            model.cell.message.linear.weight.add_(0.5)
        return graphs

    original = writer.build_graphs
    monkeypatch.setattr(writer, "build_graphs", build_then_change)
    with pytest.raises(ExportError, match="disagree") as error:
        export_bundle(run, tmp_path / "bundle")
    assert str(error.value).count(" after ") >= 4  # all that differ are listed, not only the first
    assert list(tmp_path.iterdir()) == []


def test_an_old_bundle_is_replaced_whole(described_run: Path, tmp_path: Path) -> None:
    run, out = load_run(described_run), tmp_path / "bundle"
    export_bundle(run, out)
    (out / "leftover").write_text("")
    assert export_bundle(run, out, opset=19).opset == read_manifest(out).opset == 19
    assert not (out / "leftover").exists()
    with pytest.raises(UsageError):
        export_bundle(run, out, opset=3)
    assert read_manifest(out).opset == 19


def test_two_exports_of_one_run_are_the_same_bytes(described_run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_bundle(load_run(described_run), tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_a_model_that_blows_up_is_not_exported(described_run: Path, tmp_path: Path) -> None:
    run = load_run(described_run)
    with torch.no_grad():
        run.model.cell.velocity.out.weight.fill_(float("inf"))
    with pytest.raises(Exception, match="no longer finite"):
        export_bundle(replace(run), tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []
