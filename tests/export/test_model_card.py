"""The metadata of a bundle, and the model card that people and the Hugging Face hub read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from adar_export import export_bundle
from adar_export.model_card import is_edited, model_card, with_hash
from adar_runtime import Graph, load
from adar_runtime.bundle.metadata import MAX_GROUPS, feature_schema
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import BundleError, ExportError, UsageError
from adar_runtime.graph.formats import read_graph
from adar_train import load_run
from tests.bundles import edit


def test_a_bundle_says_what_it_is(run_folder: Path, bundle_folder: Path) -> None:
    manifest = read_manifest(bundle_folder)
    assert (manifest.name, manifest.version) == (run_folder.name, "1.0.0")
    assert manifest.description == (
        "AdaR, a recurrent graph model that predicts 2 classes for each node, trained on board."
    )
    written = (run_folder / "model.safetensors").stat().st_mtime
    assert abs(np.datetime64(manifest.created_at[:-1]).astype(int) - written) <= 1
    assert [group["type"] for group in manifest.feature_schema] == ["binary"]
    assert manifest.feature_schema[0]["columns"] == [0, manifest.features - 1]


def test_the_author_chooses_name_version_and_description(described_run: Path, tmp_path: Path) -> None:
    chosen = {"name": "reads: boards | ½", "version": "2.1.0-rc1", "description": "Two\nlines."}
    export_bundle(load_run(described_run), tmp_path / "bundle", steps=(1,), **chosen)
    manifest = read_manifest(tmp_path / "bundle")
    assert {key: getattr(manifest, key) for key in chosen} == chosen
    card = ModelCard.load(tmp_path / "bundle" / "README.md")
    assert "# reads: boards \\| ½" in card.text


@pytest.mark.parametrize(
    "chosen", [{"name": ""}, {"name": "a\x1b[2J"}, {"name": "a" * 101}, {"version": "1 0"}, {"version": "/"}]
)
def test_texts_that_cannot_be_shown_are_refused(chosen, described_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        export_bundle(load_run(described_run), tmp_path / "bundle", **chosen)
    assert list(tmp_path.iterdir()) == []


def test_the_hub_reads_the_card(bundle_folder: Path) -> None:
    manifest = read_manifest(bundle_folder)
    card = ModelCard.load(bundle_folder / "README.md")
    assert card.data.library_name == "adar-deploy"
    assert "node-classification" in card.data.tags
    test = next(one for one in card.data.eval_results if one.metric_name == "ROC-AUC, test")
    assert test.metric_value == pytest.approx(manifest.training["test"], rel=1e-5)
    low, high = manifest.training["intervals"]["test"]["interval"]
    assert f"| test | {manifest.training['test']:.4f} | {low:.4f} to {high:.4f} |" in card.text
    for part in (
        "## Metrics",
        "## Stop rule and solver",
        "- Default solver: ",
        "## Limits",
        "## How to run",
        'Classes: "safe", "mine".',
    ):
        assert part in card.text


def test_names_cannot_add_fields_to_the_header(bundle_folder: Path) -> None:
    manifest = replace(read_manifest(bundle_folder), name='x"\nlicense: mit\n---\n')
    data = ModelCard(model_card(manifest)).data
    assert data.license is None
    assert data.model_name == manifest.name


def test_a_date_from_the_environment(
    described_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    export_bundle(load_run(described_run), tmp_path / "bundle", steps=(1,))
    assert read_manifest(tmp_path / "bundle").created_at == "2023-11-14T22:13:20Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        export_bundle(load_run(described_run), tmp_path / "bundle", steps=(1,))


def test_a_run_in_a_folder_with_a_strange_name(described_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(described_run, tmp_path / ("a\n" + "b" * 200))
    manifest = export_bundle(load_run(run), tmp_path / "bundle", steps=(1,))
    assert manifest.name == "a-" + "b" * 98
    assert read_manifest(tmp_path / "bundle").name == manifest.name


def test_only_an_edited_card_is_edited(bundle_folder: Path) -> None:
    """Also a card of another version: its text differs, and nobody edited it."""
    card = (bundle_folder / "README.md").read_bytes()
    other = with_hash("# The card of another version\n").encode()
    assert not is_edited(card)
    assert not is_edited(other)
    for edited in (
        b"",
        b"# mine\n",
        card + b"more\n",
        b"more\n" + card,
        card.replace(b"board", b"game"),
        b"\xff",
    ):
        assert is_edited(edited)


def test_damaged_metrics_are_an_error(bundle_folder: Path) -> None:
    manifest = read_manifest(bundle_folder)
    damaged = replace(manifest, training=manifest.training | {"budgets": [3], "intervals": 7})
    with pytest.raises(ExportError, match="train again"):
        model_card(damaged)


FIELDS = {"name", "version", "created_at", "description", "feature_schema"}


def test_bundles_without_metadata_still_load(bundle_folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(bundle_folder, tmp_path / "old")
    (old / "README.md").unlink()
    edit(old, lambda fields: [fields.pop(name) for name in FIELDS])
    manifest = load(old).manifest
    assert manifest.name is None
    assert manifest.to_dict() == json.loads((old / "manifest.json").read_text())


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"name": "a" * 101},
        {"description": "\x1b]0;title\x07"},
        {"version": "../x"},
        {"created_at": "yesterday"},
        {"feature_schema": "all"},
        {"feature_schema": [{"columns": [0, 1], "type": "code"}]},
        {"feature_schema": [{"columns": [3, 1], "type": "binary"}]},
        {"feature_schema": [{"columns": [0, 1], "type": "binary"}] * (MAX_GROUPS + 1)},
    ],
)
def test_metadata_of_a_stranger_is_checked(change, bundle_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    edit(bundle, lambda fields: fields.update(change))
    with pytest.raises(BundleError, match=r"manifest\.json"):
        read_manifest(bundle)


def test_the_runtime_does_not_read_the_card(bundle_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    (bundle / "README.md").write_bytes(b"\xff\x00 edited by somebody")
    graph = read_graph(run_folder / "graph.pt")
    expected = load(bundle_folder).run(graph, 5).scores
    assert np.array_equal(load(bundle).run(graph, 5).scores, expected)


def test_columns_of_each_kind() -> None:
    rows = np.array([[0, 1, -3, 0.5, 7], [1, 0, 2, 0, 1]], np.float32)
    assert feature_schema(Graph(rows, [[0], [1]])) == [
        {"columns": [0, 1], "type": "binary"},
        {"columns": [2, 2], "type": "integer"},
        {"columns": [3, 3], "type": "number"},
        {"columns": [4, 4], "type": "integer"},
    ]
    wide = np.tile(np.array([[0, 0.5]], np.float32), (3, MAX_GROUPS))
    assert feature_schema(Graph(wide, [[0], [1]])) == [{"columns": [0, 2047], "type": "number"}]
