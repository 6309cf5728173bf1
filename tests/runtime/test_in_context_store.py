"""A pretrained model on a graph store: the closed-form start and the label check of the whole graph."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_export import pretrained
from adar_runtime import (
    AdamsBashforth2,
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
from adar_runtime.errors import GraphError
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.store import GraphStore, open_store, sources, write_store
from adar_runtime.graph.store.store import checksum_of
from adar_runtime.graph.store.whole import whole_graph
from adar_runtime.graph.store.write import Classes
from adar_runtime.in_context.start import known_labels
from adar_runtime.phases.run_store import Plan, check_memory, loop_over_store
from tests.in_context_graphs import block_graph, labelled_graph, unrelated_graph, with_random_gates

PARTS = 4


def sparse(graph: Graph) -> Graph:
    """The graph without small features."""
    rows = graph.rows(0, graph.nodes)
    rows = rows * (np.abs(rows) > 1)
    starts = np.concatenate([[0], np.cumsum((rows != 0).sum(axis=1))])
    return replace(graph, features=SparseRows(starts, np.nonzero(rows)[1], rows[rows != 0], rows.shape))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "both": block_graph,
    "labels": lambda: replace(block_graph(seed=1), target_features=None),
    "descriptions": lambda: replace(block_graph(seed=2), train_mask=None, labels=None),
    "chance": unrelated_graph,
    "sparse": lambda: sparse(block_graph(seed=3)),
    "a class without known labels": lambda: replace(
        block_graph(seed=4), target_features=None, train_mask=(np.arange(240) < 40) & (np.arange(240) % 3 < 2)
    ),
}


def sharded(path: Path, graph: Graph, parts: int = PARTS) -> GraphStore:
    rows, edges = sources.GraphRows(graph), sources.edge_blocks(graph)
    part_of = np.random.default_rng(1).integers(0, parts, graph.nodes)
    write_store(path, rows, edges, parts, Classes.of(graph, known_labels(graph)), part_of)
    store = open_store(path)
    store.check()
    return store


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    pretrained._write(folder, with_random_gates(4), {"data": ["generated"]})
    opened = Bundle(folder, threads=1)
    opened.manifest = replace(opened.manifest, convergence={"order": 1.0})  # so that it accepts all solvers
    return opened


def run_store(bundle: Bundle, store: GraphStore, work: Path, stop: StopRule, solver: Solver) -> Result:
    loop = loop_over_store(bundle, store, 12, stop, solver, Plan(work))
    for _ in loop:
        pass
    return loop.result()


def assert_same(got: Result, expected: Result) -> None:
    np.testing.assert_allclose(got.scores, expected.scores, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(got.predictions, expected.predictions)
    np.testing.assert_allclose(got.alignment, expected.alignment, rtol=1e-4, atol=1e-5)
    assert (got.best_step, got.stop_reason) == (expected.best_step, expected.stop_reason)
    assert got.check == expected.check


RUNS = [(Final(), Euler()), (Peak(patience=1), AdamsBashforth2(calls=7))]


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize(("stop", "solver"), RUNS, ids=["final-euler", "peak-ab2"])
def test_a_store_gets_the_answer_of_the_graph(
    bundle: Bundle, kind: str, stop: StopRule, solver: Solver, tmp_path: Path
) -> None:
    graph = GRAPHS[kind]()
    store = sharded(tmp_path / "store", graph)
    expected = bundle.run(graph, 12, stop, solver)
    assert_same(run_store(bundle, store, tmp_path / "work", stop, solver), expected)


def test_hidden_labels_decide_over_shards_too(bundle: Bundle, tmp_path: Path) -> None:
    """Labels that the moves predict, and labels that only the start predicts."""
    for strength in (0.0, 1.0):
        graph, folder = labelled_graph(bundle, strength), tmp_path / str(strength)
        store = sharded(folder / "store", graph)
        result = run_store(bundle, store, folder / "work", Final(), Euler())
        assert_same(result, bundle.run(graph, 12, Final(), Euler()))
        assert result.check is not None
        assert result.check.strength == strength


def test_an_interrupted_inference_continues_after_its_last_step(bundle: Bundle, tmp_path: Path) -> None:
    """At every step: neither the start nor the calls before it are computed again."""
    graph, stop, solver = GRAPHS["both"](), Peak(patience=1), AdamsBashforth2(calls=6)
    store, work = sharded(tmp_path / "store", graph), tmp_path / "work"
    expected, steps = bundle.run(graph, 12, stop, solver), 0
    computed: list[int] = []
    plan = Plan(work, on_progress=lambda done, _all, _late: computed.append(done))
    while True:
        computed.clear()
        loop = loop_over_store(bundle, store, 12, stop, solver, plan)
        assert steps == 0 or len(computed) == PARTS  # only the sums of the last state
        for step in loop:
            if step.index == steps and not loop.ended:
                break
        if loop.ended:
            break
        steps += 1
    assert steps > 2
    assert_same(loop.result(), expected)


def test_an_interrupted_start_begins_again(bundle: Bundle, tmp_path: Path) -> None:
    graph, work = GRAPHS["both"](), tmp_path / "work"
    store = sharded(tmp_path / "store", graph)

    class StoppedError(Exception):
        pass

    def stop(done: int, _all: int, _late: str) -> None:
        if (work / "check" / "state.json").exists() and done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        loop_over_store(bundle, store, 12, Final(), Euler(), Plan(work, on_progress=stop))
    (work / "00001" / "place.npy").write_bytes(b"half of a file")
    result = run_store(bundle, store, work, Final(), Euler())
    assert_same(result, bundle.run(graph, 12, Final(), Euler()))
    assert not (work / "check").exists()


def test_the_whole_graph_of_a_store(tmp_path: Path) -> None:
    for name in ("both", "sparse", "descriptions"):
        graph = GRAPHS[name]()
        found = whole_graph(sharded(tmp_path / name, graph), tmp_path / f"{name}.raw")
        np.testing.assert_array_equal(found.rows(0, graph.nodes), graph.rows(0, graph.nodes))
        np.testing.assert_array_equal(known_labels(found), known_labels(graph))
        expected, got = Neighbours.in_graph(graph), Neighbours.in_graph(found)
        np.testing.assert_array_equal(got.sources, expected.sources)
        np.testing.assert_array_equal(got.starts, expected.starts)


def test_a_store_without_labels_and_descriptions_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    graph = replace(block_graph(), target_features=None, train_mask=None)
    store = sharded(tmp_path / "store", graph)
    with pytest.raises(GraphError, match="the store has neither"):
        loop_over_store(bundle, store, 12, Final(), Euler(), Plan(tmp_path / "work"))


def test_a_store_of_an_older_version_has_descriptions_only(bundle: Bundle, tmp_path: Path) -> None:
    graph = GRAPHS["descriptions"]()
    store = sharded(tmp_path / "store", graph)
    fields = json.loads((store.path / "store.json").read_text())
    del fields["classes"]
    sealed = fields | {"checksum": checksum_of(fields)}
    (store.path / "store.json").write_text(json.dumps(sealed))
    older = open_store(store.path)
    older.check()
    result = run_store(bundle, older, tmp_path / "work", Final(), Euler())
    assert_same(result, bundle.run(graph, 12, Final(), Euler()))


def test_a_start_that_does_not_fit_the_memory_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """The start counts the process itself, as a part does."""
    graph = block_graph()
    store = sharded(tmp_path / "store", graph)
    edges = np.random.default_rng(0).integers(0, graph.nodes, (2, 60_000))
    dense = replace(graph, edge_index=edges)  # a part needs more for each edge than the start
    of_parts = sharded(tmp_path / "one part", dense, parts=1)
    for each, beside, words in (
        (store, -memory.PROCESS + 10**5, "places all nodes in one process"),
        (store, 60_000, "places all nodes in one process"),
        (of_parts, 4_000_000, "write the store again"),
    ):
        with pytest.raises(GraphError, match=words):
            check_memory(each, bundle.manifest, memory.PROCESS + beside)


def test_sparse_features_count_in_the_memory_of_the_start(bundle: Bundle, tmp_path: Path) -> None:
    graph, limit = block_graph(width=2000), memory.PROCESS + 5 * 10**6
    check_memory(sharded(tmp_path / "dense", graph), bundle.manifest, limit)
    store = sharded(tmp_path / "sparse", sparse(graph))
    with pytest.raises(GraphError, match="places all nodes in one process"):
        check_memory(store, bundle.manifest, limit)


def test_damaged_labels_are_refused(tmp_path: Path) -> None:
    store = sharded(tmp_path / "store", block_graph())
    path = store.path / "known_y.npy"
    labels = np.load(path)
    np.save(path, labels[:-1])
    with pytest.raises(GraphError, match="was changed after it was written"):
        store.check()
    np.save(path, labels)
    manifest = json.loads((store.path / "store.json").read_text())
    for classes, words in (
        (2, "does not have the classes of its nodes"),
        (-1, "it has -1 classes"),
        (4, "4 classes have 3 descriptions"),
    ):
        changed = manifest | {"classes": classes}
        sealed = changed | {"checksum": checksum_of(changed)}
        (store.path / "store.json").write_text(json.dumps(sealed))
        with pytest.raises(GraphError, match=words):
            open_store(store.path).check()


def test_classes_without_labels_count_in_the_memory(bundle: Bundle, tmp_path: Path) -> None:
    """A manifest of a few bytes can claim 100,000 classes, and targets attend to each other."""
    store = sharded(tmp_path / "store", replace(block_graph(), target_features=None))
    claimed = replace(store, classes=100_000)
    plan = Plan(tmp_path / "work", max_bytes=20 * 2**30)
    with pytest.raises(GraphError, match="are allowed"):
        loop_over_store(bundle, claimed, 12, Final(), Euler(), plan)
