import numpy as np
import pytest

from adar_runtime import Graph, SparseRows
from adar_runtime.errors import AdarWarning, GraphError

X = np.ones((3, 2), np.float32)
EDGES = np.array([[0, 1], [1, 2]])


def test_numbers_are_converted_to_float32_and_int64() -> None:
    graph = Graph(
        features=np.asfortranarray(np.ones((3, 2), ">f8")),
        edge_index=np.array([[0, 1], [1, 2]], np.uint16),
        labels=np.array([0, 1, -1], np.int8),
        train_mask=np.array([True, False, True]),
    )
    assert graph.features.dtype == np.float32
    assert graph.edge_index.dtype == graph.labels.dtype == np.int64
    assert graph.train_mask.shape == (1, 3)
    assert (graph.nodes, graph.edges, graph.width, graph.targets) == (3, 2, 2, 2)


def test_a_graph_without_edges_is_valid() -> None:
    assert Graph(X, np.zeros((2, 0), np.int64)).edges == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"features": np.ones((0, 2))}, "empty"),
        ({"features": np.ones((3, 0))}, "no columns"),
        ({"features": np.ones(3)}, "not [rows, columns]"),
        ({"features": np.array([["a", "b"]] * 3)}, "not numbers"),
        ({"features": np.array([[1, 2], [3, np.nan], [5, 6]])}, "first at [1, 1]"),
        ({"features": np.full((3, 2), 1e300)}, "not a finite 32-bit number"),
        ({"edge_index": np.array([[0, 1], [1, 3]])}, "edge_index contains 3, but valid ids are 0–2"),
        (
            {"edge_index": np.array([[1, 2], [2, 3]])},
            "edge_index contains 3, but valid ids are 0–2; are the ids 1-based?",
        ),
        ({"edge_index": np.array([[0, -1], [1, 2]])}, "edge_index contains -1"),
        ({"edge_index": np.array([[0.0, 1.0], [1.0, 2.0]])}, "not integers"),
        ({"edge_index": np.array([0, 1])}, "not [2, edges]"),
        ({"edge_index": np.array([[2**64 - 1], [0]], np.uint64)}, "beyond 64-bit"),
        ({"labels": np.array([0, 1])}, "not one label for each of 3 nodes"),
        ({"labels": np.array([0, 1, -2])}, "below -1"),
        ({"labels": np.array(["a", "b", "c"])}, "not integers"),
        ({"train_mask": np.array([True])}, "not [splits, 3]"),
        ({"test_mask": np.array([0, 1, 1])}, "not booleans"),
        ({"target_features": np.ones((2, 5))}, "they must be equal"),
        ({"target_features": np.ones((0, 2))}, "at least one class"),
        (
            {"target_features": np.ones((2, 2)), "labels": np.array([0, 1, 2])},
            "describes 2 classes, but y has 3",
        ),
        ({"target_features": np.ones((1, 2)), "labels": np.ones((3, 2), np.float32)}, "but y has 2"),
        ({"target_features": np.ones((3, 2)), "labels": np.ones((3, 2), np.float32)}, "but y has 2"),
        ({"features": [[1, 2], [3]]}, "not an array of numbers"),
        ({"pairs": np.zeros((2, 0), np.int64), "labels": np.zeros(0)}, "at least one pair"),
        ({"labels": np.zeros((3, 0))}, "not one label for each"),
        ({"labels": np.array([0, 1, 100_000])}, "100,001 classes"),
        ({"class_names": "abc"}, "list of strings"),
        ({"class_names": ["a", 1]}, "list of strings"),
        ({"val_mask": np.zeros((0, 3), bool)}, "no splits"),
        ({"val_mask": np.ones((2, 3), bool), "test_mask": np.ones(3, bool)}, "val_mask 2, test_mask 1"),
    ],
)
def test_an_invalid_argument_is_an_error_that_says_why(fields: dict, message: str) -> None:
    with pytest.raises(GraphError) as error:
        Graph(**({"features": X, "edge_index": EDGES} | fields))
    assert message in str(error.value)


def test_labelled_nodes_of_a_split() -> None:
    graph = Graph(
        X, EDGES, labels=np.array([0, 1, -1]), test_mask=np.array([[True, False, True], [False, False, True]])
    )
    assert graph.labelled("test").tolist() == [True, False, False]
    assert graph.labelled("test", 1) is None  # its only node has no label
    assert graph.labelled("val") is None
    for split in (2, -1, 10**20):  # 10^7 took 2 GB
        with pytest.raises(GraphError, match="splits 0 to 1"):
            graph.labelled("test", split)


def test_an_unknown_regression_target_is_in_no_part() -> None:
    numbers = np.array([[0.5, 1], [np.nan, 2], [3, 4]])
    graph = Graph(X, EDGES, labels=numbers, train_mask=[True, True, False], test_mask=[False, True, False])
    assert graph.labelled("train").tolist() == [True, False, False]
    assert graph.labelled("all").tolist() == [True, False, True]
    assert graph.labelled("test") is None
    with pytest.raises(GraphError, match=r"y contains .* first at \[2\]"):
        Graph(X, EDGES, labels=np.array([0.5, np.nan, np.inf]))


def sparse(dense: np.ndarray) -> SparseRows:
    rows, columns = np.nonzero(dense)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(dense)))])
    return SparseRows(starts, columns, dense[rows, columns], dense.shape)


def test_sparse_features_give_dense_rows() -> None:
    dense = np.random.default_rng(0).integers(0, 2, (9, 5)).astype(np.float32)
    graph = Graph(sparse(dense), np.zeros((2, 0), np.int64))
    assert np.array_equal(graph.rows(2, 6), dense[2:6])
    assert np.array_equal(graph.rows(6, 100), dense[6:])


@pytest.mark.parametrize(
    ("starts", "columns", "shape"),
    [
        ([0, 1], [0], (2, 2)),  # too few rows
        ([0, 2, 1], [0], (2, 2)),  # decreases
        ([0, 1, 1], [5], (2, 2)),  # beyond the columns
        ([0, 1, 1], [0], (-2, 2)),
    ],
)
def test_invalid_sparse_features_are_an_error(starts: list, columns: list, shape: tuple) -> None:
    with pytest.raises(GraphError):
        SparseRows(np.array(starts), np.array(columns), np.ones(len(columns)), shape)


def test_sparse_entries_are_sorted_and_repeated_entries_added() -> None:
    rows = SparseRows(np.array([0, 3, 3, 5]), np.array([2, 0, 2, 1, 0]), np.array([1.0, 2, 3, 4, 5]), (3, 3))
    assert np.array_equal(rows.dense(0, 3), [[2, 0, 4], [0, 0, 0], [5, 4, 0]])
    assert rows.columns.tolist() == [0, 2, 0, 1]
    assert rows.starts.tolist() == [0, 2, 2, 4]


def test_whole_numbers_as_floats_get_a_warning() -> None:
    x, edges = np.ones((3, 1)), np.zeros((2, 0), int)
    with pytest.warns(AdarWarning, match=r"save y as integers if they are classes, or with shape \[3, 1\]"):
        assert Graph(x, edges, labels=np.array([1.0, np.nan, 2.0])).regression
    for certain in ([[1.0], [0.0], [2.0]], [1.0, 0.5, 2.0], [np.nan, np.nan, np.nan]):
        assert Graph(x, edges, labels=np.array(certain)).regression  # a warning would be an error


def test_pairs_contradict_the_level_graph() -> None:
    with pytest.raises(GraphError, match="pairs are given"):
        Graph(np.ones((2, 1)), np.zeros((2, 0), int), pairs=np.array([[0], [1]]), level="graph")


def test_unsorted_sparse_rows_are_sorted() -> None:
    """Columns may rise across the end of a row, and rows may be empty at both ends."""
    rows = SparseRows([0, 0, 2, 4, 4], [2, 0, 1, 1], [1.0, 2.0, 3.0, 4.0], (4, 3))
    assert rows.dense(0, 4).tolist() == [[0, 0, 0], [2, 0, 1], [0, 7, 0], [0, 0, 0]]
    assert SparseRows([0, 1, 1, 2], [2, 0], [1.0, 2.0], (3, 3)).columns.tolist() == [2, 0]


def test_a_sum_of_equal_sparse_entries_is_finite_too() -> None:
    with pytest.raises(GraphError, match="not a finite 32-bit number"):
        SparseRows([0, 2], [0, 0], [3e38, 3e38], (1, 1))
