"""Bundles on the Hugging Face hub. Only the download itself is replaced: there is no network in tests."""

import shutil
from pathlib import Path

import huggingface_hub
import pytest

from adar_runtime import Graph, load
from adar_runtime.bundle import hub
from adar_runtime.errors import BundleError, MissingExtraError, UsageError


@pytest.mark.parametrize("address", ["hf://owner/name@v2", Path("hf://owner/name@v2")])
def test_a_bundle_is_fetched_and_loaded(
    address, bundle_folder: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def download(repo_id: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> str:
        asked.update(repo_id=repo_id, revision=revision, patterns=allow_patterns)
        return str(shutil.copytree(bundle_folder, local_dir))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    bundle = load(address)
    assert bundle.path == tmp_path / "adar-deploy" / "hub" / "owner--name--v2"
    assert (asked["repo_id"], asked["revision"]) == ("owner/name", "v2")
    assert not any("engine" in pattern for pattern in asked["patterns"])
    assert len(bundle.run(board, 2).predictions) == board.nodes


def test_the_arguments_are_those_of_the_package() -> None:
    import inspect

    known = inspect.signature(huggingface_hub.snapshot_download).parameters
    assert {"repo_id", "revision", "local_dir", "allow_patterns"} <= set(known)


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BundleError, match=r"hf://owner/name could not be downloaded .* hf download"):
        load("hf://owner/name")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"adar-deploy\[hub\]"):
        load("hf://owner/name")


@pytest.mark.parametrize("address", ["hf://", "hf://name", "hf://a/b/c", "hf://../..", "hf://a/b@../../x?"])
def test_other_addresses_are_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises((UsageError, BundleError)):
        load(address)
    assert not (tmp_path / "adar-deploy").exists()
