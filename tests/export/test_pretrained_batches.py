"""Small graphs of the pretrained model in batches: the answers of single runs."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_export import pretrained
from adar_export.batch_proof import compare_batch
from adar_runtime import Bundle, Graph, load
from adar_runtime.backends.onnxruntime.backend import OnnxCpuBackend
from adar_runtime.backends.prepared_batch import LARGEST
from adar_runtime.bundle.small_graphs import outcomes
from adar_runtime.errors import AdarError, ExportError, GraphError, UsageError
from adar_runtime.loop.result import Result
from adar_runtime.loop.solvers import AdamsBashforth2, Adaptive, Euler, Solver
from adar_runtime.loop.stopping import AtTime, Converged, Final, Peak, StopRule
from adar_train.equivariant import EquivariantAdaR
from tests.in_context_graphs import block_graph, with_random_gates

NO_EDGES = np.zeros((2, 0), np.int64)


def sometimes_useful() -> EquivariantAdaR:
    """With labels, nodes move towards the mean of their neighbours, which helps some graphs."""
    model = with_random_gates()
    with torch.no_grad():
        for gates in (model.cell.node_gates[1], model.cell.target_gates[1]):
            gates.out.weight *= 0.1
        model.cell.node_gates[1].out.bias[0] = 1.0
    return model


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    pretrained._write(folder, sometimes_useful(), {"data": ["generated"]})
    found = load(folder, threads=1)
    found.manifest = replace(found.manifest, convergence={"order": 1.0})  # so that it takes every solver
    return found


def alone(bundle: Bundle) -> Bundle:
    """The same bundle without batches, also for the label check."""
    single = copy(bundle)
    single.small_graphs = None
    return single


def some_graphs() -> list[Graph]:
    """All tasks, 2 to 12 classes, 1 to 120 nodes, and 5 to 40 columns."""
    sizes = ((40, 2, 24), (120, 5, 24), (60, 12, 40), (24, 3, 5), (90, 8, 16))
    both = [block_graph(*size, seed=seed) for seed, size in enumerate(sizes)]
    described = [replace(graph, train_mask=None) for graph in both]
    labelled = [replace(graph, target_features=None) for graph in both]
    lone = Graph(both[0].rows(0, 1), NO_EDGES, target_features=both[0].target_features)
    weights = np.random.default_rng(0).uniform(0.1, 3, both[1].edges).astype(np.float32)
    changed = [replace(both[1], edge_index=NO_EDGES), replace(both[1], edge_weight=weights)]
    return [*both, *described, *labelled, lone, *changed]


def assert_same(bundle: Bundle, graphs: Sequence[Graph], stop: StopRule, solver: Solver, budget: int) -> None:
    together = list(bundle.run_many(graphs, budget, stop, solver))
    for graph, found in zip(graphs, together, strict=True):
        single = alone(bundle).run(graph, budget, stop, solver)
        np.testing.assert_allclose(found.scores, single.scores, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found.alignment, single.alignment, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found.times, single.times, rtol=1e-3)
        assert (found.best_step, found.stop_reason) == (single.best_step, single.stop_reason)
        assert found.check == single.check


@pytest.mark.parametrize(
    ("stop", "solver"),
    [
        (Final(), Euler()),
        (AtTime(0.4), AdamsBashforth2(calls=6)),
        (Peak(patience=2), Euler()),
        (Converged(0.3), Euler()),
        (Final(), Adaptive(tolerance=1e-3, first=0.05)),
    ],
    ids=str,
)
def test_batches_give_the_results_of_single_runs(bundle: Bundle, stop: StopRule, solver: Solver) -> None:
    graphs = some_graphs()
    if isinstance(stop, Peak):  # one node has equal scores, and the peak of their rounding errors is chance
        graphs = [graph for graph in graphs if graph.nodes > 1]
    assert_same(bundle, graphs, stop, solver, 10)


def test_the_graphs_of_a_batch_have_different_classes_and_tasks(bundle: Bundle) -> None:
    graphs = some_graphs()
    assert bundle.small_graphs is not None
    first, *_ = (batch for batch in bundle.small_graphs._batches(graphs) if len(batch) > 8)
    chosen = [graphs[index] for index in first]
    assert {graph.targets for graph in chosen} == {2, 3, 5, 8}
    assert {graph.train_mask is None for graph in chosen} == {True, False}


def test_both_strengths_are_chosen_in_one_batch(bundle: Bundle) -> None:
    results = list(bundle.run_many([each for each in some_graphs() if each.targets <= 8], 8))
    assert {result.check.strength for result in results if result.check is not None} == {0.0, 1.0}
    assert len({result.cell_calls for result in results}) == 1


def test_half_precision_gives_the_results_of_single_runs(tmp_path: Path) -> None:
    pretrained._write(tmp_path, with_random_gates(), {"data": ["generated"]}, "fp16")
    exported, graphs = load(tmp_path, threads=1), [each for each in some_graphs() if each.train_mask is None]
    for graph, found in zip(graphs, exported.run_many(graphs, 8, "final", "euler"), strict=True):
        single = alone(exported).run(graph, 8, "final", "euler").scores
        np.testing.assert_allclose(found.scores, single, atol=5e-3 * np.abs(single).max())


def test_the_hidden_parts_of_a_small_graph_are_one_batch(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    start_batch = OnnxCpuBackend.start_batch

    def counted(self: OnnxCpuBackend, prepared):  # type: ignore[no-untyped-def]
        started.append(len(prepared.graphs))
        return start_batch(self, prepared)

    monkeypatch.setattr(OnnxCpuBackend, "start_batch", counted)
    small, large = block_graph(), block_graph(LARGEST + 1)
    assert bundle.prepare(small).check == alone(bundle).prepare(small).check
    assert started == [3]
    assert bundle.prepare(large).check is not None
    assert started == [3]


def test_a_graph_that_fails_stops_no_other(bundle: Bundle) -> None:
    good, bare = block_graph(30), replace(block_graph(30), target_features=None, train_mask=None)
    first, failed, last = outcomes(bundle, [good, bare, good], 8, Final(), Euler())
    assert isinstance(failed, GraphError)
    assert isinstance(first, Result)
    assert isinstance(last, Result)
    np.testing.assert_array_equal(first.scores, last.scores)


@pytest.mark.parametrize("questions", [0, 20, 200])
def test_a_graph_can_be_stopped_while_it_is_placed_checked_or_moved(bundle: Bundle, questions: int) -> None:
    """The check is asked during the closed-form start, during the label check, and before every step."""
    asked = [0, 0]
    wanted = UsageError("enough")

    def problem(index: int) -> AdarError | None:
        asked[index] += 1
        return wanted if index == 0 and asked[0] > questions else None

    assert bundle.small_graphs is not None
    found = bundle.small_graphs.run([block_graph(30), block_graph(31)], 300, Final(), Euler(), problem)
    assert found[0] is wanted
    assert isinstance(found[1], Result)
    assert asked[0] == questions + 1
    assert asked[1] > 300


def test_wide_features_that_do_not_fit_into_memory_are_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAR_MAX_BYTES", str(30_000_000))
    narrow, wide = block_graph(30, width=8), block_graph(30, width=100_000)
    first, refused = outcomes(bundle, [narrow, wide], 8, Final(), Euler())
    assert isinstance(first, Result)
    assert isinstance(refused, GraphError)
    assert "would need" in str(refused)


def test_the_proof_finds_a_batched_cell_of_another_model(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compare_batch(bundle, some_graphs())
    assert found is not None
    assert found < 1e-5
    other = with_random_gates(seed=1)
    build = pretrained.build_batched_equivariant_cell
    monkeypatch.setattr(pretrained, "build_batched_equivariant_cell", lambda _, *rest: build(other, *rest))
    pretrained._write(tmp_path, with_random_gates(), {"data": ["generated"]})
    with pytest.raises(ExportError, match="the batched cell and the cell disagree"):
        compare_batch(load(tmp_path, threads=1), some_graphs())
