"""A graph store: written from graphs and tables, refused when it is damaged, and run part by part."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_export.writer import open_unmeasured
from adar_runtime import (
    AdamsBashforth2,
    Adaptive,
    Bundle,
    Euler,
    Final,
    Graph,
    Peak,
    Result,
    Solver,
    SparseRows,
    StopRule,
)
from adar_runtime.bundle import memory
from adar_runtime.errors import AdarWarning, DivergedError, GraphError, UsageError
from adar_runtime.graph import EDGE, EncodedColumn, FeatureEncoding
from adar_runtime.graph.formats import read_tables
from adar_runtime.graph.formats.npy import map_array
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.store import GraphStore, open_store, sources, table_blocks, write_store
from adar_runtime.graph.store.store import checksum_of
from adar_runtime.graph.store.write import Classes
from adar_runtime.phases.run_store import Plan, check_can_shard, loop_over_store
from adar_train import ModelConfig
from adar_train.untrained import trial_run

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

N, F, PARTS = 90, 6, 4


def some_graph(seed: int = 0, **fields: object) -> Graph:
    random = np.random.default_rng(seed)
    edges = random.integers(0, N, (2, 5 * N))
    edges[1, :60] = 3  # a hub
    return Graph(random.standard_normal((N, F)).astype(np.float32), edges, **fields)  # type: ignore[arg-type]


def sharded(path: Path, graph: Graph, parts: int = PARTS, part_of: np.ndarray | None = None) -> GraphStore:
    rows, edges = sources.GraphRows(graph), sources.edge_blocks(graph)
    write_store(path, rows, edges, parts, Classes.of(graph), part_of)
    store = open_store(path)
    store.check()
    return store


def opened(path: Path, graph: Graph, **settings: object) -> Bundle:
    targets = None if graph.target_features is not None else 3
    config = ModelConfig(F, targets, hidden=16, proxies=5, **settings)  # type: ignore[arg-type]
    (path / "bundle").mkdir()
    bundle = open_unmeasured(trial_run(path / "run", graph, config), path / "bundle")
    bundle.manifest = replace(bundle.manifest, convergence={"order": 1.0})  # so that it accepts all solvers
    bundle.threads = 1
    return bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return opened(tmp_path_factory.mktemp("plain"), some_graph())


@pytest.fixture(scope="module")
def smoothed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return opened(tmp_path_factory.mktemp("smoothed"), some_graph(), smoothing=2)


def run_store(
    bundle: Bundle, store: GraphStore, work: Path, stop: StopRule, solver: Solver, budget: int = 20
) -> Result:
    loop = loop_over_store(bundle, store, budget, stop, solver, Plan(work))
    for _ in loop:
        pass
    return loop.result()


def assert_same(got: Result, expected: Result) -> None:
    np.testing.assert_allclose(got.scores, expected.scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.predictions, expected.predictions)
    np.testing.assert_allclose(got.alignment, expected.alignment, rtol=1e-4, atol=1e-5)
    assert (got.best_step, got.stop_reason) == (expected.best_step, expected.stop_reason)


RUNS = [(Final(), Euler()), (Peak(patience=2), AdamsBashforth2(calls=7)), (Final(), Adaptive(tolerance=1e-2))]


@pytest.mark.parametrize(("stop", "solver"), RUNS, ids=["final-euler", "peak-ab2", "final-adaptive"])
@pytest.mark.parametrize("kind", ["bundle", "smoothed"])
@pytest.mark.parametrize("split", ["ranges", "random"])
def test_a_store_gets_the_answer_of_the_graph(
    kind: str, split: str, stop: StopRule, solver: Solver, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    graph = some_graph(7)
    part_of = None if split == "ranges" else np.random.default_rng(1).integers(0, PARTS, N)
    store = sharded(tmp_path / "store", graph, part_of=part_of)
    expected = bundle.run(graph, 12, stop, solver)
    assert_same(run_store(bundle, store, tmp_path / "work", stop, solver, 12), expected)


def test_states_are_those_of_one_process(bundle: Bundle, tmp_path: Path) -> None:
    graph = some_graph(3)
    plan = Plan(tmp_path / "work")
    by_parts = loop_over_store(bundle, sharded(tmp_path / "store", graph, 7), 9, Final(), Euler(), plan)
    for got, expected in zip(by_parts, bundle.loop(graph, 9, Final(), Euler()), strict=True):
        for name, array in expected.state().items():
            np.testing.assert_allclose(got.state()[name], array, atol=1e-5, err_msg=name)


def test_described_targets_sparse_features_and_ids(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    dense = random.standard_normal((N, F)).astype(np.float32) * (random.random((N, F)) < 0.3)
    starts = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    described = random.standard_normal((4, F)).astype(np.float32)
    fields = {"target_features": described, "class_names": list("abcd"), "ids": [f"n{i}" for i in range(N)]}
    edges = random.integers(0, N, (2, 200))
    sparse = Graph(SparseRows(starts, np.nonzero(dense)[1], dense[dense != 0], (N, F)), edges, **fields)
    store = sharded(tmp_path / "store", sparse, part_of=random.integers(0, PARTS, N))
    bundle = opened(tmp_path, sparse)
    got = run_store(bundle, store, tmp_path / "work", Final(), Euler(), 5)
    assert_same(got, bundle.run(Graph(dense, edges, **fields), 5, Final(), Euler()))
    assert got.class_names == ("a", "b", "c", "d")
    part = store.part(2)
    assert part.ids is not None
    assert part.ids.tolist() == [f"n{i}" for i in part.numbers]


def test_an_interrupted_inference_continues_after_its_last_step(bundle: Bundle, tmp_path: Path) -> None:
    """At every step: the calls before it are not computed again, and the answer is the same."""
    graph, stop, solver = some_graph(5), Peak(patience=1), AdamsBashforth2(calls=6)
    store, work = sharded(tmp_path / "store", graph), tmp_path / "work"
    expected = bundle.run(graph, 20, stop, solver)
    computed: list[int] = []

    def on_progress(done: int, _all: int, _late: str) -> None:
        computed.append(done)

    steps = 0
    while True:
        loop = loop_over_store(bundle, store, 20, stop, solver, Plan(work, on_progress=on_progress))
        computed.clear()
        for step in loop:
            if step.index == steps and not loop.ended:
                break
        assert len(computed) <= 3 * PARTS  # one step, and what a move back absorbs
        if loop.ended:
            break
        steps += 1
    assert steps > 2
    assert_same(loop.result(), expected)


def test_another_budget_or_store_does_not_continue(bundle: Bundle, tmp_path: Path) -> None:
    graph, work = some_graph(), tmp_path / "work"
    store = sharded(tmp_path / "store", graph)
    next(loop_over_store(bundle, store, 20, Final(), Euler(), Plan(work)))
    with pytest.raises(UsageError, match="another budget"):
        loop_over_store(bundle, store, 21, Final(), Euler(), Plan(work))
    with pytest.raises(UsageError, match="another store"):
        loop_over_store(bundle, sharded(tmp_path / "other", graph, 3), 20, Final(), Euler(), Plan(work))


def test_a_damaged_state_does_not_continue(bundle: Bundle, tmp_path: Path) -> None:
    store, work = sharded(tmp_path / "store", some_graph()), tmp_path / "work"
    loop = loop_over_store(bundle, store, 20, Final(), Euler(), Plan(work))
    next(loop), next(loop)
    state = json.loads((work / "state.json").read_text())
    path = work / f"00001/nodes-{state['position']['current']}.npy"
    content = bytearray(path.read_bytes())
    content[-400:] = bytes(400)
    path.write_bytes(content)
    with pytest.raises(GraphError, match="was damaged"):
        loop_over_store(bundle, store, 20, Final(), Euler(), Plan(work))


@pytest.mark.parametrize("position", [{"current": 3}, {"kept": "x"}, {"velocity": 2}, {"current": True}])
def test_a_state_that_cannot_be_does_not_continue(bundle: Bundle, tmp_path: Path, position: dict) -> None:
    """A KeyError."""
    store, work = sharded(tmp_path / "store", some_graph()), tmp_path / "work"
    next(loop_over_store(bundle, store, 20, Final(), Euler(), Plan(work)))
    state = json.loads((work / "state.json").read_text())
    state["position"] |= position
    (work / "state.json").write_text(json.dumps(state))
    with pytest.raises(GraphError, match="no such slot"):
        loop_over_store(bundle, store, 20, Final(), Euler(), Plan(work))


def test_numbers_that_stop_being_finite_name_the_shard_and_the_call(bundle: Bundle, tmp_path: Path) -> None:
    store, work = sharded(tmp_path / "store", some_graph()), tmp_path / "work"
    loop = loop_over_store(bundle, store, 20, Final(), Euler(), Plan(work))
    next(loop), next(loop)
    state = json.loads((work / "state.json").read_text())
    name = f"nodes-{state['position']['current']}.npy"
    nodes = np.load(work / "00002" / name)
    np.save(work / "00002" / name, np.full_like(nodes, np.nan))
    with pytest.raises(DivergedError, match=r"shard 2 .* cell call 2"):
        next(loop)


@pytest.mark.parametrize("size", [1e38, 3e38])
def test_huge_numbers_are_one_error_without_warnings(bundle: Bundle, tmp_path: Path, size: float) -> None:
    """Warnings of numpy were printed beside the error."""
    graph = some_graph()
    store = sharded(tmp_path / "store", replace(graph, features=size * np.sign(graph.rows(0, N))))
    with pytest.raises(DivergedError):
        for _ in loop_over_store(bundle, store, 5, Final(), Euler(), Plan(tmp_path / "work")):
            pass


def test_a_part_that_does_not_fit_the_memory_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    store = sharded(tmp_path / "store", some_graph())
    for limit, advice in ((memory.PROCESS + 15_000, r"--parts \d+\)"), (10**6, "allow more memory")):
        with pytest.raises(GraphError, match=advice):
            loop_over_store(bundle, store, 5, Final(), Euler(), Plan(tmp_path / "work", max_bytes=limit))


def test_a_store_of_another_width_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    graph = some_graph()
    store = sharded(tmp_path / "store", Graph(graph.rows(0, N)[:, :4], graph.edge_index))
    with pytest.raises(GraphError, match="4 features and the bundle takes 6"):
        loop_over_store(bundle, store, 5, Final(), Euler(), Plan(tmp_path / "work"))


def test_bundles_that_cannot_run_by_parts_are_refused(bundle: Bundle) -> None:
    for change, by_row, words in (
        ({"level": EDGE}, True, "for nodes only"),
        ({"edge_weights": True, "phases": None}, True, "edge weights"),
        ({}, False, "zero-shot"),
    ):
        with pytest.raises(UsageError, match=words):
            check_can_shard(replace(bundle.manifest, **change), by_row=by_row)


def test_parts_have_all_nodes_and_edges(tmp_path: Path) -> None:
    graph = some_graph(2)
    store = sharded(tmp_path / "store", graph, 5, np.random.default_rng(0).integers(0, 5, N))
    whole, numbers = Neighbours.in_graph(graph), np.concatenate([store.part(i).numbers for i in range(5)])
    for part in map(store.part, range(5)):
        rows = np.concatenate([part.numbers, numbers[part.outside]])
        found = part.neighbours
        for row, node in enumerate(part.numbers):
            sources_of_node = rows[found.sources[found.starts[row] : found.starts[row + 1]]]
            expected = whole.sources[whole.starts[node] : whole.starts[node + 1]]
            assert sorted(sources_of_node) == expected.tolist()
        received = [len(part.received_from(other)) > 0 for other in range(5)]
        assert part.senders() == np.flatnonzero(received).tolist()
    assert store.edges == len(whole.sources)


@pytest.mark.parametrize("degrees", [[0, 0, 0], [9, 0, 0], [0, 0, 9], [5, 5, 5, 5, 5, 500]])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_no_part_is_empty(degrees: list[int], parts: int, tmp_path: Path) -> None:
    target = np.repeat(np.arange(len(degrees)), degrees)
    graph = Graph(np.ones((len(degrees), 1)), np.stack([target * 0, target]))
    store = sharded(tmp_path / "store", graph, parts)
    assert store.parts == parts
    assert (np.diff(store.bounds) > 0).all()


DAMAGE = {
    "a changed number": lambda s: (s / "00001/x.npy").write_bytes(
        (s / "00001/x.npy").read_bytes()[:-1] + b"\1"
    ),
    "a missing file": lambda s: (s / "00002/starts.npy").unlink(),
    "a cut file": lambda s: (s / "00000/sources.npy").write_bytes(b"\x93NUMPY"),
    "a link": lambda s: (s / "00000/x.npy").unlink() or (s / "00000/x.npy").symlink_to(s / "00001/x.npy"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_refused(damage: str, tmp_path: Path) -> None:
    sharded(tmp_path / "store", some_graph())
    DAMAGE[damage](tmp_path / "store")
    with pytest.raises(GraphError, match="write it again"):
        open_store(tmp_path / "store").check()


def resealed(path: Path, file: str, array: np.ndarray) -> None:
    """Replace an array and its hash, as an attacker could."""
    import hashlib

    np.save(path / file, array, allow_pickle=True)
    manifest = json.loads((path / "store.json").read_text())
    part, name = file.split("/")
    digest = hashlib.sha256((path / file).read_bytes()).hexdigest()
    manifest["parts"][int(part)]["files"][name.removesuffix(".npy")]["sha256"] = digest
    manifest["checksum"] = checksum_of(manifest)
    (path / "store.json").write_text(json.dumps(manifest))


HOSTILE = {
    "a neighbour out of range": ("sources", lambda a: np.full_like(a, 10**6), "neighbour is in no part"),
    "a negative neighbour": ("sources", lambda a: np.full_like(a, -1), "neighbour is in no part"),
    "an outside node out of range": ("outside", lambda a: a + 10**9, "outside nodes are not in order"),
    "own nodes outside": ("outside", lambda a: np.sort(np.r_[a[:-1], 0]), "outside nodes are its own"),
    "starts that fall": ("starts", lambda a: a[::-1].copy(), "not in order"),
    "starts whose differences wrap around": (
        "starts",
        lambda a: np.r_[0, 2**62, -(2**63), -(2**62), a[4:]],
        "not in order",
    ),
    "neighbours in two dimensions": ("sources", lambda a: a[:, None].copy(), "not lists"),
    "a node twice": ("nodes", lambda a: np.full_like(a, 1), "in no part"),
    "other types": ("sources", lambda a: a.astype(np.float64), "other types"),
    "Python objects": ("x", lambda _: np.array([[print]], object), "not a readable .npy"),
    "times for features": ("x", lambda a: a.astype("M8[s]"), "another type"),
    "complex features": ("x", lambda a: a.astype(np.complex64), "another type"),
    "another width": ("x", lambda a: a[:, :2].copy(), "another shape"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_store_is_refused(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    sharded(path, some_graph())
    name, change, words = HOSTILE[attack]
    resealed(path, f"00000/{name}.npy", change(np.load(path / f"00000/{name}.npy")))
    with pytest.raises(GraphError, match=words):
        open_store(path).check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.update(nodes=m["nodes"] + 1), "do not have all nodes"),
        (lambda m: m.update(schema=99), "schema 99"),
        (lambda m: m["parts"][0]["files"].update({"../../x": {}}), "other files"),
        (lambda m: m.pop("parts"), "damaged"),
        (lambda m: m["parts"][0].update(nodes=float("inf")), "damaged"),
        (lambda m: m["parts"][0].update(nodes=10**200), "do not have all nodes"),
        (lambda m: m.update(features=float("inf")), "damaged"),
        (lambda m: m["parts"][0]["files"].update(x=5), "damaged"),
        (lambda m: m["parts"][0]["files"].pop("starts"), "other files"),
        (lambda m: m.update(edges=0), "its parts do not have 0 edges"),
    ],
)
def test_a_damaged_manifest_is_refused(change, words: str, tmp_path: Path) -> None:
    sharded(tmp_path / "store", some_graph())
    manifest = json.loads((tmp_path / "store/store.json").read_text())
    change(manifest)
    manifest["checksum"] = checksum_of(manifest)
    (tmp_path / "store/store.json").write_text(json.dumps(manifest))
    with pytest.raises(GraphError, match=words):
        open_store(tmp_path / "store").check()


def test_nodes_that_only_the_manifest_claims_take_no_memory(tmp_path: Path) -> None:
    sharded(tmp_path / "store", some_graph())
    path = tmp_path / "store/store.json"
    manifest = json.loads(path.read_text())
    for claims in (manifest, manifest["parts"][0]):
        claims["nodes"] += 10**13
    path.write_text(json.dumps(manifest | {"checksum": checksum_of(manifest)}))
    with pytest.raises(GraphError, match="nodes differ in number"):
        open_store(tmp_path / "store").check()


@pytest.mark.parametrize("name", ["00000/x.npy", "store.json"])
def test_files_that_never_end_are_refused(name: str, tmp_path: Path) -> None:
    """A pipe made `run` wait for ever, and a link to /dev/zero was read without end."""
    path = tmp_path / "store"
    sharded(path, some_graph())
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(GraphError, match="not a regular file"):
        open_store(path).check()
    (path / name).unlink()
    (path / name).symlink_to("/dev/zero")
    with pytest.raises(GraphError, match="symbolic links"):
        open_store(path).check()


@pytest.mark.parametrize("name", ["00002/sources.npy", "00000/x.npy"])
def test_files_that_are_small_on_the_disk_and_long_to_read_are_refused(name: str, tmp_path: Path) -> None:
    """A store of some kilobytes with a file of 8 TB was read for hours."""
    path = tmp_path / "store"
    sharded(path, some_graph())
    os.truncate(path / name, 2**30)
    with pytest.raises(GraphError, match=r"1,0.* bytes to read, of which the disk has only"):
        open_store(path).check()
    with pytest.raises(GraphError, match="bytes to read"):
        sources.read_nodes(sparse_features(tmp_path / "x.npy"), tmp_path / "spool", None, None)


def sparse_features(path: Path) -> Path:
    """Features of 2^28 nodes, in a file that has nothing but its header on the disk."""
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**28, 1)}
        np.lib.format.write_array_header_2_0(file, header)
        file.truncate(file.tell() + 2**30)
    return path


IDS = {
    "of another number": np.arange(1),
    "in two dimensions": np.zeros((N, 2), int),
    "with named columns": np.zeros(N, [("a", int)]),
    "beyond Unicode": np.full(N, 2**32 - 1, np.uint32).view("<U1"),
    "of half characters": np.full(N, 0xD800, np.uint32).view("<U1"),
}


@pytest.mark.parametrize("kind", IDS)
def test_hostile_ids_are_refused(kind: str, tmp_path: Path) -> None:
    sharded(tmp_path / "store", some_graph(ids=np.arange(N)), parts=1)
    resealed(tmp_path / "store", "00000/ids.npy", IDS[kind])
    with pytest.raises(GraphError, match="ids"):
        open_store(tmp_path / "store").check()


def test_a_header_that_numpy_cannot_tokenize_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00\x76\x00" + (b"(" * 60).ljust(117) + b"\n")
    with pytest.raises(GraphError, match=r"not a readable \.npy"):
        map_array(tmp_path / "a.npy")


def test_a_changed_manifest_is_refused(tmp_path: Path) -> None:
    sharded(tmp_path / "store", some_graph())
    path = tmp_path / "store/store.json"
    path.write_text(path.read_text().replace('"features": 6', '"features": 5'))
    with pytest.raises(GraphError, match="checksum"):
        open_store(tmp_path / "store")


@pytest.mark.parametrize("kind", ["counted", "integers", "words"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables_in_blocks_give_the_store_of_the_graph(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(table_blocks, "ROWS", 50)
    graph = some_graph(4)
    ids = {"counted": np.arange(N), "integers": np.arange(N)[::-1] * 7, "words": [f"n{i}" for i in range(N)]}
    names = np.array(ids[kind])
    columns = {"id": names} | {f"f{i}": graph.rows(0, N)[:, i] for i in range(F)} | {"label": ["a"] * N}
    edges = dict(zip(("source", "target"), names[graph.edge_index], strict=True))
    for stem, table in (("nodes", columns), ("edges", edges)):
        frame = pandas.DataFrame(table)
        if suffix == ".parquet":
            frame.to_parquet(tmp_path / f"{stem}{suffix}")
        else:
            frame.to_csv(tmp_path / f"{stem}{suffix}", index=False, sep="," if suffix == ".csv" else "\t")
    rows = sources.read_nodes(tmp_path / f"nodes{suffix}", tmp_path / "spool", None, None)
    found = sources.read_edges(tmp_path / f"edges{suffix}", rows.ids, None, None, both_ways=False)
    write_store(tmp_path / "store", rows, found, PARTS)
    expected = sharded(tmp_path / "expected", graph)
    got = open_store(tmp_path / "store")
    got.check()
    for number in range(PARTS):
        for name in ("starts", "sources", "outside", "x", "nodes"):
            np.testing.assert_array_equal(got.part(number).array(name), expected.part(number).array(name))
    assert (got.part(0).ids is None) == (kind == "counted")


TABLE_PAIRS = {
    "ids with zeros": ("id,a\n007,1\n008,2\n", "source,target\n007,008\n"),
    "ids that differ in zeros": ("id,a\nx,4\n007,1\n7,5\n8,6\n", "source,target\n007,8\n"),
    "ids with blanks": ("id,a\n 7,1\n8 ,2\n", "source,target\n7, 8\n"),
    "ids beyond 64 bits": ("id,a\n9223372036854775808,1\n2,2\n", "source,target\n2,9223372036854775808\n"),
    "dates": ("id,a\n2020-01-01,1\n2020-01-02,2\n", "source,target\n2020-01-01,2020-01-02\n"),
    "two columns of ids": ("a,node,id\n5,8,7\n3,7,8\n", "source,target\n7,8\n"),
    "masks": ("id,a,train_mask\n0,1,1\n1,2,0\n", "source,target\n0,1\n"),
    "two labels": ("id,a,label,y\n0,1,1,4\n1,2,0,5\n", "source,target\n0,1\n"),
    "headings with blanks": ("id, a\n0,1\n1,2\n", "source, target\n0,1\n"),
    "fractions in a later block": (
        "id,a\n" + "".join(f"{i},{i}\n" for i in range(40)) + "40,0.5\n",
        "source,target\n7,8\n",
    ),
    "ids with line breaks": (
        "id,a\n" + "".join(f'"x\n{i}",{i}\n' for i in range(40)),
        'source,target\n"x\n7","x\n8"\n',
    ),
}


@pytest.mark.filterwarnings("ignore:'label' became a feature")
@pytest.mark.parametrize("name", TABLE_PAIRS)
def test_tables_in_blocks_are_read_as_other_tables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_blocks, "TEXT_BYTES", 102)
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    nodes.write_text(TABLE_PAIRS[name][0])
    edges.write_text(TABLE_PAIRS[name][1])
    expected = read_tables(nodes, edges).graph
    rows = sources.read_nodes(nodes, tmp_path / "spool", None, None)
    found = np.concatenate(list(sources.read_edges(edges, rows.ids, None, None, both_ways=False)), axis=1)
    assert expected.ids is not None
    ids = np.arange(rows.nodes) if rows.ids is None else rows.ids
    assert (ids.dtype.kind, ids.tolist()) == (expected.ids.dtype.kind, expected.ids.tolist())
    np.testing.assert_array_equal(rows.take(np.arange(rows.nodes)), expected.features)
    np.testing.assert_array_equal(found, expected.edge_index)
    assert rows.encoding is not None
    assert expected.feature_encoding is not None
    assert rows.encoding.columns == expected.feature_encoding.columns


@pytest.mark.parametrize("nodes", ["id,a\n0,1\n#1,2\n", "y,a,id\nc,1,0\n%d,1,1\n", "#id,a\n0,1\n"])
def test_comments_in_blocks_are_refused(nodes: str, tmp_path: Path) -> None:
    """Other tables skip these lines, and a store would have a node for each."""
    (tmp_path / "nodes.csv").write_text(nodes)
    with pytest.raises(GraphError, match="like a comment"):
        sources.read_nodes(tmp_path / "nodes.csv", tmp_path / "spool", None, None)
    (tmp_path / "edges.csv").write_text("source,target\n#1,2\n1,2\n")
    with pytest.raises(GraphError, match="a line begins with #, like a comment"):
        list(sources.read_edges(tmp_path / "edges.csv", np.array(["#1", "2"]), None, None, both_ways=False))


@pytest.mark.parametrize("first", ["0,1", "u,v"])
def test_edges_in_blocks_need_a_known_header(first: str, tmp_path: Path) -> None:
    """Without one, the first edge would be lost."""
    path = tmp_path / "edges.csv"
    path.write_text(f"{first}\n1,2\n")
    with pytest.raises(GraphError, match="is not a known header: a header is source,target"):
        list(sources.read_edges(path, None, None, None, both_ways=False))
    source, target = first.split(",")
    [found] = sources.read_edges(path, None, source, target, both_ways=False)
    assert found.tolist() == [[1], [2]]


def test_a_word_among_numbers_is_an_unknown_node(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n1,02\n")
    with pytest.raises(GraphError, match="node '02' is not in the table of nodes"):
        list(sources.read_edges(tmp_path / "edges.csv", np.array([1, 2]), None, None, both_ways=False))


def test_a_store_of_other_columns_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """The columns of a table have an order, which a store of the same width may not have."""

    def encoding(names: str, **fields: bool) -> FeatureEncoding:
        return FeatureEncoding(tuple(EncodedColumn(name, "number") for name in names), **fields)

    model = encoding("abcdef", both_ways=True)
    store = sharded(tmp_path / "same", some_graph(feature_encoding=encoding("abcdef", both_ways=True)))
    manifest, plan = bundle.manifest, Plan(tmp_path / "work")
    bundle.manifest = replace(manifest, feature_encoding=model)
    try:
        loop_over_store(bundle, store, 5, Final(), Euler(), plan)
        other = sharded(tmp_path / "other", some_graph(feature_encoding=encoding("bacdef")))
        with pytest.raises(GraphError, match=r"encoded in another way .* data shard --features"):
            loop_over_store(bundle, other, 5, Final(), Euler(), plan)
        one_way = sharded(tmp_path / "one-way", some_graph(feature_encoding=encoding("abcdef")))
        with pytest.warns(AdarWarning, match="trained with the reverse of every edge"):
            loop_over_store(bundle, one_way, 5, Final(), Euler(), Plan(tmp_path / "other-work"))
    finally:
        bundle.manifest = manifest


def test_an_edge_to_an_unknown_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,a\nx,1\ny,2\n")
    (tmp_path / "edges.csv").write_text("source,target\nx,y\ny,z\n")
    rows = sources.read_nodes(tmp_path / "nodes.csv", tmp_path / "spool", None, None)
    with pytest.raises(GraphError, match="node 'z' is not in the table"):
        list(sources.read_edges(tmp_path / "edges.csv", rows.ids, None, None, both_ways=True))


def test_metis_cuts_fewer_edges_than_ranges(tmp_path: Path) -> None:
    pytest.importorskip("pymetis", reason="pymetis is not installed (extra scale)")
    from adar_runtime.graph.store.partition import metis_parts

    random = np.random.default_rng(0)
    order = random.permutation(400)  # a ring whose nodes are shuffled
    edges = np.stack([order, np.roll(order, 1)])
    graph = Graph(np.ones((400, 1)), np.concatenate([edges, edges[::-1]], axis=1))
    rows = sources.GraphRows(graph)
    by_ranges = write_store(tmp_path / "a", rows, sources.edge_blocks(graph), 4)
    by_metis = write_store(tmp_path / "b", rows, sources.edge_blocks(graph), 4, part_of=metis_parts(graph, 4))
    assert by_metis < 0.1 < by_ranges


def test_a_work_folder_can_be_removed(bundle: Bundle, tmp_path: Path) -> None:
    """The result does not need the folder once its rows are read."""
    store = sharded(tmp_path / "store", some_graph())
    result = run_store(bundle, store, tmp_path / "work", Final(), Euler(), 2)
    shutil.rmtree(tmp_path / "work")
    assert result.scores.shape == (N, 3)
    assert np.isfinite(result.scores).all()


def repeated(text: str, rows: int) -> object:
    """A column of one text, which takes a few bytes in a Parquet file."""
    codes = pyarrow.array(np.zeros(rows, np.int32))
    return pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array([text]))


NODE_TABLES = {
    "two equal names": ("n.csv", b"id,a,a\n1,2,3\n", "two columns have the name 'a'"),
    "another encoding": ("n.csv", b"id,a\n\xe9,1\nb,2\n", "not a readable table .*invalid UTF8"),
    "a date": ("n.csv", b"id,a\n1,2020-01-01\n", "column 'a' holds date32"),
    "a long id": ("n.csv", b"id,a\n" + b"x" * 10**6 + b",1\n" + b"y,1\n" * 2000, "would unpack from"),
    "one long id, repeated": ("n.parquet", {"id": ("x" * 10**5, 10**5), "a": (0.0, 10**5)}, "ADAR_MAX_BYTES"),
    "many columns": ("n.csv", b"id" + b",a" * 10**5 + b"\n", "at most 10,000 columns"),
    "lists": ("n.parquet", {"id": ([1], 2), "a": (0.0, 2)}, "column 'id' holds list"),
    "no columns": ("n.parquet", {}, "no columns"),
}


@pytest.mark.parametrize("name", NODE_TABLES)
def test_a_hostile_table_in_blocks_is_refused(name: str, tmp_path: Path) -> None:
    file, content, message = NODE_TABLES[name]
    if isinstance(content, bytes):
        (tmp_path / file).write_bytes(content)
    else:
        columns = {
            key: repeated(value, rows) if isinstance(value, str) else [value] * rows
            for key, (value, rows) in content.items()
        }
        parquet.write_table(pyarrow.table(columns), tmp_path / file)
    with pytest.raises(GraphError, match=message):
        sources.read_nodes(tmp_path / file, tmp_path / "spool", None, None)


def test_columns_that_are_not_needed_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some kB with many columns of zeros took more than a gigabyte; blocks have fewer rows now."""
    rows = 1000
    columns = {"id": np.arange(rows), "a": np.arange(rows), "text": repeated("x" * 10**6, rows)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "n.parquet")
    monkeypatch.setattr(table_blocks, "BLOCK_BYTES", 64 * 8 * 2)
    found = sources.read_nodes(tmp_path / "n.parquet", tmp_path / "spool", None, ["a"])
    assert found.features[:, 0].tolist() == list(range(rows))
    blocks = list(
        table_blocks.read_blocks(tmp_path / "n.parquet", lambda _: table_blocks.Chosen(["id"], ["a"]))
    )
    assert [len(block.ids[0]) for block in blocks] == [64] * 15 + [40]


@pytest.mark.filterwarnings("ignore:only 'source' and 'target'")
@pytest.mark.parametrize("end", ["", "\n", 40 * "\n"], ids=len)
def test_a_quote_that_is_not_closed_in_its_cell_is_refused_in_blocks(end: str, tmp_path: Path) -> None:
    """pyarrow reads the lines below as one cell: their rows were missing without a word."""
    rows, ids = 'source,target,why\n1,2,so\n2,1,"so\n1,1,so\n2,2,so', np.array([1, 2])
    first = 'source,target,why\n1,2,so\n"2,1,so\n1,1",so,so\n"2",2,so'
    for text, message in (
        (rows, r"edges\.csv: line 3 is not a valid table row \(a quote is opened and never closed"),
        (rows.replace("1,1,so", '1,1,"so"'), r"edges\.csv: line 3 has a quote .* which ends in line 4"),
        (first, "not in the table of nodes"),
    ):
        (tmp_path / "edges.csv").write_text(text + end)
        with pytest.raises(GraphError, match=message):
            list(sources.read_edges(tmp_path / "edges.csv", ids, None, None, both_ways=False))
    (tmp_path / "edges.csv").write_bytes(
        f'{rows}\xe9"{end}'.encode("latin-1")
    )  # closed; nobody needs the column
    [found] = sources.read_edges(tmp_path / "edges.csv", ids, None, None, both_ways=False)
    assert found.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_table_in_blocks_is_a_file(tmp_path: Path, make) -> None:
    make(tmp_path / "n.csv")
    with pytest.raises(GraphError, match="there is no such file"):
        sources.read_nodes(tmp_path / "n.csv", tmp_path / "spool", None, None)


@pytest.mark.filterwarnings("ignore:edges go from")
@pytest.mark.filterwarnings("ignore:only ")
def test_row_numbers_of_pandas_are_no_feature_and_no_ids_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(",id,x\n0,7,1.5\n1,8,2.5\n")
    with pytest.warns(AdarWarning, match="pandas writes row numbers"):
        found = sources.read_nodes(tmp_path / "n.csv", tmp_path / "spool", None, None)
    assert found.features.tolist() == [[1.5], [2.5]]
    parquet.write_table(pyarrow.table({"Unnamed: 0": [0], "u": [7], "v": [8]}), tmp_path / "e.parquet")
    [ends] = sources.read_edges(tmp_path / "e.parquet", found.ids, None, None, both_ways=False)
    assert ends.tolist() == [[0], [1]]
    with pytest.raises(UsageError, match="source and target are both 'v'"):
        list(sources.read_edges(tmp_path / "e.parquet", found.ids, "v", None, both_ways=False))
