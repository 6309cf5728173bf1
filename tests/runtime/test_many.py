"""Many graphs through one warm bundle."""

import json
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Bundle, Final, Graph, write_graph
from adar_runtime.errors import GraphError, UsageError
from adar_runtime.graph import SparseRows
from adar_runtime.loop.prefetch import prefetch
from tests.helpers import random_graph


def cut(board: Graph, nodes: int) -> Graph:
    """The first nodes, with no edges."""
    assert not isinstance(board.features, SparseRows)
    return Graph(board.features[:nodes], np.zeros((2, 0), np.int64))


def test_results_come_in_order_and_are_those_of_single_runs(bundle: Bundle, board: Graph) -> None:
    graphs = [board, cut(board, 5), board, cut(board, 9)]
    results = list(bundle.run_many(iter(graphs), 5, Final()))
    assert [len(result.scores) for result in results] == [144, 5, 144, 9]
    for graph, result in zip(graphs, results, strict=True):
        np.testing.assert_allclose(result.scores, bundle.run(graph, 5, Final()).scores, rtol=1e-4, atol=1e-6)


def test_the_next_graph_is_fetched_while_one_is_worked_on() -> None:
    fetched = [threading.Event() for _ in range(3)]

    def fetching() -> Iterator[int]:
        for index, event in enumerate(fetched):
            event.set()
            yield index

    for index in prefetch(fetching()):
        if index + 1 < len(fetched):
            assert fetched[index + 1].wait(10)  # without anyone asking for it


@pytest.mark.parametrize("kind", ["a buffer", "a float64 buffer", "one networkx graph", "a file"])
@pytest.mark.parametrize("method", ["run_many", "predict"])
def test_an_iterator_may_reuse_what_it_gave(
    kind: str, method: str, bundle: Bundle, board: Graph, tmp_path: Path
) -> None:
    """The next graph is fetched while one is worked on: results were those of later graphs."""
    networkx, scipy = pytest.importorskip("networkx"), pytest.importorskip("scipy.sparse")
    random = np.random.default_rng(0)
    width = board.width
    contents = [random.standard_normal((30, width)).astype(np.float32) for _ in range(6)]

    def file_of(graph: Graph) -> Path:
        write_graph(tmp_path / "graph.npz", graph)
        return tmp_path / "graph.npz"

    def graphs() -> Iterator[object]:
        buffer = np.empty((30, width), np.float64 if kind == "a float64 buffer" else np.float32)
        changing = networkx.path_graph(30)
        adjacency = scipy.csr_array(networkx.to_scipy_sparse_array(changing, format="csr"))
        edges = np.stack(adjacency.nonzero())
        for x in contents:
            buffer[:] = x
            for node in changing:
                changing.nodes[node]["x"] = x[node].tolist()
            yield {
                "a buffer": lambda: Graph(buffer, edges),
                "a float64 buffer": lambda: (adjacency, buffer),
                "one networkx graph": lambda: changing,
                "a file": lambda: file_of(Graph(buffer, edges)),
            }[kind]()

    expected = [bundle.run(graph, 4, Final()).scores for graph in graphs()]
    found = getattr(bundle, method)(graphs(), 4, Final())
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.scores, other, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_copied_is_converted(bundle: Bundle, board: Graph) -> None:
    """Embeddings with gradients, and attributes that are not used, ended with a traceback of deepcopy."""
    torch, data = pytest.importorskip("torch"), pytest.importorskip("torch_geometric.data")
    x = torch.tensor(board.rows(0, 20)).requires_grad_()
    one = data.Data(x=x * 1, edge_index=torch.zeros(2, 0, dtype=torch.long), lock=threading.Lock())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lock is not used
        (found,) = bundle.predict(iter([one]), 2, Final())
        assert np.array_equal(found.scores, next(bundle.run_many(iter([one]), 2, Final())).scores)


def test_a_dataset_without_an_iterator_is_run(bundle: Bundle, board: Graph) -> None:
    """A Dataset of PyTorch has a length and items only."""
    torch = pytest.importorskip("torch")

    class Boards(torch.utils.data.Dataset):
        def __getitem__(self, number: int) -> Graph:
            return [board, board][number]

    assert len([*bundle.run_many(Boards(), 2, Final())]) == 2


@pytest.mark.parametrize("given", [None, 3, "graph.npz", Path("graph.npz"), "a graph"])
def test_what_are_not_several_graphs_is_an_error(given: object, bundle: Bundle, board: Graph) -> None:
    with pytest.raises(UsageError, match="takes several graphs"):
        next(bundle.run_many(board if given == "a graph" else given))


@pytest.mark.parametrize("kind", [np.uint64, np.int8])
def test_a_budget_may_be_a_number_of_numpy(kind: type, bundle: Bundle, board: Graph) -> None:
    """The solver's arithmetic overflowed."""
    for solver in ("ab2", "euler"):
        found = bundle.run(board, kind(100), Final(), solver).scores
        assert np.array_equal(found, bundle.run(board, 100, Final(), solver).scores)


def test_budgets_of_numpy_become_numbers_of_python(bundle: Bundle, board: Graph) -> None:
    """A report of them was no JSON."""
    found = bundle.evaluate(board, np.array([2, 3], np.int8)).budgets()
    assert [one["budget"] for one in json.loads(json.dumps(found))] == [2, 3]
    with pytest.raises(UsageError, match="give a list of numbers"):
        bundle.evaluate(board, iter([2]))


def test_an_error_comes_out_in_its_place(bundle: Bundle, board: Graph) -> None:
    def reading() -> Iterator[Graph]:
        yield board
        raise GraphError("the second file is broken")

    results = bundle.run_many(reading(), 2, Final())
    assert next(results).steps == 2
    with pytest.raises(GraphError, match="second"):
        next(results)
    results = bundle.run_many([board, random_graph(5, 5), board], 2, Final())
    assert next(results).steps == 2
    with pytest.raises(GraphError, match="6 features"):
        next(results)


def test_no_graphs_give_no_results(bundle: Bundle) -> None:
    assert list(bundle.run_many([])) == []


def test_leaving_early_ends_the_reader(bundle: Bundle, board: Graph) -> None:
    results = bundle.run_many([board] * 3, 2, Final())
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
