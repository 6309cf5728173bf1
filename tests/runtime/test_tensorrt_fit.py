"""Engines that do not fit: which of the reasons it is, in one line, and what is done when told to."""

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
from adar_runtime.backends.tensorrt import cuda
from adar_runtime.backends.tensorrt.engines import FOLDER, ledger
from adar_runtime.backends.tensorrt.engines.build import Wish, build_engines
from adar_runtime.backends.tensorrt.engines.flavours import Flavour
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import read_engine, sidecars, write_engines
from adar_runtime.bundle.bundle import read_bundle
from adar_runtime.errors import BackendError, EngineError, MissingExtraError, ProfileError
from tests.bundles import change_model, change_weight
from tests.helpers import random_graph
from tests.runtime.acting import act, acted_bundle, with_engines

SMALL = random_graph(20, 60)
LARGE = random_graph(90, 200)
NARROW = Wish(flavour="rtx", profiles=(Profile.parse("n=1:20:40,m=1:60:100"),), level=0)


@pytest.fixture(scope="module")
def built(described_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_engines(described_bundle, tmp_path_factory.mktemp("engines") / "bundle", NARROW)


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "bundle")


def describe(folder: Path, **changes: object) -> None:
    for path in (folder / FOLDER).glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def of_another_model(folder: Path) -> None:
    change_model(folder, folder, "cell", change_weight)


MISFITS = {
    "no engines": (lambda f: shutil.rmtree(f / FOLDER), "has no TensorRT engines: adar-deploy build"),
    "other ONNX": (of_another_model, r"cell-rtx\.engine, since it was built from another cell\.onnx than"),
    "other version": (
        lambda f: describe(f, version="0.9"),
        r"built by tensorrt-rtx 0\.9, and [\d.]+ is installed",
    ),
    "other inputs": (
        lambda f: describe(f, shapes=[{"nodez": [[1], [1], [1]]}]),
        r"encoder-rtx\.engine, since its profiles are of other inputs",
    ),
    "no profiles": (
        lambda f: describe(f, shapes=[]),
        r"encoder-rtx\.engine, since its profiles are of other inputs",
    ),
    "other ranks": (
        lambda f: describe(f, shapes=[{"features": [[], [], []]}]),
        r"encoder-rtx\.engine, since its profiles are of other inputs",
    ),
    "one is missing": (lambda f: (f / FOLDER / "head-rtx.json").unlink(), "there is none of the head"),
}


@pytest.mark.parametrize(("change", "said"), MISFITS.values(), ids=MISFITS)
def test_an_engine_that_does_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change, said: str
) -> None:
    change(folder)
    act(monkeypatch, folder)
    with pytest.raises(BackendError, match=said) as caught:
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
    act(monkeypatch, folder, capability)
    if fits:
        assert adar_runtime.load(folder, "tensorrt").backend.name == "tensorrt"
    else:
        with pytest.raises(BackendError, match=r"compute capability 8\.0 and later, and this one has 7\.5"):
            adar_runtime.load(folder, "tensorrt")


def test_an_engine_for_another_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {one.graph: (one, read_engine(folder, one)) for one in sidecars(folder)}
    shutil.rmtree(folder / FOLDER)
    write_engines(folder, {k: (replace(s, compute_capabilities=(86,)), e) for k, (s, e) in engines.items()})
    act(monkeypatch, folder, 89)
    with pytest.raises(BackendError, match=r"for GPUs of compute capability 8\.6, and this one has 8\.9"):
        adar_runtime.load(folder, "tensorrt")
    write_engines(folder, engines)  # beside them, one that fits
    assert adar_runtime.load(folder, "tensorrt").run(SMALL, 3).backend == "tensorrt"


def test_an_engine_of_the_other_flavour(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {one.graph: (one, read_engine(folder, one)) for one in sidecars(folder)}
    shutil.rmtree(folder / FOLDER)
    other = {
        k: (replace(s, flavour="tensorrt", compute_capabilities=(89,)), e) for k, (s, e) in engines.items()
    }
    write_engines(folder, other)
    act(monkeypatch, folder, 89)
    with pytest.raises(BackendError, match="it was built by tensorrt, and tensorrt-rtx is what is installed"):
        adar_runtime.load(folder, "tensorrt")


def test_engines_of_tensorrt_run_by_the_same_loop(
    folder: Path, described_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way to make a context; all else has the same names in both."""
    engines = {one.graph: (one, read_engine(folder, one)) for one in sidecars(folder)}
    shutil.rmtree(folder / FOLDER)
    other = {
        k: (replace(s, flavour="tensorrt", compute_capabilities=(89,)), e) for k, (s, e) in engines.items()
    }
    write_engines(folder, other)
    device = act(monkeypatch, folder, 89)
    acted = tensorrt.flavour_of()
    monkeypatch.setattr(tensorrt, "flavour_of", lambda _name=None: replace(acted, name="tensorrt"))
    ours = adar_runtime.load(folder, "tensorrt").run(SMALL, 20, Final())
    reference = adar_runtime.load(described_bundle, "onnxruntime-cpu").run(SMALL, 20, Final())
    assert ours.alignment == pytest.approx(reference.alignment, rel=1e-5, abs=1e-6)
    assert "ICudaEngine.create_runtime_config" not in device.names


def test_an_engine_that_was_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / FOLDER / "cell-rtx.engine").write_bytes(
        b"x" * next(s.bytes for s in sidecars(folder) if s.graph == "cell")
    )
    act(monkeypatch, folder)
    with pytest.raises(BackendError, match=r"cell-rtx\.engine was changed after it was built"):
        adar_runtime.load(folder, "tensorrt")


def test_an_engine_that_tensorrt_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deserializing gives None, and no exception."""
    engines = {one.graph: (one, read_engine(folder, one)) for one in sidecars(folder)}
    act(monkeypatch, folder)
    sidecar, _ = engines["cell"]
    content = b"x" * 100
    changed = replace(sidecar, bytes=100, engine_sha256=hashlib.sha256(content).hexdigest())
    write_engines(folder, {"cell": (changed, content)})
    with pytest.raises(BackendError, match=r"TensorRT cannot load cell-rtx\.engine: .*adar-deploy build"):
        adar_runtime.load(folder, "tensorrt")


def test_a_graph_outside_every_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = acted_bundle(monkeypatch, folder)
    assert bundle.run(SMALL, 5).backend == "tensorrt"
    with pytest.raises(ProfileError) as caught:
        bundle.run(LARGE, 5)
    message = str(caught.value)
    assert "\n" not in message
    assert "outside every profile of encoder-rtx.engine" in message
    assert "--profile n=1:90:180,m=1:200:400,c=1:3:6,k=1:1:2" in message


def test_auto_goes_on_to_the_next_backend_for_a_graph_outside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act(monkeypatch, folder)
    bundle = adar_runtime.load(folder)
    assert [bundle.run(graph, 5).backend for graph in (SMALL, LARGE, SMALL)] == [
        "tensorrt",
        "onnxruntime-cpu",
        "tensorrt",
    ]


def test_an_engine_of_a_stranger_is_loaded_only_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    act(monkeypatch, folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of somebody else"))
    assert adar_runtime.load(folder).run(SMALL, 5).backend == "onnxruntime-cpu"
    assert adar_runtime.load(folder, "tensorrt").run(SMALL, 5).backend == "tensorrt"
    build_engines(folder, *read_bundle(folder), NARROW)
    act(monkeypatch, folder)  # the GPU has to know the new ones
    assert adar_runtime.load(folder).run(SMALL, 5).backend == "tensorrt"


def test_without_a_home_there_is_nothing_that_was_built_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    act(monkeypatch, folder)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    ledger.remember(["0" * 64])
    assert adar_runtime.load(folder).backend.name == "onnxruntime-cpu"


@pytest.mark.parametrize(
    "error", [EngineError("tensorrt_rtx is installed and cannot be loaded"), MissingExtraError("it", "rtx")]
)
def test_auto_goes_on_where_tensorrt_cannot_be_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(_name: str | None = None) -> Flavour:
        raise error

    act(monkeypatch, folder)
    monkeypatch.setattr(tensorrt, "flavour_of", broken)
    assert adar_runtime.load(folder).backend.name == "onnxruntime-cpu"
    with pytest.raises(BackendError, match="tensorrt does not work here: "):
        adar_runtime.load(folder, "tensorrt")


def test_rebuild_makes_room_for_a_graph_outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act(monkeypatch, folder)
    bundle = adar_runtime.load(folder, "tensorrt", rebuild=True)
    assert [bundle.run(graph, 5).backend for graph in (SMALL, LARGE, SMALL)] == ["tensorrt"] * 3
    cell = next(one for one in sidecars(folder) if one.graph == "cell")
    assert [one.n for one in cell.profiles] == [(1, 20, 40), (1, 90, 180)]


def test_a_profile_that_is_not_the_graph_s_is_refused_by_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stand-in is there for: a wrong profile must not pass for the right one."""
    wish = replace(NARROW, profiles=(*NARROW.profiles, Profile.parse("n=1:90:180,m=1:200:400")))
    build_engines(folder, *read_bundle(folder), wish)
    bundle, _ = acted_bundle(monkeypatch, folder)
    assert bundle.run(LARGE, 5).backend == "tensorrt"
    monkeypatch.setattr(tensorrt._Engines, "profile", lambda *_: 0)
    with pytest.raises(BackendError, match="refused the shape of"):
        bundle.run(random_graph(100, 300), 5)


def test_threads_share_a_bundle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start has engines of one build and a session of its own, whatever others do in the meantime."""
    act(monkeypatch, folder)
    bundle = adar_runtime.load(folder, "tensorrt", rebuild=True)
    backend, graphs = bundle.backend, [SMALL, LARGE] * 4
    builds = []
    build = backend._build
    monkeypatch.setattr(backend, "_build", lambda profiles: (builds.append(profiles), build(profiles)))
    with ThreadPoolExecutor(len(graphs)) as pool:
        started = list(pool.map(backend.start, graphs))
    assert len(builds) == 1
    assert len({id(one._session) for one in started}) == len(started)
    assert [len(one.state()["nodes"]) for one in started] == [graph.nodes for graph in graphs]


def test_the_next_backend_is_opened_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act(monkeypatch, folder)
    backend = adar_runtime.load(folder).backend
    opened, following = [], backend._following

    def slowly():
        opened.append(1)
        time.sleep(0.2)
        return following()

    backend._following = slowly
    with ThreadPoolExecutor(4) as pool:
        assert {one.name for one in pool.map(backend.start, [LARGE] * 4)} == {"onnxruntime-cpu"}
    assert len(opened) == 1


def test_a_manifest_s_hashes_know_nothing_of_engines(folder: Path) -> None:
    """A cache comes and goes."""
    read_bundle(folder)
    build_engines(folder, *read_bundle(folder), NARROW)
    shutil.rmtree(folder / FOLDER)
    read_bundle(folder)


# Where there is no GPU


no_gpu = pytest.mark.skipif(cuda.device_problem() is None, reason="there is a GPU here")


@no_gpu
def test_no_gpu_is_one_clear_line(folder: Path) -> None:
    with pytest.raises(BackendError) as caught:
        adar_runtime.load(folder, "tensorrt")
    assert str(caught.value) == f"tensorrt does not work here: {cuda.device_problem()}; use onnxruntime-cpu"
    assert "tensorrt" not in available()
    assert adar_runtime.load(folder).backend.name == "onnxruntime-cpu"


@no_gpu
def test_the_real_cuda_runtime_says_so_too() -> None:
    with pytest.raises(BackendError, match=r"^CUDA failed in cudaGetDeviceCount: [^\n]+$"):
        cuda.Cuda()


@pytest.mark.parametrize(
    ("missing", "said"),
    [({"tensorrt", "tensorrt_rtx"}, "no TensorRT is installed"), ({"cuda"}, "cuda-python is not installed")],
)
def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: set[str], said: str
) -> None:
    find = tensorrt.find_spec
    monkeypatch.setattr(tensorrt, "device_problem", lambda: None)
    for module in (tensorrt, cuda):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in missing else find(name))
    assert said in (tensorrt.problem() or "")
