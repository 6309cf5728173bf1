"""Manifests that say what cannot be."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import adar_runtime
from adar_runtime.errors import BundleError


def swap(manifest: dict) -> None:
    graphs = manifest["graphs"]
    graphs["cell"], graphs["head"] = graphs["head"], graphs["cell"]


ATTACKS = {
    "another width": (lambda m: m.update(features=11), "do not fit"),
    "another state": (lambda m: m.update(hidden=32), "do not fit"),
    "other proxies": (lambda m: m.update(proxies=5), "do not fit"),
    "other targets": (lambda m: m.update(targets=3), "do not fit"),
    "described targets": (lambda m: m.update(targets=None), "do not fit"),
    "another level": (lambda m: m.update(level="edge"), "do not fit"),
    "a level nobody knows": (lambda m: m.update(level="x" * 10**4), "level 'xxx"),
    "graphs swapped": (swap, "do not fit"),
    "a port of another type": (lambda m: m["graphs"]["cell"]["inputs"][0].update(type="int8"), "int8"),
    "a port of another shape": (lambda m: m["graphs"]["cell"]["inputs"][0].update(shape=[[]]), "nodes"),
    "a port given twice": (
        lambda m: m["graphs"]["cell"]["inputs"].append(m["graphs"]["cell"]["inputs"][0]),
        "twice",
    ),
    "a schema of 4,000 digits": (lambda m: m.update(schema=10**4000), "schema 1000"),
    "a file name that cannot be": (lambda m: m["graphs"]["cell"].update(file="\ud800"), "no such file"),
    "a file name too long": (lambda m: m["graphs"]["cell"].update(file="c" * 4000), "too long"),
    "a rule that is a list": (lambda m: m.update(exit={"rule": []}), "no exit rule"),
    "a rule with a long name": (lambda m: m.update(exit={"rule": "r" * 10**4}), "no exit rule"),
    "prominence in words": (lambda m: m.update(exit={"rule": "peak", "prominence": "x"}), "prominence"),
    "prominence of nothing": (lambda m: m.update(exit={"rule": "peak", "prominence": None}), "prominence"),
    "prominence NaN": (lambda m: m.update(exit={"rule": "peak", "prominence": float("nan")}), "prominence"),
    "patience in parts": (lambda m: m.update(exit={"rule": "peak", "patience": 1.5}), "patience"),
    "patience true": (lambda m: m.update(exit={"rule": "peak", "patience": True}), "patience"),
    "a time NaN": (lambda m: m.update(exit={"rule": "time", "t": float("nan")}), "exit time"),
    "a time in words": (lambda m: m.update(exit={"rule": "time", "t": "late"}), "exit time"),
    "no time": (lambda m: m.update(exit={"rule": "time"}), "does not take"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_short_bundle_error(name: str, bundle_folder: Path, tmp_path: Path) -> None:
    change: Callable[[dict], object]
    change, message = ATTACKS[name]
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError) as error:
        adar_runtime.load(bundle)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_a_split_that_the_graph_does_not_have_is_the_first(bundle_folder: Path, board) -> None:
    bundle = adar_runtime.load(bundle_folder)
    for split in (-1, 7, "x", None):
        bundle.manifest.training["split"] = split
        assert bundle.split_for(board) == 0


def test_a_folder_name_too_long(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="too long"):
        adar_runtime.load(tmp_path / ("b" * 300))
