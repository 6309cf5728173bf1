"""Invalid and hostile manifests."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import adar_runtime
from adar_runtime.errors import BundleError
from tests.bundles import edit


def swap(manifest: dict) -> None:
    graphs = manifest["graphs"]
    graphs["cell"], graphs["head"] = graphs["head"], graphs["cell"]


def name_cell(name: str) -> Callable[[dict], object]:
    return lambda manifest: manifest["graphs"]["cell"].update(file=name)


def size_cell(size: object) -> Callable[[dict], object]:
    return lambda manifest: manifest["graphs"]["cell"].update(bytes=size)


def same_file(manifest: dict) -> None:
    manifest["graphs"]["cell"] = manifest["graphs"]["encoder"]


def nested(levels: int) -> object:
    found: object = 0
    for _ in range(levels):
        found = [found]
    return found


ATTACKS = {
    "a file above": (name_cell("../cell.onnx"), "outside the bundle"),
    "a file far above": (name_cell("../../../../../../etc/passwd"), "outside the bundle"),
    "an absolute path": (name_cell("/etc/passwd"), "outside the bundle"),
    "a Windows path": (name_cell("..\\..\\cell.onnx"), "outside the bundle"),
    "a folder within": (name_cell("engines/cell.onnx"), "outside the bundle"),
    "the folder itself": (name_cell("."), "outside the bundle"),
    "no name": (name_cell(""), "outside the bundle"),
    "a name with a zero byte": (name_cell("cell.onnx\0.txt"), "no such file"),
    "a device": (name_cell("/dev/zero"), "outside the bundle"),
    "the manifest as a graph": (name_cell("manifest.json"), "where the manifest says"),
    "one file for two graphs": (same_file, "do not match"),
    "another hash": (lambda m: m["graphs"]["cell"].update(sha256="0" * 64), "was changed"),
    "a hash in capitals": (
        lambda m: m["graphs"]["cell"].update(sha256=m["graphs"]["cell"]["sha256"].upper()),
        "was changed",
    ),
    "a hash that is a list": (lambda m: m["graphs"]["cell"].update(sha256=[]), "sha256"),
    "one byte more": (lambda m: m["graphs"]["cell"].update(bytes=m["graphs"]["cell"]["bytes"] + 1), "bytes"),
    "a size of 10^30": (size_cell(10**30), "where the manifest says"),
    "a negative size": (size_cell(-1), "positive"),
    "a size that is true": (size_cell(True), "bool"),
    "a fractional size": (size_cell(1.5), "float"),
    "a state of 10^15 columns": (lambda m: m.update(hidden=10**15), "do not match"),
    "schema 0": (lambda m: m.update(schema=0), "schema 0"),
    "a future schema": (lambda m: m.update(schema=99), "schema 99"),
    "a schema in words": (lambda m: m.update(schema="2"), "'schema' as str"),
    "a checksum that is a number": (lambda m: m.update(checksum=7), "'checksum' as int"),
    "a checksum of nothing": (lambda m: m.update(checksum=None), "'checksum' as NoneType"),
    "a checksum of another": (lambda m: m.update(checksum="0" * 64), "was changed"),
    "lists in lists in lists": (lambda m: m["training"].update(test=nested(400)), "nested"),
    "no graphs": (lambda m: m.pop("graphs"), "no 'graphs'"),
    "graphs in a list": (lambda m: m.update(graphs=[]), "'graphs' as list"),
    "another width": (lambda m: m.update(features=11), "do not match"),
    "another state": (lambda m: m.update(hidden=32), "do not match"),
    "other proxies": (lambda m: m.update(proxies=5), "do not match"),
    "other targets": (lambda m: m.update(targets=3), "do not match"),
    "described targets": (lambda m: m.update(targets=None), "do not match"),
    "another level": (lambda m: m.update(level="edge"), "do not match"),
    "an unknown level": (lambda m: m.update(level="x" * 10**4), "level 'xxx"),
    "graphs swapped": (swap, "do not match"),
    "a port of another type": (lambda m: m["graphs"]["cell"]["inputs"][0].update(type="int8"), "int8"),
    "a port of another shape": (lambda m: m["graphs"]["cell"]["inputs"][0].update(shape=[[]]), "nodes"),
    "a port given twice": (
        lambda m: m["graphs"]["cell"]["inputs"].append(m["graphs"]["cell"]["inputs"][0]),
        "duplicate names",
    ),
    "a schema of 4,000 digits": (lambda m: m.update(schema=10**4000), "more than 300 digits"),
    "an invalid file name": (lambda m: m["graphs"]["cell"].update(file="\ud800"), "not valid Unicode"),
    "an invalid class name": (lambda m: m.update(class_names=["\ud800", "b"]), "not valid Unicode"),
    "a long class name": (lambda m: m.update(class_names=["n" * 10**6, "b"]), "of 1,000,000 characters"),
    "a score of 10^400": (lambda m: m["training"].update(test=10**400), "more than 300 digits"),
    "a file name too long": (lambda m: m["graphs"]["cell"].update(file="c" * 4000), "too long"),
    "a rule that is a list": (lambda m: m.update(exit={"rule": []}), "no stop rule"),
    "a rule with a long name": (lambda m: m.update(exit={"rule": "r" * 10**4}), "no stop rule"),
    "prominence in words": (lambda m: m.update(exit={"rule": "peak", "prominence": "x"}), "prominence"),
    "prominence of nothing": (lambda m: m.update(exit={"rule": "peak", "prominence": None}), "prominence"),
    "prominence NaN": (lambda m: m.update(exit={"rule": "peak", "prominence": float("nan")}), "prominence"),
    "fractional patience": (lambda m: m.update(exit={"rule": "peak", "patience": 1.5}), "patience"),
    "patience true": (lambda m: m.update(exit={"rule": "peak", "patience": True}), "patience"),
    "a time NaN": (lambda m: m.update(exit={"rule": "time", "t": float("nan")}), "stop time"),
    "a time in words": (lambda m: m.update(exit={"rule": "time", "t": "late"}), "stop time"),
    "no time": (lambda m: m.update(exit={"rule": "time"}), "needs a value for t"),
}


def sealed(name: str) -> bool:
    """Whether the attacker corrected the checksum, so that the checks after it are reached."""
    return "checksum" not in name


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_short_bundle_error(name: str, bundle_folder: Path, tmp_path: Path) -> None:
    change: Callable[[dict], object]
    change, message = ATTACKS[name]
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    edit(bundle, change, seal=sealed(name))
    with pytest.raises(BundleError) as error:
        adar_runtime.load(bundle)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


TEXTS = {
    "nothing": (b"", "not JSON"),
    "a list": (b"[]", "no 'schema'"),
    "nested 100,000 deep": (b"[" * 100_000, "not JSON"),
    "a number of 10,000 digits": (b'{"schema": ' + b"9" * 10_000 + b"}", "not JSON"),
    "bytes that are not text": (b'{"schema": "\xff\xfe"}', "decode"),
    "17 MB": (b" " * (17 * 2**20), "bytes"),
    "a name twice": (b'{"schema": 2, "schema": 2}', "duplicate key"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_not_a_manifest(name: str, bundle_folder: Path, tmp_path: Path) -> None:
    text, message = TEXTS[name]
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    (bundle / "manifest.json").write_bytes(text)
    with pytest.raises(BundleError) as error:
        adar_runtime.load(bundle)
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def to_link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def to_hard_link(file: Path) -> None:
    os.link(file, file.parent.parent / "elsewhere")


def to_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def to_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def to_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


KINDS = {
    "a link": (to_link, "is a link"),
    "a hard link": (to_hard_link, "is a hard link"),
    "a link to itself": (to_loop, "b[:/]"),
    "a pipe": (to_pipe, "no such file|not a bundle"),
    "a folder": (to_folder, "no such file|not a bundle"),
    "no file": (Path.unlink, "no such file|not a bundle"),
}


@pytest.mark.parametrize("file", ["manifest.json", "cell.onnx"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_a_regular_file(kind: str, file: str, bundle_folder: Path, tmp_path: Path) -> None:
    change, message = KINDS[kind]
    bundle = shutil.copytree(bundle_folder, tmp_path / "b")
    change(bundle / file)
    with pytest.raises(BundleError, match=message):
        adar_runtime.load(bundle)


def test_the_first_split_replaces_one_that_the_graph_does_not_have(bundle_folder: Path, board) -> None:
    bundle = adar_runtime.load(bundle_folder)
    for split in (-1, 7, "x", None):
        bundle.manifest.training["split"] = split
        assert bundle.split_for(board) == 0


def test_a_folder_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="too long"):
        adar_runtime.load(tmp_path / ("b" * 300))


def test_a_file_with_a_hole_is_not_read(bundle_folder: Path, tmp_path: Path) -> None:
    """Two gigabytes in memory, for a bundle that takes a megabyte on the disk."""
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    os.truncate(bundle / "cell.onnx", 2**30)
    edit(bundle, size_cell(2**30))
    with pytest.raises(BundleError, match="bytes to read, of which the disk has only"):
        adar_runtime.load(bundle)
