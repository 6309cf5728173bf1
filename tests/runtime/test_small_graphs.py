"""Small graphs in batches give the results of single runs."""

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from adar_export import export_bundle
from adar_export.solver_proof import prove_many
from adar_runtime import Bundle, Graph, load
from adar_runtime.backends import prepared_batch
from adar_runtime.backends.onnxruntime.batch import OnnxBatch
from adar_runtime.backends.prepared_batch import EDGES, LARGEST, ROWS, PreparedBatch, batches
from adar_runtime.bundle import memory
from adar_runtime.bundle.manifest import BATCHED_CELL, LEAST_OUTPUTS, LEAST_SAME
from adar_runtime.bundle.small_graphs import groups, outcomes
from adar_runtime.errors import BackendError, BundleError, DivergedError, GraphError, UsageError
from adar_runtime.graph import EDGE, GRAPH, LEVELS, NODE
from adar_runtime.loop.solvers import AdamsBashforth2, Adaptive, Euler, Moves, Solver
from adar_runtime.loop.stopping import AtTime, Converged, Final, Peak, StopRule
from adar_train import ModelConfig
from adar_train.untrained import trial_run
from tests.bundles import edit

SIZES = (4, 31, 1, 12, 12, 60)


def small_graph(seed: int, nodes: int, level: str, described: int | None = None) -> Graph:
    random = np.random.default_rng(seed)
    return Graph(
        features=random.standard_normal((nodes, 6)).astype(np.float32),
        edge_index=random.integers(0, nodes, (2, 4 * nodes)),
        pairs=random.integers(0, nodes, (2, 9)) if level == EDGE else None,
        target_features=random.standard_normal((described, 6)).astype(np.float32) if described else None,
        level=level,
    )


def exported(path: Path, level: str = GRAPH, described: int | None = None, smoothing: int = 0) -> Bundle:
    config = ModelConfig(6, None if described else 3, hidden=16, proxies=5, level=level, smoothing=smoothing)
    run = trial_run(path / "run", small_graph(0, 20, level, described), config)
    export_bundle(run, path / "bundle", steps=(1,))
    return load(path / "bundle", threads=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(tmp_path_factory.mktemp("small"))


@pytest.fixture
def graphs() -> list[Graph]:
    return [small_graph(seed, nodes, GRAPH) for seed, nodes in enumerate(SIZES)]


def assert_same(
    bundle: Bundle, graphs: list[Graph], stop: StopRule, solver: Solver, budget: int = 24
) -> None:
    together = list(bundle.run_many(graphs, budget, stop, solver))
    for graph, found in zip(graphs, together, strict=True):
        alone = bundle.run(graph, budget, stop, solver)
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found.alignment, alone.alignment, rtol=1e-3, atol=1e-5)
        assert found.times == alone.times
        assert (found.best_step, found.stop_reason) == (alone.best_step, alone.stop_reason)


@pytest.mark.parametrize("solver", [Euler(), AdamsBashforth2(calls=7)], ids=["euler", "ab2"])
@pytest.mark.parametrize("stop", [Final(), AtTime(0.4), Peak(patience=2), Converged(0.3)], ids=str)
def test_every_rule_and_solver_gives_the_results_of_single_runs(
    bundle: Bundle, graphs: list[Graph], stop: StopRule, solver: Solver
) -> None:
    assert_same(bundle, graphs, stop, solver)


def test_each_graph_has_its_own_steps_with_an_adaptive_solver(bundle: Bundle, graphs: list[Graph]) -> None:
    solver = Adaptive(tolerance=1e-4, first=0.02)
    results = list(bundle.run_many(graphs, 200, Final(), solver))
    assert len({len(result.times) for result in results}) > 1
    for graph, found in zip(graphs, results, strict=True):
        alone = bundle.run(graph, 200, Final(), solver)
        np.testing.assert_allclose(found.times, alone.times, rtol=1e-2)
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("described", "smoothing"), [(None, 2), (4, 0)], ids=["smoothed", "described"])
def test_every_level_gives_the_results_of_single_runs(
    tmp_path: Path, level: str, described: int | None, smoothing: int
) -> None:
    bundle = exported(tmp_path, level, described, smoothing)
    graphs = [small_graph(seed, nodes, level, described) for seed, nodes in enumerate(SIZES)]
    assert_same(bundle, graphs, Peak(patience=3), Euler())


def test_graphs_may_describe_different_numbers_of_targets(tmp_path: Path) -> None:
    bundle = exported(tmp_path, NODE, described=4)
    sizes = ((5, 3), (9, 4), (7, 3), (12, 5))
    graphs = [small_graph(seed, nodes, NODE, targets) for seed, (nodes, targets) in enumerate(sizes)]
    assert_same(bundle, graphs, Final(), Euler())


class Picky:
    """Refuses graphs that move at more than a speed."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def moves(self, start: float, end: float, h: float) -> Moves:
        for move in Euler().moves(start, end, h):
            motion = yield move
            if motion.speed > self.limit:
                raise UsageError("too fast")


def test_a_solver_that_refuses_a_graph_stops_this_graph_alone(bundle: Bundle, graphs: list[Graph]) -> None:
    speeds = [max(step.motion.speed for step in bundle.loop(graph, 8, Final(), Euler())) for graph in graphs]
    limit = float(np.median(speeds))
    found = list(outcomes(bundle, graphs, 8, Final(), Picky(limit)))
    assert [isinstance(one, UsageError) for one in found] == [speed > limit for speed in speeds]
    assert {isinstance(one, UsageError) for one in found} == {True, False}


def test_scores_that_fail_for_a_graph_stop_this_graph_alone(
    bundle: Bundle, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = OnnxBatch.scores

    def failing(batch: OnnxBatch, index: int, *, kept: bool) -> np.ndarray:
        if index == 1:
            raise BackendError("the head failed")
        return scores(batch, index, kept=kept)

    monkeypatch.setattr(OnnxBatch, "scores", failing)
    found = list(outcomes(bundle, graphs, 8, Final(), Euler()))
    assert [isinstance(one, BackendError) for one in found].count(True) == 1


def test_a_solver_is_proven_on_many_graphs(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "stop_rule", lambda: Final())  # random weights have no clear peak
    graphs = [small_graph(seed, 3 + seed % 5, GRAPH) for seed in range(LEAST_OUTPUTS)]
    proof = prove_many(bundle, graphs)
    assert proof is not None
    assert (proof["solver"], proof["outputs"]) == ("ab2", LEAST_OUTPUTS)
    assert min(proof["same"], proof["same_at_exit"]) >= LEAST_SAME
    assert prove_many(bundle, graphs[1:]) is None  # too few to show that 99.9 % are equal


def test_graphs_share_calls(bundle: Bundle, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """Single runs are not used: they would give the same results, many times slower."""
    monkeypatch.setattr(Bundle, "run", None)
    assert len(list(bundle.run_many(graphs * 3, 5))) == 3 * len(graphs)


def test_one_bad_graph_does_not_stop_the_others(bundle: Bundle, graphs: list[Graph]) -> None:
    huge = replace(graphs[1], features=np.full((31, 6), 3e38, np.float32))
    other = Graph(features=np.zeros((3, 5), np.float32), edge_index=np.zeros((2, 0), np.int64), level=GRAPH)
    mixed = [graphs[0], huge, other, graphs[3]]
    found = list(outcomes(bundle, mixed, 10, Final(), Euler()))
    assert [type(each).__name__ for each in found] == ["Result", "DivergedError", "GraphError", "Result"]
    for index in (0, 3):
        np.testing.assert_allclose(
            found[index].scores,  # type: ignore[union-attr]
            bundle.run(mixed[index], 10, Final(), Euler()).scores,
            rtol=1e-3,
            atol=1e-5,
        )
    results = bundle.run_many([graphs[0], huge], 10, Final(), Euler())
    next(results)
    with pytest.raises(DivergedError):
        next(results)


def test_results_before_a_reading_error_come_first(bundle: Bundle, graphs: list[Graph]) -> None:
    def reading() -> Iterator[Graph]:
        yield from graphs
        raise GraphError("broken")

    results = bundle.run_many(reading(), 2)
    assert len([next(results) for _ in graphs]) == len(graphs)
    with pytest.raises(GraphError, match="broken"):
        next(results)


def test_batches_are_bounded_and_have_graphs_of_similar_sizes() -> None:
    sizes = np.random.default_rng(0).integers(1, LARGEST, 300)
    graphs = [small_graph(0, int(nodes), GRAPH) for nodes in sizes]
    found = batches(graphs)
    assert sorted(index for batch in found for index in batch) == list(range(300))
    for batch in found:
        assert len(batch) * max(graphs[index].nodes for index in batch) <= ROWS
        assert sum(graphs[index].edges for index in batch) <= EDGES
    padded = sum(len(batch) * max(graphs[index].nodes for index in batch) for batch in found)
    assert padded < 1.2 * sizes.sum()


def test_graphs_with_many_targets_are_in_small_batches() -> None:
    """The products of every two targets of each graph are in memory together."""
    graphs = [small_graph(seed, 4, GRAPH) for seed in range(20)]
    assert [len(batch) for batch in batches(graphs, 1_000)] == [8, 8, 4]
    assert [len(batch) for batch in batches(graphs, 10_000)] == [1] * 20


def test_graphs_of_a_bundle_with_many_proxies_are_in_small_batches(
    bundle: Bundle, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products of every two proxies too: 300 graphs of one node took 5 GB with 2,000 proxies."""
    assert bundle.small_graphs is not None
    monkeypatch.setattr(bundle.small_graphs, "_manifest", replace(bundle.manifest, proxies=2_000))
    assert max(map(len, bundle.small_graphs._batches(graphs))) == 2


def test_small_graphs_that_do_not_fit_the_memory_are_refused(
    bundle: Bundle, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAR_MAX_BYTES", str(memory.needed_bytes(graphs[2], bundle.manifest)))
    first, *_, last = outcomes(bundle, graphs[2::-1], 2, Final(), Euler())
    assert isinstance(last, GraphError)
    assert "ADAR_MAX_BYTES" in str(last)
    assert not isinstance(first, GraphError)


def test_wide_features_are_encoded_in_blocks(
    bundle: Bundle, graphs: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four sparse graphs of 3 kB with 300,000 columns took 5 GB."""
    monkeypatch.setattr(prepared_batch, "encoder_rows", lambda _: 10)
    prepared = PreparedBatch.of(graphs, bundle.manifest, by_row=bundle.by_row)
    blocks = list(prepared.feature_blocks())
    assert max(map(len, blocks)) == 10
    np.testing.assert_array_equal(
        np.concatenate(blocks), np.concatenate([graph.rows(0, graph.nodes) for graph in graphs])
    )
    assert_same(bundle, graphs, Final(), Euler())


def test_a_large_graph_is_alone_and_in_its_place() -> None:
    small, large = small_graph(0, 3, GRAPH), small_graph(0, LARGEST + 1, GRAPH)
    assert [len(group) for group in groups([small, small, large, small])] == [2, 1, 1]


def test_a_foreign_batched_cell_is_refused(bundle: Bundle, graphs: list[Graph], tmp_path: Path) -> None:
    """The same check as for the other models, when the batched cell is first used."""
    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    path = copy / f"{BATCHED_CELL}.onnx"
    model = onnx.load(path)
    next(node for node in model.graph.node if node.op_type == "Softmax").op_type = "LogSoftmax"
    content = model.SerializeToString()
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"sha256|bytes where"):
        list(load(copy).run_many(graphs, 2))
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit(copy, lambda manifest: manifest[BATCHED_CELL].update(facts))
    with pytest.raises(BundleError, match="not a model that this version"):
        list(load(copy).run_many(graphs, 2))


def test_a_bundle_without_a_batched_cell_runs_graphs_one_by_one(
    bundle: Bundle, graphs: list[Graph], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    edit(copy, lambda manifest: manifest.pop(BATCHED_CELL))
    old = load(copy)
    assert old.small_graphs is None
    assert len(list(old.run_many(graphs, 2))) == len(graphs)
