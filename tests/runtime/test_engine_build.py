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
from adar_runtime.backends.tensorrt.engines.options import Target
from adar_runtime.backends.tensorrt.engines.plan import build_engine
from adar_runtime.backends.tensorrt.engines.profiles import PROFILES, Profile
from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar, read_engine, sha256, sidecars
from adar_runtime.backends.tensorrt.engines.timing_cache import TimingCache
from adar_runtime.bundle.manifest import TABLES
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.bundle.signature import STRUCTURES, expected
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


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_every_onnx_model_is_built_in_every_precision(
    model: AdaR, precision: str, bundle_folder: Path
) -> None:
    manifest = read_bundle(bundle_folder)[0]
    config = model.config
    sized = replace(manifest, hidden=config.hidden, proxies=config.proxies, precision=precision)
    for name, content in onnx_models_of(model, precision).items():
        shapes = [PROFILES["small"].shapes(expected(sized)[name].inputs)]
        assert len(build_engine(name, content, TARGET, shapes, QUICK).content) > 10_000


@pytest.mark.parametrize(
    "names", [["small"], ["medium"], ["large"], ["n=2:10000:1000000,m=1:80000:8000000,c=2"]]
)
def test_every_profile_is_built(copy: Path, names: list[str]) -> None:
    built = build_engines(copy, *read_bundle(copy), replace(QUICK, profiles=tuple(map(Profile.parse, names))))
    assert [one.onnx_model for one in built] == ["encoder", "cell", "head", "clock"]
    cell = built[1]
    assert cell.profiles == tuple(Profile.parse(name) for name in names)
    assert set(cell.shapes[0]) == {
        port.name for port in read_bundle(copy)[0].onnx_models["cell"].inputs if "n" in port.shape
    } | {port.name for port in STRUCTURES[TABLES]}


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
