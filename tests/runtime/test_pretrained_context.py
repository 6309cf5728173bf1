"""New and changed nodes are answered from one kept inference of a pretrained model."""

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_export import pretrained
from adar_runtime import AdamsBashforth2, Bundle, Graph
from adar_runtime.bundle.manifest import checksum_of
from adar_runtime.errors import AdarError, DivergedError, GraphError, UsageError
from adar_runtime.in_context.placement import Placement
from adar_runtime.in_context.similar_nodes import ComparedNodes
from adar_runtime.in_context.start import RESTARTS, SmoothedFeatures, known_labels
from adar_runtime.phases.context import Context
from adar_runtime.phases.context_files import load_context
from tests.in_context_graphs import block_graph, labelled_graph, unrelated_graph, with_random_gates

N, SOLVER = 240, AdamsBashforth2(calls=5)
GRAPHS: dict[str, Callable[[Bundle], Graph]] = {
    "labels": lambda bundle: labelled_graph(bundle, 1.0),
    "still": lambda bundle: labelled_graph(bundle, 0.0),  # hidden labels prefer the start
    "chance": lambda _: unrelated_graph(),  # a free baseline answers
    "descriptions": lambda _: replace(block_graph(seed=2), train_mask=None),
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    pretrained._write(folder, with_random_gates(4), {"data": ["generated"]})
    opened = Bundle(folder, threads=1)
    opened.manifest = replace(opened.manifest, convergence={"order": 1.0})  # so that it accepts the solver
    return opened


@pytest.fixture(scope="module", params=GRAPHS)
def remembered(request: pytest.FixtureRequest, bundle: Bundle) -> tuple[Graph, Context]:
    graph = GRAPHS[request.param](bundle)
    context = bundle.remember(graph, 20, solver=SOLVER)
    assert (len(context.kept.calls) == 0) == (request.param in ("still", "chance"))
    return graph, context


def ending_at(graph: Graph, nodes: list[int]) -> np.ndarray:
    return graph.edge_index[:, np.isin(graph.edge_index[1], nodes)]


def copied(graph: Graph, node: int) -> tuple[np.ndarray, np.ndarray]:
    """The features of a node, and its incoming edges as those of a new node."""
    source, _ = ending_at(graph, [node])
    return graph.rows(node, node + 1), np.stack([source, np.full(len(source), graph.nodes)])


def test_the_kept_inference_is_that_of_the_cell(bundle: Bundle, remembered: tuple[Graph, Context]) -> None:
    graph, context = remembered
    expected = bundle.run(graph, 20, solver=SOLVER)
    np.testing.assert_allclose(context.result.scores, expected.scores, atol=1e-4)
    assert context.result.check == expected.check


def test_an_update_without_a_change_gives_the_answer_of_the_graph(
    remembered: tuple[Graph, Context],
) -> None:
    """Labelled nodes too, whose class is known: their start and their steps are those of the whole graph."""
    graph, context = remembered
    nodes = [0, 5, 11, 100, 239]
    for hops in (0, 2):
        found = context.update(nodes, graph.rows(0, N)[nodes], ending_at(graph, nodes), hops=hops)
        np.testing.assert_allclose(found.scores, context.result.scores[nodes], rtol=1e-3, atol=2e-3)


def without(context: Context, node: int) -> Context:
    """The context, whose placement does not compare others with this node."""
    placement = context.kept.placement
    assert placement is not None
    compared, others = placement.compared, placement.compared.numbers != node
    numbers, rows, psi = compared.numbers[others], compared.rows[others], compared.psi[others]
    fewer = replace(placement, compared=ComparedNodes(numbers, compared.root, rows, psi))
    return type(context)(context._models, context.manifest, context.kept._replace(placement=fewer))


def test_a_copy_of_an_unlabelled_node_gets_its_answer(remembered: tuple[Graph, Context]) -> None:
    """If it is not compared with that node: a node is not compared with itself."""
    graph, context = remembered
    for node in (60, 133, 200):
        found = without(context, node).predict(*copied(graph, node), hops=0)
        np.testing.assert_allclose(found.scores[0], context.result.scores[node], rtol=1e-3, atol=2e-3)


def test_a_copy_in_a_graph_with_more_classes_than_columns(bundle: Bundle, tmp_path: Path) -> None:
    graph = replace(block_graph(240, 20, seed=2), train_mask=None)
    bundle.remember(graph, 20, solver=SOLVER).save(tmp_path / "context")
    context = without(load_context(bundle, tmp_path / "context"), 133)
    found = context.predict(*copied(graph, 133), hops=0)
    np.testing.assert_allclose(found.scores[0], context.result.scores[133], rtol=1e-3, atol=2e-3)


def test_new_nodes_that_diverge_are_one_error(bundle: Bundle) -> None:
    """Without warnings of numpy, whose numbers a stranger's context chooses."""
    graph = GRAPHS["still"](bundle)
    context = bundle.remember(graph, 20, solver=SOLVER)
    placement = context.kept.placement
    assert placement is not None
    placement.matrix[:] = 3e38
    with pytest.raises(DivergedError):
        context.predict(*copied(graph, 60))


def test_wide_features_of_new_nodes_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = replace(block_graph(60, width=2_000), target_features=None)
    features = SmoothedFeatures.of(graph, 16)
    first, labels = features.start(known_labels(graph), 3), known_labels(graph)
    placement = Placement.of(features, first.nodes, first.compared, labels, graph.targets)
    new = Graph(np.ones((500, 2_000), np.float32), np.zeros((2, 0), np.int64))
    monkeypatch.setattr("adar_runtime.in_context.features.NUMBERS_AT_ONCE", 20_000)
    tracemalloc.start()
    try:
        placement.encoded(new)
        assert tracemalloc.get_traced_memory()[1] < new.rows(0, 500).nbytes / 4
    finally:
        tracemalloc.stop()


def test_kept_nodes_react(bundle: Bundle) -> None:
    """New nodes that send to others change the answers of each other through a kept node, from two hops."""
    graph = GRAPHS["descriptions"](bundle)
    context = bundle.remember(graph, 20, solver=SOLVER)
    features, edges = copied(graph, 60)
    both = np.concatenate([edges, edges[::-1]], axis=1)
    near, far = (context.predict(100 * features, both, hops=hops).scores for hops in (0, 2))
    assert np.abs(near - far).max() > 1e-3


def test_a_changed_node_is_kept_and_changes_its_neighbours(bundle: Bundle) -> None:
    graph = GRAPHS["descriptions"](bundle)
    context = bundle.remember(graph, 20, solver=SOLVER)
    source, _ = ending_at(graph, [60])
    question = copied(graph, 60)
    before = context.predict(*question).scores
    changed = [int(source[0])]
    context.update(changed, -graph.rows(0, N)[changed], ending_at(graph, changed))
    assert np.abs(context.predict(*question).scores - before).max() > 1e-3


def test_a_saved_context_gives_the_same_answers(
    bundle: Bundle, remembered: tuple[Graph, Context], tmp_path: Path
) -> None:
    graph, context = remembered
    context.save(tmp_path / "context")
    opened = load_context(bundle, tmp_path / "context")
    question = copied(graph, 77)
    np.testing.assert_array_equal(opened.predict(*question).scores, context.predict(*question).scores)
    assert opened.result.check == context.result.check


@pytest.mark.parametrize("name", GRAPHS)
def test_processes_that_share_a_context_see_the_updates_of_each_other(
    bundle: Bundle, tmp_path: Path, name: str
) -> None:
    graph = GRAPHS[name](bundle)
    bundle.remember(graph, 20, solver=SOLVER).save(tmp_path / "context")
    one, other = (load_context(bundle, tmp_path / "context", shared=True) for _ in range(2))
    question = copied(graph, 60)
    before = other.predict(*question).scores
    changed = [int(question[1][0, 0])]
    one.update(changed, -graph.rows(0, N)[changed], ending_at(graph, changed))
    after = other.predict(*question).scores
    np.testing.assert_array_equal(after, one.predict(*question).scores)
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize(
    "change", ["labels", "matrix", "smoothed", "compared_numbers", "compared_psi", "check"]
)
def test_a_changed_context_is_refused(bundle: Bundle, tmp_path: Path, change: str) -> None:
    """Even if a stranger gives the files hashes that fit."""
    graph = GRAPHS["labels"](bundle)
    bundle.remember(graph, 20, solver=SOLVER).save(tmp_path / "context")
    path = tmp_path / "context" / "context.json"
    fields = json.loads(path.read_text())
    if change == "check":
        fields["result"]["check"] = {"strength": "all"}
    else:
        file = tmp_path / "context" / f"{change}.npy"
        array = np.load(file)
        np.save(file, array + 300 if array.dtype == np.int64 else array[:-1])
        fields["files"][change] = hashlib.sha256(file.read_bytes()).hexdigest()
    fields["checksum"] = checksum_of(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(GraphError, match=r"the context is damaged|labels|compared_numbers"):
        load_context(bundle, tmp_path / "context")


def test_what_is_refused(bundle: Bundle) -> None:
    graph = GRAPHS["labels"](bundle)
    context = bundle.remember(graph, 20, solver=SOLVER)
    with pytest.raises(GraphError, match="3 features and the context takes 24"):
        context.predict(np.ones((1, 3)))
    weighted = replace(graph, edge_weight=np.ones(graph.edges, np.float32))
    with pytest.raises(UsageError, match="edge weights"):
        bundle.remember(weighted, 20, solver=SOLVER)
    with pytest.raises(GraphError, match="target_x"):
        bundle.remember(replace(graph, train_mask=None), 20, solver=SOLVER)
    with pytest.raises(GraphError, match="are allowed"):
        bundle.remember(graph, 20, solver=SOLVER, max_bytes=1000)


def test_places_that_are_not_linear_are_an_error() -> None:
    graph = replace(block_graph(seed=1), target_features=None)
    features = SmoothedFeatures.of(graph, 16)
    first, labels = features.start(known_labels(graph), 3), known_labels(graph)
    found = Placement.of(features, first.nodes, first.compared, labels, graph.targets)
    assert found.matrix.shape == (len(RESTARTS) * 16 + 1 + 3, 16)
    with pytest.raises(AdarError, match="not a linear function"):
        Placement.of(features, first.nodes**2, first.compared, labels, graph.targets)
