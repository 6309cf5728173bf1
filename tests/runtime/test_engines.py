"""TensorRT engines, built for real: no GPU is needed for that with tensorrt-rtx."""

import errno
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")

import tensorrt_rtx

from adar_export.graphs import build_graphs
from adar_export.precision import precision_of
from adar_runtime import Graph, tables
from adar_runtime.bundle import read_bundle
from adar_runtime.engines import FOLDER, build, flavours
from adar_runtime.engines.build import Wish, _Target, _TimingCache, build_engine, build_engines
from adar_runtime.engines.clock import clock_graph
from adar_runtime.engines.interrupts import held_back
from adar_runtime.engines.profiles import PROFILES, Profile, Range, Shapes
from adar_runtime.engines.progress import Phases
from adar_runtime.engines.sidecar import SUFFIX, Sidecar, read_engine, sha256, sidecars, write_engines
from adar_runtime.errors import BackendError, EngineError, MissingExtraError, UsageError
from adar_runtime.layouts import LAYOUTS
from adar_runtime.manifest import TABLES
from adar_runtime.neighbours import Neighbours
from adar_runtime.signature import STRUCTURES, expected
from adar_runtime.tables import JOIN_WIDTH, widest_join
from adar_train import AdaR, ModelConfig
from tests.helpers import awake
from tests.runtime.acting import QUICK, with_engines

RTX = flavours.flavour_of("rtx")
TARGET = _Target(RTX, ())


def graphs_of(model: AdaR, precision: str = "fp32") -> dict[str, bytes]:
    protos = build_graphs(model, 17, precision_of(precision))
    return {name: proto.SerializeToString() for name, proto in protos.items()}


@pytest.fixture(scope="module")
def model() -> AdaR:
    """As large as what `adar-deploy train` makes of the Minesweeper board."""
    return awake(ModelConfig(10, 2))


@pytest.fixture(scope="module")
def engines(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_engines(bundle_folder, tmp_path_factory.mktemp("engines") / "bundle")


@pytest.fixture
def bundle(bundle_folder: Path, tmp_path: Path) -> Path:
    """One that a test may change, without engines."""
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


# Building


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_every_graph_is_built_in_every_precision(model: AdaR, precision: str, bundle_folder: Path) -> None:
    manifest = read_bundle(bundle_folder)[0]
    config = model.config
    sized = replace(manifest, hidden=config.hidden, proxies=config.proxies, precision=precision)
    for name, content in graphs_of(model, precision).items():
        shapes = [PROFILES["small"].shapes(expected(sized)[name].inputs)]
        assert len(build_engine(name, content, TARGET, shapes, QUICK)) > 10_000


@pytest.mark.parametrize(
    "names", [["small"], ["medium"], ["large"], ["n=2:10000:1000000,m=1:80000:8000000,c=2"]]
)
def test_every_profile_is_built(bundle: Path, names: list[str]) -> None:
    built = build_engines(
        bundle, *read_bundle(bundle), replace(QUICK, profiles=tuple(map(Profile.parse, names)))
    )
    assert [one.graph for one in built] == ["encoder", "cell", "head", "clock"]
    cell = built[1]
    assert cell.profiles == tuple(Profile.parse(name) for name in names)
    assert set(cell.shapes[0]) == {
        port.name for port in read_bundle(bundle)[0].graphs["cell"].inputs if "n" in port.shape
    } | {port.name for port in STRUCTURES[TABLES]}


def test_several_profiles_and_gpus_in_one_engine(bundle: Path) -> None:
    wish = replace(QUICK, profiles=tuple(PROFILES.values()), capabilities=(80, 86, 89, 120))
    built = build_engines(bundle, *read_bundle(bundle), wish)
    assert built[1].file == "cell-rtx-sm80-sm86-sm89-sm120.engine"
    assert len(built[1].shapes) == 3
    assert list(sidecars(bundle)) == sorted(built, key=lambda one: one.file)


def test_an_engine_is_raw_bytes_with_its_description_beside_it(engines: Path) -> None:
    manifest, graphs = read_bundle(engines)
    for one in sidecars(engines):
        content = (engines / FOLDER / one.file).read_bytes()
        assert content == read_engine(engines, one)
        assert one.onnx_sha256 == sha256((graphs | {"clock": clock_graph(manifest.hidden)})[one.graph])
        assert (one.flavour, one.version, one.precision) == ("rtx", tensorrt_rtx.__version__, "fp32")
        raw = json.loads((engines / FOLDER / one.file).with_suffix(".json").read_text())
        assert raw["engine_sha256"] == sha256(content)
        assert Sidecar.from_json(one.to_json()) == one


def test_the_clock_is_no_shape_tensor() -> None:
    """Those live on the host, and a replay would read what was there when it was captured."""
    builder = tensorrt_rtx.Builder(RTX.log)
    network = RTX.create_network(builder)
    parser = tensorrt_rtx.OnnxParser(network, RTX.log)
    assert parser.parse(clock_graph(16))
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    tensors += [network.get_output(i) for i in range(network.num_outputs)]
    assert len(tensors) == 2 + 5
    assert not any(tensor.is_shape_tensor for tensor in tensors)


def test_the_builder_tells_how_far_it_is(bundle: Path) -> None:
    seen: list[tuple[str, float, str]] = []
    build_engines(bundle, *read_bundle(bundle), QUICK, lambda *told: seen.append(told))
    assert list(dict.fromkeys(graph for graph, _, _ in seen)) == ["encoder", "cell", "head", "clock"]
    done = [share for graph, share, _ in seen if graph == "cell"]
    assert min(done) == 0
    assert max(done[:-1]) > 0.8
    assert done[-1] == 1
    assert all(0 <= share <= 1 for share in done)
    assert any("graph" in phase for _, _, phase in seen)


def test_phases_within_phases_add_up() -> None:
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
    """Of tensorrt; rtx has the same calls, and warns that they do nothing."""
    path = tmp_path / "timing.cache"
    target = _Target(replace(RTX, name="tensorrt"), (89,))
    for _ in range(2):
        timing = _TimingCache.of(target, replace(QUICK, timing_cache=path), tmp_path)
        with pytest.warns(DeprecationWarning, match="no-ops in TensorRT-RTX"):
            build_engine("clock", clock_graph(8), target, [], QUICK, timing)
        timing.keep()
        assert path.stat().st_size
    assert _TimingCache.of(TARGET, QUICK, tmp_path)._path is None


# What cannot be built


def scatter(operator: str) -> bytes:
    """A sum over scattered edges, as plain exporters write it."""
    index = ["m", 4] if operator == "ScatterElements" else ["m", 1]
    node = helper.make_node(operator, ["sums", "index", "messages"], ["out"], "spread", reduction="add")
    graph = helper.make_graph(
        [node],
        "scatter",
        [
            helper.make_tensor_value_info("sums", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("index", TensorProto.INT64, index),
            helper.make_tensor_value_info("messages", TensorProto.FLOAT, ["m", 4]),
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.mark.parametrize("operator", ["ScatterElements", "ScatterND"])
def test_a_scatter_add_is_refused_by_name(operator: str) -> None:
    with pytest.raises(EngineError) as caught:
        build_engine("cell", scatter(operator), TARGET, [], QUICK)
    message = str(caught.value)
    assert f"the node 'spread' ({operator}) of cell.onnx" in message
    assert "reduction" in message.lower()
    assert "export without --plain" in message
    assert "\n" not in message


def test_what_is_no_onnx_file_is_refused() -> None:
    with pytest.raises(EngineError, match=r"TensorRT cannot read cell\.onnx: .*; export the run again"):
        build_engine("cell", b"not a model", TARGET, [], QUICK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shapes: shapes | {"nodez": shapes["nodes"]}, "has a shape for 'nodez', which is no input"),
        (lambda shapes: {k: v for k, v in shapes.items() if k != "leaf_3"}, "has no shape for 'leaf_3'"),
        (lambda shapes: shapes | {"lead": Shapes((), (), ())}, "has a shape for 'lead'"),
    ],
)
def test_a_profile_of_other_inputs_is_refused(bundle_folder: Path, change, said: str) -> None:
    """TensorRT itself takes any name."""
    manifest, graphs = read_bundle(bundle_folder)
    shapes = change(PROFILES["small"].shapes(manifest.graphs["cell"].inputs))
    with pytest.raises(EngineError, match=said):
        build_engine("cell", graphs["cell"], TARGET, [shapes], QUICK)


def test_a_profile_that_contradicts_itself_is_refused(bundle_folder: Path) -> None:
    manifest, graphs = read_bundle(bundle_folder)
    shapes = PROFILES["small"].shapes(manifest.graphs["cell"].inputs)
    shapes["nodes"] = Shapes((50, 16), (50, 16), (60, 16))
    shapes["place"] = Shapes((70,), (80,), (90,))
    with pytest.raises(EngineError, match=r"could not build an engine of cell\.onnx|refused a profile"):
        build_engine("cell", graphs["cell"], TARGET, [shapes], QUICK)


def test_a_workspace_that_is_too_small_leaves_no_file(bundle: Path) -> None:
    """The encoder could be built, the cell could not."""
    with pytest.raises(EngineError, match=r"could not build an engine of cell\.onnx.*--workspace"):
        build_engines(bundle, *read_bundle(bundle), replace(QUICK, workspace=2**26))
    assert not (bundle / FOLDER).exists()


def test_a_failure_leaves_older_engines_as_they_were(engines: Path) -> None:
    before = {path: path.read_bytes() for path in (engines / FOLDER).iterdir()}
    with pytest.raises(EngineError):
        build_engines(engines, *read_bundle(engines), replace(QUICK, workspace=2**26))
    assert {path: path.read_bytes() for path in (engines / FOLDER).iterdir()} == before


def test_a_full_disk_leaves_no_file(engines: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = {one.graph: (one, read_engine(engines, one)) for one in sidecars(engines)}
    real, written = Path.write_bytes, []

    def until_full(path: Path, content: bytes) -> int:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        return real(path, content)

    before = sorted(bundle.iterdir())
    monkeypatch.setattr(Path, "write_bytes", until_full)
    with pytest.raises(UsageError, match="No space left"):
        write_engines(bundle, built)
    assert sorted(bundle.iterdir()) == before


def raised() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("come", [raised, lambda: signal.raise_signal(signal.SIGINT)])
def test_ctrl_c_ends_a_build_and_leaves_no_file(bundle: Path, come: Callable[[], None]) -> None:
    """No exception may cross TensorRT's code, whether the display raises it or the interpreter does."""
    told = []

    def interrupt(graph: str, done: float, _phase: str) -> None:
        told.append((graph, done))
        if graph == "cell" and done:
            come()

    with pytest.raises(KeyboardInterrupt):
        build_engines(bundle, *read_bundle(bundle), QUICK, interrupt)
    assert not (bundle / FOLDER).exists()
    assert told[-1][0] == "cell"
    assert told[-1][1] < 0.5  # it gave up soon


def test_signals_are_heard_when_the_block_is_left() -> None:
    order = []
    with pytest.raises(KeyboardInterrupt):
        with held_back() as waiting:
            signal.raise_signal(signal.SIGINT)
            order.append(list(waiting.came))
        order.append("never")
    assert order == [[signal.SIGINT]]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish(profiles=()), "at least one profile"),
        (Wish(flavour="rtx", capabilities=(90,)), "--sm has 90: TensorRT-RTX builds for 80, 86, 89, 120"),
        (Wish(level=9), "optimization level is 9"),
        (Wish(workspace=0), "workspace"),
        (Wish(flavour="vulkan"), "there is no flavour 'vulkan' of TensorRT: choose tensorrt or rtx"),
    ],
)
def test_wishes_that_cannot_be(bundle: Path, wish: Wish, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build_engines(bundle, *read_bundle(bundle), wish)


def test_tensorrt_builds_only_where_there_is_a_gpu(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "flavour_of", lambda _name: replace(RTX, name="tensorrt"))
    monkeypatch.setattr(build, "device_problem", lambda: "there is no CUDA driver, hence no CUDA device")
    with pytest.raises(EngineError, match=r"tensorrt builds on the GPU .* no CUDA device: use --flavour rtx"):
        build_engines(bundle, *read_bundle(bundle), Wish(flavour="tensorrt"))


def test_flavours_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flavours, "find_spec", lambda _module: None)
    for name, extra in ((None, "rtx"), ("rtx", "rtx"), ("tensorrt", "tensorrt")):
        with pytest.raises(MissingExtraError, match=rf"pip install 'adar-deploy\[{extra}\]'"):
            flavours.flavour_of(name)


@pytest.mark.parametrize(("problem", "best"), [(None, "tensorrt"), ("no GPU", "rtx")])
def test_with_both_flavours_the_gpu_decides(monkeypatch: pytest.MonkeyPatch, problem, best) -> None:
    monkeypatch.setattr(flavours, "device_problem", lambda: problem)
    assert flavours._best(["tensorrt", "rtx"]) == best
    assert flavours._best(["rtx"]) == "rtx"


# Profiles


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tiny", "none of small, medium, large"),
        ("n=1:2:3,x=4", "none of small"),
        ("n=1:2:3,n=4", "each once"),
        ("m=1:2:3", "needs n"),
        ("n=3:2:1", "n=3:2:1 is no range"),
        ("n=0:1:2", "is no range"),
        ("n=1:2", "is no range"),
        ("n=a", "is no range"),
        (f"n={2**31}", "is no range"),
    ],
)
def test_profiles_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Profile.parse(text)


def test_a_number_alone_is_the_only_one() -> None:
    profile = Profile.parse("n=5:10:20,c=3")
    assert profile.c == Range(3, 3, 3)
    assert profile.m == Range(1, 80, 200)


def shapes_of(edges: np.ndarray, nodes: int) -> dict[str, tuple[int, ...]]:
    return {k: v.shape for k, v in LAYOUTS[TABLES](Neighbours.of(edges, nodes)).items()}


def assert_fits(profile: Profile, edges: np.ndarray, nodes: int) -> None:
    free = profile.shapes(STRUCTURES[TABLES])
    for name, shape in shapes_of(edges, nodes).items():
        least, likely, most = free[name]
        assert least <= likely <= most
        assert free[name].take(shape), (name, shape, free[name])


@pytest.mark.parametrize("text", ["n=1:1000:10000,m=1:5:10", "n=1,m=1", "n=2147483647"])
def test_what_was_left_out_of_a_profile_is_a_range_too(text: str) -> None:
    profile = Profile.parse(text)
    for least, likely, most in (*profile.to_dict().values(), *profile._sides().values()):
        assert 1 <= least <= likely <= most


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 3000), st.floats(0.0, 4.0), st.integers(0, 9))
def test_tables_of_any_graph_fit_the_profile_of_its_sizes(n: int, m: int, skew: float, seed: int) -> None:
    """From even degrees to a few hubs that hold nearly all edges."""
    random = np.random.default_rng(seed)
    popular = (random.random(m) ** (1 + skew) * n).astype(np.int64)
    edges = np.stack([random.integers(0, n, m), popular])
    assert_fits(Profile.of({"n": Range(1, n, n), "m": Range(1, m, m)}), edges, n)


def star(spokes: int) -> np.ndarray:
    """All nodes send to node 0, and each to the next."""
    nodes = np.arange(spokes)
    return np.concatenate([np.stack([nodes, 0 * nodes]), np.stack([nodes, (nodes + 1) % spokes])], axis=1)


@pytest.mark.parametrize("hub", [30_000, 40_000, 99_999])
def test_a_hub_among_short_lists_fits_the_profile_of_its_graph(hub: int) -> None:
    """Rows as short as its neighbours' lists would be fewest entries, and the hub's too many to join."""
    nodes, random = 100_000, np.random.default_rng(0)
    targets = np.repeat(np.arange(nodes), random.integers(1, 9, nodes))
    edges = np.stack([random.integers(0, nodes, len(targets)), targets])
    edges = np.concatenate([edges, np.stack([np.arange(hub), np.full(hub, 7)])], axis=1)
    graph = Graph(np.zeros((nodes, 1)), edges)
    assert_fits(Profile.around(graph), edges, nodes)


def test_a_hub_that_no_row_is_wide_enough_for() -> None:
    longest = 3_000_000
    width = tables._full_width(np.array([longest, 1, 2, 3]))
    assert JOIN_WIDTH < -(-longest // width) <= widest_join(longest)
    assert Profile.of({"n": Range(1, longest, longest)})._sides()["join_width"].most == widest_join(longest)


def test_a_hub_s_tables_are_built_for(bundle_folder: Path) -> None:
    spokes = 40_000
    edges = star(spokes)
    profile = Profile.of({"n": Range(1, spokes, spokes), "m": Range(1, edges.shape[1], edges.shape[1])})
    assert max(shape[1] for name, shape in shapes_of(edges, spokes).items() if name.startswith("join")) > 50
    for wide in (profile, PROFILES["medium"], PROFILES["large"]):
        assert_fits(wide, edges, spokes)
    manifest, graphs = read_bundle(bundle_folder)
    shapes = profile.shapes(manifest.graphs["cell"].inputs)
    assert build_engine("cell", graphs["cell"], TARGET, [shapes], QUICK)


# What stands beside an engine


CHANGES = {
    "no JSON": lambda _: "{",
    "a list": lambda _: "[]",
    "another schema": lambda raw: json.dumps(raw | {"schema": 99}),
    "a field less": lambda raw: json.dumps({k: v for k, v in raw.items() if k != "bytes"}),
    "a field more": lambda raw: json.dumps(raw | {"more": 1}),
    "a number for text": lambda raw: json.dumps(raw | {"version": 7}),
    "shapes that are none": lambda raw: json.dumps(raw | {"shapes": [{"nodes": "abc"}]}),
    "sizes that are none": lambda raw: json.dumps(raw | {"profiles": [{"n": [1]}]}),
    "another place": lambda raw: json.dumps(raw | {"graph": "../../cell"}),
    "another name": lambda raw: json.dumps(raw | {"graph": "head"}),
    "far too large": lambda raw: json.dumps(raw) + " " * 2**20,
    "deep": lambda _: "[" * 100_000,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_description_that_is_none_is_passed_over(engines: Path, tmp_path: Path, change) -> None:
    folder = shutil.copytree(engines, tmp_path / "bundle")
    path = folder / FOLDER / "cell-rtx.json"
    path.write_text(change(json.loads(path.read_text())))
    assert [one.graph for one in sidecars(folder)] == ["clock", "encoder", "head"]


def test_links_are_not_followed(engines: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(engines, tmp_path / "bundle")
    for name in ("cell-rtx.json", f"head-rtx{SUFFIX}"):
        (folder / FOLDER / name).rename(tmp_path / name)
        (folder / FOLDER / name).symlink_to(tmp_path / name)
    found = {one.graph: one for one in sidecars(folder)}
    assert "cell" not in found
    with pytest.raises(BackendError, match="is not the file that was built"):
        read_engine(folder, found["head"])


def test_a_folder_that_leads_elsewhere_is_left_alone(engines: Path, bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(engines / FOLDER, tmp_path / "elsewhere")
    (bundle / FOLDER).symlink_to(tmp_path / "elsewhere")
    assert not list(sidecars(bundle))
    before = sorted((tmp_path / "elsewhere").iterdir())
    with pytest.raises(UsageError, match="leads out of the bundle"):
        build_engines(bundle, *read_bundle(bundle), QUICK)
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


def test_an_engine_that_was_changed_is_refused(engines: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(engines, tmp_path / "bundle")
    found = next(iter(sidecars(folder)))
    path = folder / FOLDER / found.file
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(BackendError, match="was changed after it was built: build it again"):
        read_engine(folder, found)
    path.unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        read_engine(folder, found)
