"""adar-deploy triton, and export --triton. tests/serve/test_triton_server.py starts the real server."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from adar_runtime import load
from adar_runtime.bundle.pack import encode, files_of
from adar_runtime.bundle.reading import pack_bundle, read_manifest
from adar_serve import triton_repository


def test_a_repository_has_versions_of_a_model(adar, bundle_folder: Path, tmp_path: Path) -> None:
    code, out, _ = adar("triton", bundle_folder, "--json")
    assert (code, json.loads(out)) == (0, {"model": "bundle", "version": "1", "folder": "models/bundle/1"})
    assert adar("pack", bundle_folder, "-o", "b.adar")[0] == 0
    assert adar("triton", "bundle:2=b.adar", "--out", "models")[0] == 0
    model = tmp_path / "models/bundle"
    assert {each.name for each in model.iterdir()} == {"1", "2", "config.pbtxt", "README.md"}
    assert (model / "1/bundle.adar").read_bytes() == (model / "2/bundle.adar").read_bytes()
    manifest = load(model / "2/bundle.adar", "onnxruntime-cpu", 1).manifest
    config = (model / "config.pbtxt").read_text()
    assert f'input {{ name: "x", data_type: TYPE_FP32, dims: [-1, {manifest.features}] }}' in config
    assert 'input { name: "nodes", data_type: TYPE_INT64, dims: [-1], optional: true }' in config
    assert 'output { name: "best_step", data_type: TYPE_INT64, dims: [1] }' in config
    assert "tritonserver --model-repository=models" in (model / "README.md").read_text()


def test_a_pack_with_other_models_is_refused(adar, bundle_folder: Path, tmp_path: Path) -> None:
    """It was read whole and copied: a model that the manifest does not name can be a hole of 4 GB."""
    files = files_of(bundle_folder, read_manifest(bundle_folder))
    (tmp_path / "b.adar").write_bytes(encode(files | {"extra.onnx": b""}))
    code, _, err = adar("triton", "b.adar", "--out", "models")
    assert (code, "extra.onnx, which its manifest does not name" in err) == (2, True)
    assert not (tmp_path / "models/b/1").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_a_bundle_that_is_replaced_meanwhile_is_refused(
    adar, bundle_folder: Path, described_bundle: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    """The version had the new bundle, and the configuration the ports of the old one."""
    bundle = Path("b.adar" if packed else "b")
    work = "files_of_pack" if packed else "pack_bundle"
    original = getattr(triton_repository, work)

    def replacing(*given: Any) -> Any:
        if packed:
            pack_bundle(described_bundle, bundle)
        else:
            shutil.rmtree(bundle)
            shutil.copytree(described_bundle, bundle)
        return original(*given)

    if packed:
        pack_bundle(bundle_folder, bundle)
    else:
        shutil.copytree(bundle_folder, bundle)
    monkeypatch.setattr(triton_repository, work, replacing)
    code, _, err = adar("triton", bundle, "--out", "models")
    assert (code, err) == (2, f"error: {bundle} was replaced while it was read: run the command again\n")
    assert not Path("models/b/1").exists()


def test_a_version_is_replaced_only_if_the_user_says_so(adar, bundle_folder: Path) -> None:
    assert adar("triton", bundle_folder)[0] == 0
    code, _, err = adar("triton", bundle_folder)
    assert (code, "models/bundle/1 exists" in err, err.count("\n")) == (2, True, 1)
    assert adar("triton", bundle_folder, "--overwrite")[0] == 0
    code, _, err = adar("triton", f"board:1.0={bundle_folder}")
    assert (code, "Triton's versions are whole numbers" in err) == (2, True)
    code, _, err = adar("triton", "nothing-here")
    assert (code, "not a bundle" in err) == (2, True)


def test_an_edited_configuration_is_replaced_only_if_the_user_says_so(adar, bundle_folder: Path) -> None:
    assert adar("triton", bundle_folder)[0] == 0
    config = Path("models/bundle/config.pbtxt")
    edited = config.read_text().replace('"300"', '"50"')
    config.write_text(edited)
    words = ("triton", f"bundle:2={bundle_folder}")
    code, _, err = adar(*words)
    assert (code, "config.pbtxt is of another model, or was edited" in err) == (2, True)
    assert (config.read_text(), Path("models/bundle/2").exists()) == (edited, False)
    assert adar(*words, "--overwrite")[0] == 0
    assert config.read_text() != edited


def test_instructions_of_somebody_are_replaced_only_if_the_user_says_so(adar, bundle_folder: Path) -> None:
    readme = Path("models/bundle/README.md")
    readme.parent.mkdir(parents=True)
    readme.write_text("notes")
    assert adar("triton", bundle_folder)[0] == 0
    assert readme.read_text() == "notes"
    assert adar("triton", bundle_folder, "--overwrite")[0] == 0
    assert readme.read_text() != "notes"


def test_a_repository_may_be_renamed(adar, bundle_folder: Path) -> None:
    """Its instructions have its name, so another version was refused as if they were edited."""
    assert adar("triton", bundle_folder)[0] == 0
    Path("models").rename("repository")
    assert adar("triton", f"bundle:2={bundle_folder}", "--out", "repository")[0] == 0


def test_a_repository_is_not_written_into_a_bundle(adar, bundle_folder: Path, tmp_path: Path) -> None:
    """With --out ., the folder of the model "bundle" was the bundle: its model card was replaced."""
    shutil.copytree(bundle_folder, tmp_path / "bundle")
    before = sorted(path.name for path in (tmp_path / "bundle").iterdir())
    for words in (
        ("bundle", "--out", "."),
        ("bundle", "--out", "bundle"),
        ("bundle", "--out", ".", "--overwrite"),
    ):
        code, _, err = adar("triton", *words)
        assert (code, "bundle is a bundle: choose another --out" in err) == (2, True)
    assert sorted(path.name for path in (tmp_path / "bundle").iterdir()) == before


def test_export_writes_a_repository(adar, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import adar_export

    monkeypatch.setattr(adar_export, "export_bundle", partial(adar_export.export_bundle, steps=(1,)))
    words = ("export", run_folder, "--triton", "models")
    assert adar(*words)[0] == 0
    assert Path("models/bundle/1/bundle.adar").is_file()
    code, _, err = adar(*words)
    assert (code, "models/bundle/1 exists" in err) == (2, True)


def test_export_writes_the_bundle_that_it_made(
    adar, run_folder: Path, described_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--out name=folder`, the model repository got the bundle in `folder`, which is another one."""
    import adar_export

    monkeypatch.setattr(adar_export, "export_bundle", partial(adar_export.export_bundle, steps=(1,)))
    Path("other").symlink_to(described_bundle)
    code, _, err = adar("export", run_folder, "--out", "mine=other", "--triton", "models")
    assert (code, "'mine=other' is not a name of a model" in err) == (2, True)
    assert err.endswith("in the name of the folder\n")  # here, NAME=FOLDER is a name
    assert [path.name for path in Path.cwd().iterdir()] == ["other"]
