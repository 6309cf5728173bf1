"""Engines that cannot be used: the reason in one line, and rebuilding on request."""

import hashlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")
pytest.importorskip("cuda.bindings", reason="needs adar-deploy[rtx]")

import adar_runtime
from adar_runtime import Final
from adar_runtime.backends import available
from adar_runtime.backends.tensorrt import backend as tensorrt
from adar_runtime.backends.tensorrt import cuda, device
from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.backends.tensorrt.engines import FOLDER, trusted_engines
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.packages import TensorRtPackage
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import read_engine, sidecars, write_engines
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import BackendError, EngineError, MissingExtraError, ProfileError
from tests.bundles import change_model, change_weight
from tests.helpers import random_graph
from tests.runtime.simulated_gpu import load_on_simulated_gpu, simulate_gpu, with_engines

SMALL = random_graph(20, 60)
LARGE = random_graph(90, 200)
NARROW = BuildOptions(package="rtx", profiles=(Profile.parse("n=1:20:40,m=1:60:100"),), level=0)


@pytest.fixture(scope="module")
def built(described_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_engines(described_bundle, tmp_path_factory.mktemp("engines") / "bundle", NARROW)


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "bundle")


def describe(folder: Path, **changes: object) -> None:
    for path in (folder / FOLDER).glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_cell(folder: Path) -> None:
    change_model(folder, folder, "cell", change_weight)


INCOMPATIBILITIES = {
    "no engines": (lambda f: shutil.rmtree(f / FOLDER), "has no TensorRT engines: adar-deploy build"),
    "older format": (
        lambda f: describe(f, schema=1),
        "built by an older version of adar-deploy, for other neighbour tables: build again",
    ),
    "other ONNX": (change_cell, r"cell-rtx\.engine, since it was built from a different cell\.onnx"),
    "other version": (
        lambda f: describe(f, version="0.9"),
        r"built with tensorrt-rtx 0\.9, but [\d.]+ is installed",
    ),
    "other inputs": (
        lambda f: describe(f, shapes=[{"nodez": [[1], [1], [1]]}]),
        r"encoder-rtx\.engine, since its profiles are for other inputs",
    ),
    "no profiles": (
        lambda f: describe(f, shapes=[]),
        r"encoder-rtx\.engine, since its profiles are for other inputs",
    ),
    "other ranks": (
        lambda f: describe(f, shapes=[{"features": [[], [], []]}]),
        r"encoder-rtx\.engine, since its profiles are for other inputs",
    ),
    "other rows": (
        lambda f: describe(f, profiles=[{key: [1, 20, 41] for key in "nmck"}]),
        r"encoder-rtx\.engine, since its profiles are for other inputs",
    ),
    "one is missing": (lambda f: (f / FOLDER / "head-rtx.json").unlink(), "there is no engine of the head"),
}


@pytest.mark.parametrize(("change", "message"), INCOMPATIBILITIES.values(), ids=INCOMPATIBILITIES)
def test_an_incompatible_engine(folder: Path, monkeypatch: pytest.MonkeyPatch, change, message: str) -> None:
    change(folder)
    simulate_gpu(monkeypatch, folder)
    with pytest.raises(BackendError, match=message) as caught:
        adar_runtime.load(folder, "tensorrt")
    assert "\n" not in str(caught.value)
    assert f"adar-deploy build {folder}" in str(caught.value)
    assert adar_runtime.load(folder, "auto").backend.name == "onnxruntime-cpu"
    rebuilt = adar_runtime.load(folder, "tensorrt", rebuild=True)
    assert rebuilt.run(SMALL, 3).backend == "tensorrt"


@pytest.mark.parametrize(
    ("capability", "fits"), [(75, False), (80, True), (89, True), (90, True), (120, True)]
)
def test_a_portable_engine_takes_ampere_and_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capability: int, fits: bool
) -> None:
    simulate_gpu(monkeypatch, folder, capability)
    if fits:
        assert adar_runtime.load(folder, "tensorrt").backend.name == "tensorrt"
    else:
        refused = r"refuses it on this GPU \(unsupported cc\); .* 8\.0 and later, and this GPU has 7\.5"
        with pytest.raises(BackendError, match=refused):
            adar_runtime.load(folder, "tensorrt")


def test_an_engine_for_another_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {one.onnx_model: (one, read_engine(folder, one)) for one in sidecars(folder)}
    shutil.rmtree(folder / FOLDER)
    write_engines(folder, {k: (replace(s, compute_capabilities=(86,)), e) for k, (s, e) in engines.items()})
    simulate_gpu(monkeypatch, folder, 89)
    with pytest.raises(BackendError, match=r"for compute capability 8\.6, and this GPU has 8\.9"):
        adar_runtime.load(folder, "tensorrt")
    write_engines(folder, engines)  # beside them, one that fits
    simulate_gpu(monkeypatch, folder, 89)
    assert adar_runtime.load(folder, "tensorrt").run(SMALL, 3).backend == "tensorrt"


def test_an_engine_of_the_other_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {one.onnx_model: (one, read_engine(folder, one)) for one in sidecars(folder)}
    shutil.rmtree(folder / FOLDER)
    other = {
        k: (replace(s, package="tensorrt", compute_capabilities=(89,)), e) for k, (s, e) in engines.items()
    }
    write_engines(folder, other)
    simulate_gpu(monkeypatch, folder, 89)
    with pytest.raises(BackendError, match="it was built with tensorrt, but tensorrt-rtx is installed"):
        adar_runtime.load(folder, "tensorrt")


def test_engines_of_tensorrt_run_in_the_same_loop(
    folder: Path, described_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the creation of contexts differs between the packages."""
    engines = {one.onnx_model: (one, read_engine(folder, one)) for one in sidecars(folder)}
    shutil.rmtree(folder / FOLDER)
    other = {
        k: (replace(s, package="tensorrt", compute_capabilities=(89,)), e) for k, (s, e) in engines.items()
    }
    write_engines(folder, other)
    device = simulate_gpu(monkeypatch, folder, 89)
    simulated = tensorrt.load_package()
    monkeypatch.setattr(tensorrt, "load_package", lambda _name=None: replace(simulated, name="tensorrt"))
    ours = adar_runtime.load(folder, "tensorrt").run(SMALL, 20, Final())
    reference = adar_runtime.load(described_bundle, "onnxruntime-cpu").run(SMALL, 20, Final())
    assert ours.alignment == pytest.approx(reference.alignment, rel=1e-5, abs=1e-6)
    assert "ICudaEngine.create_runtime_config" not in device.names


def test_a_changed_engine_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / FOLDER / "cell-rtx.engine").write_bytes(
        b"x" * next(s.bytes for s in sidecars(folder) if s.onnx_model == "cell")
    )
    simulate_gpu(monkeypatch, folder)
    with pytest.raises(BackendError, match=r"cell-rtx\.engine was changed after the build"):
        adar_runtime.load(folder, "tensorrt")


def test_an_engine_that_tensorrt_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deserializing returns None and raises no exception."""
    engines = {one.onnx_model: (one, read_engine(folder, one)) for one in sidecars(folder)}
    simulate_gpu(monkeypatch, folder)
    sidecar, _ = engines["cell"]
    content = b"x" * 100
    changed = replace(sidecar, bytes=100, engine_sha256=hashlib.sha256(content).hexdigest())
    write_engines(folder, {"cell": (changed, content)})
    with pytest.raises(BackendError, match=r"TensorRT cannot load cell-rtx\.engine: .*adar-deploy build"):
        adar_runtime.load(folder, "tensorrt")


def test_a_graph_outside_every_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = load_on_simulated_gpu(monkeypatch, folder)
    assert bundle.run(SMALL, 5).backend == "tensorrt"
    with pytest.raises(ProfileError) as caught:
        bundle.run(LARGE, 5)
    message = str(caught.value)
    assert "\n" not in message
    assert "outside every profile of encoder-rtx.engine" in message
    assert f"adar-deploy build {folder} --for GRAPH, or --rebuild" in message


def test_auto_uses_the_next_backend_for_a_graph_outside_every_profile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_gpu(monkeypatch, folder)
    bundle = adar_runtime.load(folder)
    assert [bundle.run(graph, 5).backend for graph in (SMALL, LARGE, SMALL)] == [
        "tensorrt",
        "onnxruntime-cpu",
        "tensorrt",
    ]


def test_a_foreign_engine_is_loaded_only_on_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    simulate_gpu(monkeypatch, folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert adar_runtime.load(folder).run(SMALL, 5).backend == "onnxruntime-cpu"
    assert adar_runtime.load(folder, "tensorrt").run(SMALL, 5).backend == "tensorrt"
    build_engines(folder, *read_bundle(folder), NARROW)
    simulate_gpu(monkeypatch, folder)  # registers the new engines
    assert adar_runtime.load(folder).run(SMALL, 5).backend == "tensorrt"


def test_without_a_home_folder_no_engine_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    simulate_gpu(monkeypatch, folder)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    trusted_engines.remember(["0" * 64])
    assert adar_runtime.load(folder).backend.name == "onnxruntime-cpu"


@pytest.mark.parametrize(
    "error", [EngineError("tensorrt_rtx is installed but cannot be loaded"), MissingExtraError("it", "rtx")]
)
def test_auto_uses_the_next_backend_if_tensorrt_cannot_be_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(_name: str | None = None) -> TensorRtPackage:
        raise error

    simulate_gpu(monkeypatch, folder)
    monkeypatch.setattr(tensorrt, "load_package", broken)
    assert adar_runtime.load(folder).backend.name == "onnxruntime-cpu"
    with pytest.raises(BackendError, match="tensorrt does not work here: "):
        adar_runtime.load(folder, "tensorrt")


def test_rebuild_adds_a_profile_for_a_graph_outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, folder)
    bundle = adar_runtime.load(folder, "tensorrt", rebuild=True)
    assert [bundle.run(graph, 5).backend for graph in (SMALL, LARGE, SMALL)] == ["tensorrt"] * 3
    cell = next(one for one in sidecars(folder) if one.onnx_model == "cell")
    assert [one.n for one in cell.profiles] == [(1, 20, 40), (1, 90, 113)]


def test_the_engine_refuses_a_wrong_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in checks this: a wrong profile must not go unnoticed."""
    options = replace(NARROW, profiles=(*NARROW.profiles, Profile.parse("n=1:90:180,m=1:200:400")))
    build_engines(folder, *read_bundle(folder), options)
    bundle, _ = load_on_simulated_gpu(monkeypatch, folder)
    assert bundle.run(LARGE, 5).backend == "tensorrt"
    monkeypatch.setattr(tensorrt.LoadedEngines, "profile", lambda *_: 0)
    with pytest.raises(BackendError, match="refused the shape of"):
        bundle.run(random_graph(100, 300), 5)


def test_threads_share_a_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start uses the engines of one build and its own session, even if others rebuild."""
    simulate_gpu(monkeypatch, folder)
    bundle = adar_runtime.load(folder, "tensorrt", rebuild=True)
    backend, graphs = bundle.backend, [SMALL, LARGE] * 4
    builds = []
    build = backend._build
    monkeypatch.setattr(backend, "_build", lambda profiles: (builds.append(profiles), build(profiles)))
    with ThreadPoolExecutor(len(graphs)) as pool:
        started = list(pool.map(backend.start, map(bundle.prepare, graphs)))
    assert len(builds) == 1
    assert len({id(one._session) for one in started}) == len(started)
    assert [len(one.state()["nodes"]) for one in started] == [graph.nodes for graph in graphs]


def test_the_next_backend_is_opened_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, folder)
    bundle = adar_runtime.load(folder)
    backend, opened, open_next = bundle.backend, [], bundle.backend._open_next

    def slowly():
        opened.append(1)
        time.sleep(0.2)
        return open_next()

    backend._open_next = slowly
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(backend.start, [bundle.prepare(LARGE)] * 4))
    assert {one.name for one in started} == {"onnxruntime-cpu"}
    assert len(opened) == 1


def test_the_manifest_does_not_hash_engines(folder: Path) -> None:
    """Engines are a cache: they may be added and deleted."""
    read_bundle(folder)
    build_engines(folder, *read_bundle(folder), NARROW)
    shutil.rmtree(folder / FOLDER)
    read_bundle(folder)


# Without a GPU


no_gpu = pytest.mark.skipif(device_problem() is None, reason="there is a GPU here")


@no_gpu
def test_no_gpu_is_one_clear_line(folder: Path) -> None:
    with pytest.raises(BackendError) as caught:
        adar_runtime.load(folder, "tensorrt")
    assert str(caught.value) == f"tensorrt does not work here: {device_problem()}; use onnxruntime-cpu"
    assert "tensorrt" not in available()
    assert adar_runtime.load(folder).backend.name == "onnxruntime-cpu"


@no_gpu
def test_the_real_cuda_runtime_reports_no_gpu_too() -> None:
    with pytest.raises(BackendError, match=r"^CUDA failed in cudaGetDeviceCount: [^\n]+$"):
        cuda.Cuda()


@pytest.mark.parametrize(
    ("missing", "message"),
    [({"tensorrt", "tensorrt_rtx"}, "no TensorRT is installed"), ({"cuda"}, "cuda-python is not installed")],
)
def test_the_error_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch, missing: set[str], message: str
) -> None:
    find = tensorrt.find_spec
    monkeypatch.setattr(tensorrt, "device_problem", lambda: None)
    for module in (tensorrt, device):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in missing else find(name))
    assert message in (tensorrt.TensorRtBackend.problem() or "")
