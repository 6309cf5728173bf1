"""New and changed nodes are answered from one kept inference."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_export import export_bundle
from adar_export.writer import open_unmeasured
from adar_runtime import AdamsBashforth2, Adaptive, Bundle, Euler, Final, Graph, Peak, Solver, StopRule, load
from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import checksum_of
from adar_runtime.errors import BundleError, DivergedError, GraphError, UsageError
from adar_runtime.graph import EDGE, GRAPH
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.interruption import interruptible
from adar_runtime.phases import context_files, incoming
from adar_runtime.phases.context import Asked, check_can_remember
from adar_runtime.phases.context_files import load_context
from adar_runtime.phases.kept_calls import Storage
from adar_runtime.phases.kept_edges import KeptEdges, most_edges
from adar_runtime.phases.remember import remember
from adar_train import AdaR, ModelConfig
from adar_train.runs import Run
from adar_train.untrained import trial_run
from tests.bundles import edit

N, F = 60, 6


def some_graph(seed: int = 0, described: int | None = None, **fields: object) -> Graph:
    random = np.random.default_rng(seed)
    return Graph(
        features=random.standard_normal((N, F)).astype(np.float32),
        edge_index=random.integers(0, N, (2, 5 * N)),
        target_features=random.standard_normal((described, F)).astype(np.float32) if described else None,
        **fields,  # type: ignore[arg-type]
    )


def opened(path: Path, run: Run) -> Bundle:
    folder = path / "bundle"
    folder.mkdir()
    bundle = open_unmeasured(run, folder)
    bundle.manifest = replace(bundle.manifest, convergence={"order": 1.0})  # so that it accepts all solvers
    return bundle


def trial(path: Path, graph: Graph, **settings: object) -> Run:
    targets = None if graph.target_features is not None else 3
    config = ModelConfig(F, targets, hidden=16, proxies=5, **settings)  # type: ignore[arg-type]
    return trial_run(path / "run", graph, config)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("plain")
    export_bundle(trial(path, some_graph()), path / "bundle", steps=(1,))
    return load(path / "bundle", threads=1)


@pytest.fixture(scope="module")
def smoothed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("smoothed")
    return opened(path, trial(path, some_graph(), smoothing=2))


def senders(graph: Graph, node: int) -> np.ndarray:
    source, target = graph.edge_index
    return np.unique(source[(target == node) & (source != node)])


def copies(graph: Graph, nodes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Features and edges of new nodes that equal these nodes of the graph."""
    sources = [senders(graph, node) for node in nodes]
    targets = [np.full(len(each), N + row) for row, each in enumerate(sources)]
    return graph.rows(0, N)[nodes], np.stack([np.concatenate(sources), np.concatenate(targets)])


SOLVERS = [Euler(), AdamsBashforth2(calls=7), Adaptive(tolerance=1e-2)]
RULES = [Final(), Peak(patience=2)]


@pytest.mark.parametrize("stop", RULES, ids=str)
@pytest.mark.parametrize("solver", SOLVERS, ids=["euler", "ab2", "adaptive"])
@pytest.mark.parametrize("kind", ["bundle", "smoothed"])
def test_a_copy_of_a_node_gets_the_answer_of_the_node(
    kind: str, solver: Solver, stop: StopRule, request: pytest.FixtureRequest
) -> None:
    """The copy receives what the node receives, so its answer is that of the full inference."""
    bundle: Bundle = request.getfixturevalue(kind)
    graph = some_graph(7)
    has_loop = set(graph.edge_index[0][graph.edge_index[0] == graph.edge_index[1]].tolist())
    chosen = [node for node in range(N) if node not in has_loop][:9]
    context = bundle.remember(graph, 20, stop, solver)
    expected = bundle.run(graph, 20, stop, solver)
    np.testing.assert_allclose(context.result.scores, expected.scores, rtol=1e-4, atol=1e-5)
    assert context.result.times == pytest.approx(expected.times)
    together = context.predict(*copies(graph, chosen))
    alone = [context.predict(*copies(graph, [node])).scores[0] for node in chosen]
    np.testing.assert_allclose(together.scores, expected.scores[chosen], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(alone, expected.scores[chosen], rtol=1e-4, atol=1e-5)
    assert together.best_time == pytest.approx(expected.best_time)


def deaf(path: Path, **settings: object) -> Bundle:
    """A model whose proxies and targets collect nothing from nodes."""
    run = trial(path, some_graph(), **settings)
    assert isinstance(run.model, AdaR)
    with torch.no_grad():
        for part in (run.model.cell.node_abstraction, run.model.cell.target_update):
            part.value.linear.weight.zero_()
            part.value.linear.bias.zero_()
    return opened(path, run)


def test_nodes_that_nobody_attends_to_get_the_answer_of_the_grown_graph(tmp_path: Path) -> None:
    """Without values, proxies and targets collect nothing from nodes, so a new node changes no other node."""
    bundle, graph, random = deaf(tmp_path), some_graph(3), np.random.default_rng(5)
    features = random.standard_normal((4, F)).astype(np.float32)
    from_kept = np.stack([random.integers(0, N, 12), N + random.integers(0, 4, 12)])
    among = N + np.array([[0, 1, 1, 3, 3], [1, 0, 2, 2, 3]])
    edges = np.concatenate([from_kept, from_kept[:, :2], among], axis=1)
    grown = Graph(
        np.concatenate([graph.rows(0, N), features]), np.concatenate([graph.edge_index, edges], axis=1)
    )
    for solver in (Euler(), AdamsBashforth2(calls=9)):
        expected = bundle.run(grown, 30, Final(), solver).scores
        context = bundle.remember(graph, 30, Final(), solver)
        np.testing.assert_allclose(
            context.predict(features, edges).scores, expected[N:], rtol=1e-4, atol=1e-5
        )
    back = np.concatenate([edges, edges[::-1, :12]], axis=1)
    np.testing.assert_array_equal(
        context.predict(features, back, hops=0).scores, context.predict(features, edges, hops=0).scores
    )
    grown = Graph(grown.features, np.concatenate([graph.edge_index, back], axis=1))
    expected = bundle.run(grown, 30, Final(), solver).scores[N:]
    errors = [
        np.abs(context.predict(features, back, hops=hops).scores - expected).max() for hops in (0, 1, 9)
    ]
    assert errors[0] > 10 * errors[1], "direct neighbours react"
    assert errors[2] < 1e-4, "all nodes that a new node reaches react"


@pytest.mark.parametrize("rounds", [0, 2])
def test_an_update_that_reaches_all_nodes_gives_the_answer_of_the_changed_graph(
    tmp_path: Path, rounds: int
) -> None:
    """Proxies and targets collect nothing, as above; later answers follow the changed edges too."""
    bundle, graph, random = deaf(tmp_path, smoothing=rounds), some_graph(3), np.random.default_rng(5)
    context = bundle.remember(graph, 12, Final())
    features, edge_index = graph.rows(0, N).copy(), graph.edge_index
    for nodes in ([4, 11], [11, 30], [7]):
        features[nodes] = random.standard_normal((len(nodes), F))
        now = np.stack([random.integers(0, N, 6), random.choice(nodes, 6)])
        edge_index = np.concatenate([edge_index[:, ~np.isin(edge_index[1], nodes)], now], axis=1)
        found = context.update(nodes, features[nodes], np.concatenate([now, [[1], [2]]], axis=1), hops=N)
        expected = bundle.run(Graph(features, edge_index), 12, Final()).scores
        np.testing.assert_allclose(found.scores, expected[nodes], rtol=1e-4, atol=1e-5)
    new = random.standard_normal((1, F)).astype(np.float32)
    ends = np.array([[9, 4, N, N], [N, N, 4, 30]])
    context.save(tmp_path / "context")
    grown = Graph(np.concatenate([features, new]), np.concatenate([edge_index, ends], axis=1))
    expected = bundle.run(grown, 12, Final()).scores[N:]
    for each in (context, load_context(bundle, tmp_path / "context")):
        np.testing.assert_allclose(each.predict(new, ends, hops=N).scores, expected, rtol=1e-4, atol=1e-5)


def test_the_work_for_a_hub_is_limited() -> None:
    """Node 0 receives from all others, node 1 from two; a new node sends to both, and one edge is allowed."""
    star = np.stack([np.arange(1, N), np.zeros(N - 1, np.int64)])
    edges = KeptEdges.of(Neighbours.of(np.concatenate([star, [[2, 3, 1], [1, 1, 5]]], axis=1), N))
    both, none = np.array([0, 1]), np.zeros(0, np.int64)
    assert edges.reacting(both, none, 1, N + 3).tolist() == [1, 0]
    assert edges.reacting(both, none, 1, N + 2).tolist() == [1]
    assert edges.reacting(both, none, 2, N + 2).tolist() == [1, 5]
    assert edges.reacting(both, none, 2, N + 5).tolist() == [1, 0, 5]
    assert edges.reacting(both, np.array([1]), 2, 10 * N).tolist() == [0]
    assert edges.reacting(both, none, 0, 10 * N).tolist() == []
    assert (most_edges(3), most_edges(10**6)) == (3000, 2**21)


def test_a_new_node_without_edges_depends_on_its_features_only(bundle: Bundle) -> None:
    context = bundle.remember(some_graph(), 12, Final())
    rows = np.random.default_rng(1).standard_normal((3, F)).astype(np.float32)
    all_rows = context.predict(rows).scores
    np.testing.assert_allclose(all_rows[2:], context.predict(rows[2:]).scores, rtol=1e-5, atol=1e-6)
    assert not np.allclose(all_rows[0], all_rows[1])


@pytest.mark.parametrize("kind", ["bundle", "smoothed"])
def test_an_update_without_a_change_gives_the_answer_of_the_graph(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    graph, nodes = some_graph(7), np.array([5, 2, 30])
    context = bundle.remember(graph, 20, Final(), AdamsBashforth2(calls=7))
    before = context.predict(*copies(graph, [9, 10])).scores
    ends = np.isin(graph.edge_index[1], nodes)
    found = context.update(nodes, graph.rows(0, N)[nodes], graph.edge_index[:, ends])
    np.testing.assert_allclose(found.scores, context.result.scores[nodes], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(context.predict(*copies(graph, [9, 10])).scores, before, rtol=1e-4, atol=1e-5)


def test_later_answers_use_an_updated_node(bundle: Bundle) -> None:
    graph = some_graph(7)
    context = bundle.remember(graph, 20, Final(), AdamsBashforth2(calls=7))
    new = np.ones((1, F), np.float32)
    neighbour, other = [[4], [N]], [[8], [N]]
    before = context.predict(new, neighbour).scores, context.predict(new, other).scores
    changed = context.update([4], graph.rows(4, 5) + 3, [[8, 9], [4, 4]], hops=0)
    assert not np.allclose(changed.scores, context.result.scores[[4]])
    assert not np.allclose(context.predict(new, neighbour).scores, before[0])
    np.testing.assert_array_equal(context.predict(new, other).scores, before[1])


def test_an_update_that_fails_changes_nothing(bundle: Bundle) -> None:
    graph = some_graph(7)
    context = bundle.remember(graph, 5, Final())
    question = copies(graph, [int(graph.edge_index[1][graph.edge_index[0] == 4][0])])
    before = context.predict(*question).scores
    with pytest.raises(DivergedError):
        context.update([4], np.full((1, F), 3e38), [[8], [4]])
    np.testing.assert_array_equal(context.predict(*question).scores, before)


def test_rows_may_be_in_a_file_and_in_16_bits(bundle: Bundle, tmp_path: Path) -> None:
    graph = some_graph(7)
    in_memory = bundle.remember(graph, 20, Final())
    in_file = bundle.remember(graph, 20, Final(), folder=tmp_path)
    half = bundle.remember(graph, 20, Final(), half=True)
    features, edges = copies(graph, [3, 4])
    expected = in_memory.predict(features, edges).scores
    np.testing.assert_array_equal(in_file.predict(features, edges).scores, expected)
    np.testing.assert_allclose(half.predict(features, edges).scores, expected, rtol=1e-2, atol=1e-2)
    assert half.bytes < in_memory.bytes
    in_file.update([3], features[:1], [[1], [3]])
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_described_targets_work(tmp_path: Path) -> None:
    graph = some_graph(7, described=4)
    bundle = opened(tmp_path, trial(tmp_path, graph))
    context = bundle.remember(graph, 10, Final())
    node = next(node for node in range(N) if node not in graph.edge_index[0, graph.edge_index[1] == node])
    expected = bundle.run(graph, 10, Final()).scores[[node]]
    np.testing.assert_allclose(context.predict(*copies(graph, [node])).scores, expected, rtol=1e-4, atol=1e-5)


def test_ids(bundle: Bundle) -> None:
    names = np.array([f"person {i}" for i in range(N)])
    context = bundle.remember(some_graph(7, ids=names), 5, Final())
    assert context.numbers(["person 3", "person 59"]).tolist() == [3, 59]
    new = np.ones((1, F), np.float32)
    edges = np.stack([context.numbers(["person 3"]), [N]])
    assert context.predict(new, edges, ids=["new"]).ids.tolist() == ["new"]
    assert context.predict(new, edges).ids is None
    assert context.update([3], new, [[1], [3]]).ids.tolist() == ["person 3"]
    with pytest.raises(GraphError, match="no node with the id 'nobody'"):
        context.numbers(["nobody"])
    with pytest.raises(GraphError, match=r"context\.numbers"):
        context.predict(new, [["person 3"], ["new"]])


def test_invalid_arguments(bundle: Bundle) -> None:
    context, new = bundle.remember(some_graph(7), 5, Final()), np.ones((1, F), np.float32)
    with pytest.raises(GraphError, match="takes 6"):
        context.predict(np.ones((1, 5)))
    with pytest.raises(GraphError, match="valid ids are 0–60"):
        context.predict(new, [[61], [60]])
    with pytest.raises(GraphError, match="has shape"):
        context.predict(new, [[1, 2, 3]])
    with pytest.raises(GraphError, match="twice"):
        context.update([1, 1], np.ones((2, F)), [[2], [1]])
    with pytest.raises(GraphError, match="2 rows, but there are 1 nodes"):
        context.update([1], np.ones((2, F)), [[2], [1]])
    with pytest.raises(UsageError, match="hops is -1"):
        context.predict(new, hops=-1)
    with pytest.raises(GraphError, match="no ids"):
        context.numbers([1])
    assert repr(context).startswith("Context(")
    rule, solver = bundle.stop_rule("final"), bundle.solver("euler")
    with pytest.raises(UsageError, match="choose at least 1 step"):  # the command's --max-steps 0
        remember(bundle, some_graph(7), 0, rule, solver, Storage())


def test_the_size_is_capped(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="allowed: use a solver with fewer calls"):
        bundle.remember(some_graph(), 10**9, Final(), "euler", max_bytes=100_000)
    with pytest.raises(UsageError, match="not a folder"):
        bundle.remember(some_graph(), 5, Final(), folder=tmp_path / "missing")
    needed = bundle.remember(some_graph(), 10, Final()).bytes
    assert bundle.remember(some_graph(), 10, Final(), max_bytes=needed).bytes == needed
    with pytest.raises(GraphError, match=r"larger limit .*max_bytes"):
        bundle.remember(some_graph(), 10, Final(), max_bytes=needed - 1)
    monkeypatch.setattr(memory, "limit_bytes", lambda: needed * 10)
    with pytest.raises(GraphError, match="fewer calls"):
        bundle.remember(some_graph(), 1000, Final(), "euler")


def test_an_answer_keeps_nothing_of_its_calls(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """What 200,000 new nodes sent in 300 calls took 3.5 GB in a server, for a request of 5 kB."""
    context = bundle.remember(some_graph(), 20, Final())
    compute, sent = context._compute, []

    def watched(asked: Asked, *, keep: bool) -> object:
        found = compute(asked, keep=keep)
        sent.append(len(found.sent))
        return found

    monkeypatch.setattr(context, "_compute", watched)
    context.predict(some_graph(1).rows(0, 1))
    context.update([4], some_graph(1).rows(0, 1), [[3], [4]])
    assert sent == [0, len(context.kept.calls)]


def test_new_nodes_that_do_not_fit_the_memory_are_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = bundle.remember(some_graph(), 5, Final())
    monkeypatch.setenv("ADAR_MAX_BYTES", "1000000")
    context.predict(np.zeros((500, F), np.float32))
    with pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        context.predict(np.zeros((5_000, F), np.float32))


def test_an_answer_can_be_interrupted(bundle: Bundle) -> None:
    context = bundle.remember(some_graph(), 20, Final())
    asked = iter([None, None])

    def check() -> None:
        if next(asked, GraphError("enough")) is not None:
            raise GraphError("enough")

    with interruptible(check), pytest.raises(GraphError, match="enough"):
        context.predict(some_graph(1).rows(0, 1))


def test_bundles_that_cannot_answer_for_new_nodes(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="places all nodes together"):
        check_can_remember(bundle.manifest, by_row=False)
    for level in (EDGE, GRAPH):
        with pytest.raises(UsageError, match="answers for nodes only"):
            check_can_remember(replace(bundle.manifest, level=level), by_row=True)
    with pytest.raises(UsageError, match="uses edge weights"):
        check_can_remember(replace(bundle.manifest, edge_weights=True, phases=None), by_row=True)


def test_a_bundle_without_phases_runs_and_says_what_is_missing(bundle: Bundle, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle.path, copy)
    for file in copy.glob("phase_*"):
        file.unlink()
    edit(copy, lambda manifest: manifest.pop("phases"))
    old = load(copy)
    assert len(old.run(some_graph(), 3).scores) == N
    with pytest.raises(UsageError, match="export the run again"):
        old.remember(some_graph(), 3)


@pytest.mark.parametrize("half", [False, True])
def test_a_saved_context_gives_the_same_answers(smoothed: Bundle, tmp_path: Path, half: bool) -> None:
    graph = some_graph(7, ids=[f"n{i}" for i in range(N)])
    context = smoothed.remember(graph, 20, Final(), AdamsBashforth2(calls=5), half=half)
    context.save(tmp_path / "context")
    again = load_context(smoothed, tmp_path / "context")
    question = copies(graph, [1, 5])
    np.testing.assert_array_equal(again.predict(*question).scores, context.predict(*question).scores)
    np.testing.assert_array_equal(again.result.scores, context.result.scores)
    assert again.result.stop_reason is context.result.stop_reason
    assert again.numbers(["n3"]).tolist() == [3]
    assert again.bytes == context.bytes
    changed = [4], graph.rows(9, 10), [[3, 8], [4, 4]]
    np.testing.assert_array_equal(again.update(*changed).scores, context.update(*changed).scores)
    np.testing.assert_array_equal(again.predict(*question).scores, context.predict(*question).scores)
    unchanged = load_context(smoothed, tmp_path / "context")  # an update stays in memory
    assert not np.array_equal(unchanged.kept.calls.rows[0], again.kept.calls.rows[0])


def test_processes_that_share_a_context_see_the_updates_of_each_other(
    smoothed: Bundle, tmp_path: Path
) -> None:
    graph = some_graph(7)
    context = smoothed.remember(graph, 20, Final(), AdamsBashforth2(calls=5))
    context.save(tmp_path / "context")
    one, other = (load_context(smoothed, tmp_path / "context", shared=True) for _ in range(2))
    changed, question = ([4], graph.rows(9, 10), [[3, 8], [4, 4]]), (graph.rows(0, 1), [[4, N], [N, 4]])
    before = other.predict(*question).scores
    assert one.update(*changed).scores.tolist() == context.update(*changed).scores.tolist()
    after = context.predict(*question).scores
    assert not np.array_equal(before, after)
    later = load_context(smoothed, tmp_path / "context", shared=True)
    for each in (one, other, later):
        each.kept.edges.take_over(*one.kept.edges.changes)
        np.testing.assert_array_equal(each.predict(*question).scores, after)


def test_an_update_that_diverges_changes_nothing(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = some_graph(7)
    context = bundle.remember(graph, 20, Final(), AdamsBashforth2(calls=5))
    question = graph.rows(0, 1), [[4], [N]]
    before = context.predict(*question).scores
    compute = context._compute
    with monkeypatch.context() as patched:  # the bounded velocity of this model does not diverge by itself
        patched.setattr(
            context,
            "_compute",
            lambda asked, keep: compute(asked, keep=keep)._replace(scores=np.full((1, 2), np.nan)),
        )
        with pytest.raises(DivergedError):
            context.update([4], graph.rows(9, 10), [[3, 8], [4, 4]])
    np.testing.assert_array_equal(context.predict(*question).scores, before)


CHANGES = {
    "a changed file": (
        lambda c: (c / "sent.npy").write_bytes(b"x" + (c / "sent.npy").read_bytes()[1:]),
        "changed",
    ),
    "a file with a hole of a gigabyte": (
        lambda c: os.truncate(c / "sent.npy", 2**30),
        "bytes to read, of which the disk has only",
    ),
    "a missing file": (lambda c: (c / "targets.npy").unlink(), "not a context"),
    "a changed manifest": (
        lambda c: (c / "context.json").write_text(
            (c / "context.json").read_text().replace("budget", "budgets")
        ),
        "damaged",
    ),
    "no manifest": (lambda c: (c / "context.json").unlink(), "not a context"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_context_is_refused(bundle: Bundle, tmp_path: Path, change: str) -> None:
    bundle.remember(some_graph(), 3, Final(), Euler()).save(tmp_path / "context")
    damage, words = CHANGES[change]
    damage(tmp_path / "context")
    with pytest.raises(GraphError, match=words):
        load_context(bundle, tmp_path / "context")


def test_fields_of_other_types_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    """34 of 171 changed contexts gave a traceback."""
    bundle.remember(some_graph(), 3, Final(), Euler()).save(tmp_path / "context")
    path = tmp_path / "context/context.json"
    raw = json.loads(path.read_text())
    for name, kept in raw["result"].items():
        for value in (None, [], {}, -1, 10**200, [None], 0.5, "a"):
            if name in ("class_names", "stop_reason") or (
                isinstance(value, str | dict) and isinstance(kept, type(value))
            ):
                continue
            changed = raw | {"result": raw["result"] | {name: value}}
            path.write_text(json.dumps(changed | {"checksum": checksum_of(changed)}))
            with pytest.raises(GraphError, match="damaged"):
                load_context(bundle, tmp_path / "context")


@pytest.mark.parametrize("changed", [{"class_names": ["a"]}, {"class_names": []}, {"regression": True}])
def test_a_result_that_does_not_fit_the_scores_is_refused(
    bundle: Bundle, tmp_path: Path, changed: dict[str, object]
) -> None:
    """A context with too few class names gave a traceback after the inference."""
    bundle.remember(some_graph(), 3, Final(), Euler()).save(tmp_path / "context")
    path = tmp_path / "context/context.json"
    raw = json.loads(path.read_text())
    raw["result"] |= changed
    path.write_text(json.dumps(raw | {"checksum": checksum_of(raw)}))
    with pytest.raises(GraphError, match="damaged"):
        load_context(bundle, tmp_path / "context")


def test_starts_whose_differences_wrap_around_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    bundle.remember(some_graph(), 3, Final(), Euler()).save(tmp_path / "context")
    path = tmp_path / "context/starts.npy"
    starts = np.load(path)
    starts[1:4] = [2**62, -(2**63), -(2**62)]
    np.save(path, starts)
    raw = json.loads((tmp_path / "context/context.json").read_text())
    raw["files"]["starts"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "context/context.json").write_text(json.dumps(raw | {"checksum": checksum_of(raw)}))
    with pytest.raises(GraphError, match="damaged"):
        load_context(bundle, tmp_path / "context")


def test_a_pipe_in_place_of_the_manifest_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    bundle.remember(some_graph(), 3, Final(), Euler()).save(tmp_path / "context")
    (tmp_path / "context/context.json").unlink()
    os.mkfifo(tmp_path / "context/context.json")
    with pytest.raises(GraphError, match="not a regular file"):
        load_context(bundle, tmp_path / "context")


def test_a_context_that_is_replaced_while_it_is_opened_is_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The hash of the old file was compared, and the rows of the new one were used."""
    path = tmp_path / "context"
    bundle.remember(some_graph(1), 3, Final(), Euler()).save(path)
    new = bundle.remember(some_graph(2), 3, Final(), Euler())
    before = context_files._sha256

    def replaced(file: Path) -> str:
        found = before(file)
        if file == path / "sent.npy":  # the last one
            monkeypatch.setattr(context_files, "_sha256", before)
            new.save(path)
        return found

    monkeypatch.setattr(context_files, "_sha256", replaced)
    with pytest.raises(GraphError, match="was replaced while it was opened"):
        load_context(bundle, path)


def test_a_context_of_another_bundle_is_refused(bundle: Bundle, smoothed: Bundle, tmp_path: Path) -> None:
    bundle.remember(some_graph(), 3, Final(), Euler()).save(tmp_path / "context")
    with pytest.raises(BundleError, match="another bundle"):
        load_context(smoothed, tmp_path / "context")


def test_sums_of_rows_are_the_same_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups are a dense product, large ones sums of slices; nodes may have no rows."""
    random = np.random.default_rng(2)
    pairs = np.stack([random.integers(0, 30, 40), random.choice([50, 51, 53], 40)])
    pairs = np.concatenate([pairs, [[50, 53], [53, 51]]], axis=1)
    rows, computed = random.standard_normal((60, 4)).astype(np.float32), np.array([53, 50, 52, 51])
    expected = np.zeros((4, 4))
    for source, target in {(int(s), int(t)) for s, t in pairs.T}:
        expected[computed.tolist().index(target)] += rows[source]
    for largest in (incoming.MOST_WEIGHTS, 0):
        monkeypatch.setattr(incoming, "MOST_WEIGHTS", largest)
        found = incoming.Incoming.of(pairs, computed)
        assert (found.kept.weights is None) == (largest == 0)
        anew = rows[computed][found.anew.sources]
        total = found.kept.sums(rows[found.kept.sources]) + found.anew.sums(anew)
        np.testing.assert_allclose(total, expected, atol=1e-5)
        assert found.share[2, 0] == 1.0, "node 52 receives nothing"
