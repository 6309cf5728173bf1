"""`adar-deploy build` and `export --tensorrt`: real engines, one line for what goes wrong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

import adar_export
from adar_deploy.console import err
from adar_deploy.paths import PRETRAINED, named_bundle
from adar_export.onnx_models import build_onnx_models
from adar_export.precision import precision_of
from adar_runtime import Graph, write_graph
from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.backends.tensorrt.engines.build import CAPABILITIES
from adar_runtime.backends.tensorrt.engines.model_shapes import usable_profiles
from adar_runtime.backends.tensorrt.engines.plan import build_engine
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES
from adar_runtime.bundle.onnx_facts import encodes_by_row
from adar_runtime.bundle.reading import read_bundle, read_manifest
from adar_runtime.errors import UsageError
from adar_train import load_run
from tests.bundles import edit, replace_model

QUICK = ("--profile", "small", "--optimization-level", 0, "--flavour", "rtx")


@pytest.fixture
def bundle(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "b")


def in_precision(bundle: Path, run: Path, precision: str) -> None:
    """The cell of that precision in place of the bundle's."""
    cell = build_onnx_models(load_run(run).model, 17, precision_of(precision))["cell"].SerializeToString()
    replace_model(bundle, "cell", cell)
    edit(bundle, lambda m: m.update(precision=precision))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_board_s_bundle_is_built_in_every_precision(
    adar, bundle: Path, run_folder: Path, precision: str
) -> None:
    in_precision(bundle, run_folder, precision)
    code, out, error = adar("build", bundle, *QUICK, "--precision", precision, "--json")
    assert (code, error) == (0, "")
    engines = json.loads(out)["engines"]
    assert [one["graph"] for one in engines] == ["encoder", "cell", "head", "clock"]
    for one in engines:
        assert one["precision"] == precision
        path = bundle / "engines" / one["file"]
        assert path.stat().st_size == one["bytes"] > 10_000
        assert json.loads(path.with_suffix(".json").read_text())["flavour"] == "rtx"


def test_every_engine_can_be_captured_and_says_how_much_memory_it_needs(adar, bundle: Path) -> None:
    """With real builds of the default profiles: a build fails if an engine would allocate by itself."""
    code, out, error = adar("build", bundle, *QUICK[2:], "--json")
    assert (code, error) == (0, "")
    for engine in json.loads(out)["engines"]:
        described = json.loads((bundle / "engines" / engine["file"]).with_suffix(".json").read_text())
        assert engine["user_allocation"] is described["user_allocation"] is True
        if engine["graph"] != "clock":
            assert [one["name"] for one in engine["profiles"]] == ["small", "medium", "large"]
            by_profile = [one["activation_bytes"] for one in engine["profiles"]]
            assert by_profile == described["activation_bytes"] == sorted(by_profile)
            assert engine["activation_bytes"] == by_profile[-1] > 0
    _, out, _ = adar("inspect", bundle)
    assert "engines can be captured yes" in " ".join(out.split())


def test_engines_for_a_graph_need_little_memory(adar, bundle: Path, tmp_path: Path) -> None:
    from adar_runtime.graph.synthetic import minesweeper

    for side in (12, 30):
        write_graph(tmp_path / f"{side}.npz", minesweeper(side=side))
    asked = ("build", bundle, *QUICK[2:], "--json", "--for", "12.npz", "--for", "30.npz", "--for", "12.npz")
    code, out, error = adar(*asked)
    assert (code, error) == (0, "")
    cell = next(one for one in json.loads(out)["engines"] if one["graph"] == "cell")
    assert [one["n"] for one in cell["profiles"]] == [[1, 144, 180], [1, 900, 1125]]
    assert cell["profiles"][0]["rows"]["leaf_2"][1] > 100  # nearly all fields have 8 neighbours
    assert cell["profiles"][0]["activation_bytes"] < cell["profiles"][1]["activation_bytes"] < 10_000_000


def test_a_bundle_that_is_replaced_meanwhile_keeps_its_engines(
    adar, bundle: Path, described_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engines of the old models replaced those of the new ones, which fit."""

    def replacing(*given: Any) -> Any:
        shutil.rmtree(bundle)
        shutil.copytree(described_bundle, bundle)
        (bundle / "engines").mkdir()
        (bundle / "engines" / "cell-rtx.engine").write_text("of the new bundle")
        return build_engine(*given)

    monkeypatch.setattr("adar_runtime.backends.tensorrt.engines.build.build_engine", replacing)
    code, out, error = adar("build", bundle, *QUICK)
    assert (code, out) == (2, "")
    assert error == f"error: {bundle} was replaced while its engines were built: build them again\n"
    assert (bundle / "engines" / "cell-rtx.engine").read_text() == "of the new bundle"


def test_a_graph_with_other_features_is_refused(adar, bundle: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "other.npz", Graph(np.zeros((3, 2)), np.zeros((2, 0), np.int64)))
    code, _, error = adar("build", bundle, "--for", "other.npz")
    assert code == 2
    assert "other.npz: the graph has 2 features and the bundle takes 10" in error


def test_a_default_profile_beyond_32_bit_indices_is_left_out(bundle: Path) -> None:
    """A width of 200 makes the table of 16 neighbours too large, so only small and medium are built."""
    manifest, onnx_models = read_bundle(bundle)
    wide = replace(manifest, hidden=200)
    profiles, left_out = usable_profiles(wide, None, by_row=encodes_by_row(onnx_models["encoder"]))
    assert [one.name for one in profiles] == ["small", "medium"]
    assert "'rows of leaf_3' would have 3,555,5" in left_out["large"]
    with pytest.raises(UsageError, match=r"the profile large is too large for this bundle: .*--for GRAPH"):
        usable_profiles(wide, [PROFILES["large"]], by_row=True)


def test_it_says_what_it_built_and_inspect_shows_it(adar, bundle: Path) -> None:
    code, out, error = adar("build", bundle, *QUICK, "--sm", "89,86")
    assert (code, error) == (0, "")
    words = " ".join(out.split())
    assert "cell-rtx-sm86-sm89.engine" in words
    assert "compute capability 8.6, 8.9" in words
    assert "1 to 10,000 nodes, 1 to 100,000 edges" in words
    assert f"next: adar-deploy run GRAPH --bundle {bundle} --backend tensorrt" in words
    _, out, _ = adar("inspect", bundle)
    assert "compute capability 8.6, 8.9" in " ".join(out.split())
    _, out, _ = adar("inspect", bundle, "--json")
    assert {one["graph"] for one in json.loads(out)["engines"]} == {"encoder", "cell", "head", "clock"}
    _, out, _ = adar("run", "--help")
    assert "tensorrt" in out


def test_a_bar_shows_the_builder_s_own_phases(adar, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adar_deploy import console

    seen = []
    monkeypatch.setattr(console.Bar, "update", lambda _bar, done, status: seen.append((done, status)))
    assert adar("build", bundle, *QUICK)[0] == 0
    assert not err.is_terminal
    done = [share for share, _ in seen]
    assert done[0] == 0
    assert done[-1] == 4
    assert any(status.startswith("cell  ") and len(status) > 8 for _, status in seen)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--profile", "n=1:2:3,q=4"], "unknown profile 'n=1:2:3,q=4': choose small, medium, large"),
        (["--sm", "90"], "--sm contains 90"),
        (["--sm", "ampere"], "--sm is 'ampere': give numbers such as 80,86,89,120"),
        (["--precision", "fp16"], "is fp32, and TensorRT uses the types of the ONNX file"),
        (["--flavour", "tensorrt"], "pip install 'adar-deploy[tensorrt]'"),
        (["--workspace", "nan"], "--workspace is nan"),
        (["--workspace", "inf"], "--workspace is inf"),
        (["--workspace", "1e300"], "--workspace is 1e+300"),
        (["--profile", "n=5:3:1"], "n=1:100:1000"),  # and no picture of a hundred
        (["--workspace", "0.0001", "--profile", "small"], "increase --workspace"),
        (
            ["--activation-limit", "0.01", "--profile", "medium"],
            "the profile medium needs 0.1 GB of activation memory in the cell, and the limit is 0.0 GB",
        ),
        (["--activation-limit", "nan"], "--activation-limit is nan"),
        (["--profile", "n=50000000"], "the tensor 'rows of leaf_1' would have"),
        (["--hardware", "ampere-plus"], "TensorRT-RTX has no version or hardware compatibility levels"),
        (["--version-compatible"], "leave --hardware and --version-compatible out"),
    ],
)
def test_mistakes_are_one_line(adar, bundle: Path, options: list[str], said: str) -> None:
    if "tensorrt" in options and _installed("tensorrt"):
        pytest.skip("tensorrt is installed here")
    code, out, error = adar("build", bundle, *options)
    assert (code, out) == (2, "")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (bundle / "engines").exists()


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def test_what_is_no_bundle(adar, tmp_path: Path) -> None:
    code, _, error = adar("build", tmp_path)
    assert code == 2
    assert "not a bundle" in error


def test_help_names_what_can_be_chosen(adar) -> None:
    _, out, _ = adar("build", "--help")
    for name in (*PROFILES, *map(str, CAPABILITIES), "rtx", "Example"):
        assert name in out


@pytest.mark.skipif(device_problem() is None, reason="there is a GPU here")
def test_running_without_a_gpu_is_one_line(adar, bundle: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    code, _, error = adar("run", tmp_path / "board.npz", "--bundle", bundle, "--backend", "tensorrt")
    assert code == 2
    assert error.splitlines() == [
        f"error: tensorrt does not work here: {device_problem()}; use onnxruntime-cpu"
    ]


def test_export_can_build_too(
    adar, run_folder: Path, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before the engines is tested elsewhere; here, the bundle is one that was exported before."""

    def exported(_run, out: Path, *_, **__):
        shutil.copytree(bundle_folder, out)
        return read_manifest(out)

    monkeypatch.setattr(adar_export, "export_bundle", exported)
    code, out, error = adar("export", run_folder, "--out", "b", "--tensorrt")
    assert (code, error) == (0, "")
    assert "cell-rtx.engine" in out
    assert sorted(path.name for path in Path("b/engines").glob("*.engine")) == [
        f"{name}-rtx.engine" for name in ("cell", "clock", "encoder", "head")
    ]


def test_export_refuses_at_once_what_no_engine_is_made_of(adar, run_folder: Path) -> None:
    code, _, error = adar("export", run_folder, "--out", "b", "--tensorrt", "--plain")
    assert code == 2
    assert "remove --plain or --tensorrt" in error
    assert not Path("b").exists()


@pytest.mark.torture
def test_the_pretrained_model_builds_without_its_largest_profile(adar, tmp_path: Path) -> None:
    shutil.copytree(named_bundle(PRETRAINED), tmp_path / "copy")
    code, out, err = adar("build", tmp_path / "copy")
    assert code == 0, err
    assert "the profile large was left out" in " ".join((out + err).split())
    assert (tmp_path / "copy" / "engines" / "cell-rtx.engine").stat().st_size > 1_000_000
