"""Real builds of TensorRT engines: tensorrt-rtx needs no GPU to build."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

import tensorrt_rtx

from adar_export.onnx_models import build_onnx_models
from adar_export.precision import precision_of
from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.callbacks import Phases
from adar_runtime.backends.tensorrt.engines.clock import clock_model
from adar_runtime.backends.tensorrt.engines.options import BuildOptions, Target
from adar_runtime.backends.tensorrt.engines.plan import build_engine
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, read_engine, sha256, sidecars
from adar_runtime.backends.tensorrt.engines.timing_cache import TimingCache
from adar_runtime.bundle.manifest import TABLES, Manifest
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.bundle.signature import STRUCTURES, expected
from adar_runtime.graph.neighbour_tables import fixed_widths
from adar_train import AdaR, ModelConfig
from tests.helpers import awake
from tests.runtime.simulated_gpu import QUICK, RTX, TARGET


def onnx_models_of(model: AdaR, precision: str = "fp32") -> dict[str, bytes]:
    protos = build_onnx_models(model, 17, precision_of(precision))
    return {name: proto.SerializeToString() for name, proto in protos.items()}


@pytest.fixture(scope="module")
def model() -> AdaR:
    """As large as the model that `adar-deploy train` makes for the Minesweeper board."""
    return awake(ModelConfig(10, 2))


CEILINGS = {"small": 100e6, "medium": 1e9, "large": 8e9}  # bytes of activation memory for d = 64


def sized_as(model: AdaR, bundle_folder: Path, **changes: object) -> Manifest:
    config = model.config
    manifest = read_bundle(bundle_folder)[0]
    return replace(manifest, hidden=config.hidden, proxies=config.proxies, level=config.level, **changes)


def check_cell(model: AdaR, bundle_folder: Path, precision: str, options: BuildOptions) -> None:
    """The cell, for all profiles in one engine: it can be captured, and needs little memory."""
    assert model.config.hidden == 64
    inputs = expected(sized_as(model, bundle_folder, precision=precision))["cell"].inputs
    shapes = [profile.shapes(inputs) for profile in PROFILES.values()]
    content = onnx_models_of(model, precision)["cell"]
    plan = build_engine("cell", content, TARGET, shapes, options)
    assert plan.user_allocation
    assert len(plan.activation_bytes) == len(PROFILES)
    for name, needed in zip(PROFILES, plan.activation_bytes, strict=True):
        assert 0 < needed < CEILINGS[name], (name, needed)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_the_cell_is_captured_in_every_precision_and_profile_with_little_memory(
    model: AdaR, precision: str, bundle_folder: Path
) -> None:
    check_cell(model, bundle_folder, precision, QUICK)


@pytest.mark.torture
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("level", range(1, 6))
def test_the_cell_is_captured_at_every_optimization_level(
    model: AdaR, precision: str, level: int, bundle_folder: Path
) -> None:
    check_cell(model, bundle_folder, precision, replace(QUICK, level=level))


@pytest.mark.parametrize("level", ["node", "edge", "graph"])
def test_encoder_and_head_of_every_level_are_built(level: str, bundle_folder: Path) -> None:
    model = awake(ModelConfig(10, 2, level=level))
    for name, content in onnx_models_of(model).items():
        if name != "cell":
            inputs = expected(sized_as(model, bundle_folder))[name].inputs
            shapes = [profile.shapes(inputs) for profile in PROFILES.values()]
            plan = build_engine(name, content, TARGET, shapes, QUICK)
            assert plan.user_allocation
            assert max(plan.activation_bytes) < CEILINGS["large"]


def test_no_table_of_a_profile_is_much_larger_than_the_edges(bundle_folder: Path) -> None:
    """The volume of each table, in entries per edge of the largest graph."""
    inputs = read_bundle(bundle_folder)[0].onnx_models["cell"].inputs
    for profile in PROFILES.values():
        shapes = profile.shapes(inputs)
        for name in fixed_widths():
            least, _, (rows, width) = shapes[name]
            assert least == (1, width)
            assert rows * width < 1.8 * profile.m.most, name


def test_a_profile_from_the_command_line_is_built(copy: Path) -> None:
    profiles = (Profile.parse("n=2:10000:1000000,m=1:80000:8000000,c=2"),)
    built = build_engines(copy, *read_bundle(copy), replace(QUICK, profiles=profiles))
    assert [one.onnx_model for one in built] == ["encoder", "cell", "head", "clock"]
    cell = built[1]
    assert cell.profiles == profiles
    assert set(cell.shapes[0]) == {
        port.name for port in read_bundle(copy)[0].onnx_models["cell"].inputs if "n" in port.shape
    } | {port.name for port in STRUCTURES[TABLES]}
    assert built[0].shapes[0]["features"].most == (16_384, 10)  # nodes are encoded in blocks


def test_several_profiles_and_gpus_in_one_engine(copy: Path) -> None:
    options = replace(QUICK, profiles=tuple(PROFILES.values()), capabilities=(80, 86, 89, 120))
    built = build_engines(copy, *read_bundle(copy), options)
    assert built[1].file == "cell-rtx-sm80-sm86-sm89-sm120.engine"
    assert len(built[1].shapes) == 3
    assert list(sidecars(copy)) == sorted(built, key=lambda one: one.file)


def test_an_engine_is_raw_bytes_with_a_sidecar(engines_folder: Path) -> None:
    manifest, onnx_models = read_bundle(engines_folder)
    for one in sidecars(engines_folder):
        content = (engines_folder / FOLDER / one.file).read_bytes()
        assert content == read_engine(engines_folder, one)
        assert one.onnx_sha256 == sha256(
            (onnx_models | {"clock": clock_model(manifest.hidden)})[one.onnx_model]
        )
        assert (one.package, one.version, one.precision) == ("rtx", tensorrt_rtx.__version__, "fp32")
        raw = json.loads((engines_folder / FOLDER / one.file).with_suffix(".json").read_text())
        assert raw["engine_sha256"] == sha256(content)
        assert Sidecar.from_json(one.to_json()) == one


def test_the_clock_has_no_shape_tensors() -> None:
    """Shape tensors are on the host: a replay would read their values of the capture."""
    builder = tensorrt_rtx.Builder(RTX.log)
    network = RTX.create_network(builder)
    parser = tensorrt_rtx.OnnxParser(network, RTX.log)
    assert parser.parse(clock_model(16))
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    tensors += [network.get_output(i) for i in range(network.num_outputs)]
    assert len(tensors) == 2 + 5
    assert not any(tensor.is_shape_tensor for tensor in tensors)


def test_the_builder_reports_progress(copy: Path) -> None:
    seen: list[tuple[str, float, str]] = []
    build_engines(copy, *read_bundle(copy), QUICK, lambda *report: seen.append(report))
    assert list(dict.fromkeys(onnx_model for onnx_model, _, _ in seen)) == [
        "encoder",
        "cell",
        "head",
        "clock",
    ]
    done = [share for onnx_model, share, _ in seen if onnx_model == "cell"]
    assert min(done) == 0
    assert max(done[:-1]) > 0.8
    assert done[-1] == 1
    assert all(0 <= share <= 1 for share in done)
    assert any("graph" in phase for _, _, phase in seen)


def test_nested_phases_add_up() -> None:
    phases = Phases()
    phases.start("all", 2)
    phases.step("all", 0)
    phases.start("inner", 4)
    phases.step("inner", 1)
    assert phases.done == 0.75
    assert phases.name == "inner"
    phases.finish("inner")
    assert (phases.done, phases.name) == (0.5, "all")


def test_a_timing_cache_is_kept_between_builds(tmp_path: Path) -> None:
    """For tensorrt; rtx has the same calls, which warn that they do nothing."""
    path = tmp_path / "timing.cache"
    target = Target(replace(RTX, name="tensorrt"), (89,))
    for _ in range(2):
        timing = TimingCache.of(target, replace(QUICK, timing_cache=path), tmp_path)
        with pytest.warns(DeprecationWarning, match="no-ops in TensorRT-RTX"):
            build_engine("clock", clock_model(8), target, [], QUICK, timing)
        timing.save()
        assert path.stat().st_size
    assert TimingCache.of(TARGET, QUICK, tmp_path)._path is None
