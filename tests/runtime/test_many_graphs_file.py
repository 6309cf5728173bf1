"""Files that hold many graphs."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_runtime import read_graph
from adar_runtime.errors import AdarWarning, GraphError
from adar_runtime.graph import GRAPH
from adar_runtime.graph.formats import read_graphs
from adar_runtime.graph.formats.many_graphs import DEGREE_COLUMNS, encode_graphs


def arrays(**changes: Any) -> dict[str, Any]:
    found = {
        "node_ptr": np.array([0, 2, 5]),
        "edge_ptr": np.array([0, 2, 3]),
        "edge_index": np.array([[0, 1, 2], [1, 0, 0]]),
        "x": np.arange(10, dtype=np.float32).reshape(5, 2),
        "y": np.array([1, 0]),
        "train_mask": np.array([[True, False]]),
    } | changes
    return {key: value for key, value in found.items() if value is not None}


def saved(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "many.npz"
    np.savez(path, **arrays(**changes))
    return path


def test_each_graph_has_its_part_of_the_arrays(tmp_path: Path) -> None:
    first, second = read_graphs(saved(tmp_path))
    assert (first.nodes, first.edges, second.nodes, second.edges) == (2, 2, 3, 1)
    assert first.level == second.level == GRAPH
    assert second.rows(0, 3).tolist() == [[4, 5], [6, 7], [8, 9]]
    assert second.edge_index.tolist() == [[2], [0]]
    assert [first.labels.tolist(), second.labels.tolist()] == [[1], [0]]  # type: ignore[union-attr]
    assert [first.train_mask.tolist(), second.train_mask.tolist()] == [[[True]], [[False]]]  # type: ignore


def test_degrees_replace_missing_features(tmp_path: Path) -> None:
    with pytest.warns(AdarWarning, match="made from degrees"):
        first, second = read_graphs(saved(tmp_path, x=None))
    assert first.width == DEGREE_COLUMNS
    rows = second.rows(0, 3)  # node 0 has one neighbour, the others none
    assert rows[:, :-2].argmax(axis=1).tolist() == [1, 0, 0]
    assert rows[:, -2].tolist() == pytest.approx([np.log(2), 0, 0])
    assert rows[:, -1].tolist() == pytest.approx([np.log(3)] * 3)


def test_a_file_of_one_graph_is_one_graph(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    np.savez(path, x=np.zeros((2, 1)), edge_index=np.zeros((2, 0), int))
    assert [graph.nodes for graph in read_graphs(path)] == [2]


def test_read_graph_refuses_many_graphs(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="holds many graphs"):
        read_graph(saved(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"node_ptr": np.array([0, 2, 2])}, "must begin with 0 and rise"),
        ({"node_ptr": np.array([1, 2, 5])}, "must begin with 0 and rise"),
        ({"node_ptr": np.array([0.0, 2, 5])}, "at least two integers"),
        ({"edge_ptr": np.array([0, 2, 9])}, "ends with 9"),
        ({"edge_ptr": np.array([0, 3])}, "for 1 graphs and node_ptr for 2"),
        ({"edge_ptr": None}, "edge_ptr is missing"),
        ({"edge_index": None}, "needs edge_index"),
        ({"edge_index": np.array([[0, 1, 7], [1, 0, 0]])}, "7|outside"),
        ({"edge_index": np.array([[0, 1, 0], [1, 0, 7]]), "x": None}, "outside their graphs"),
        ({"x": np.zeros((4, 2))}, "one row for each of the 5 nodes"),
        ({"y": np.array(1)}, "y has 1 labels for 2 graphs"),
        ({"y": np.array([1, 0, 1])}, "one label per graph"),
        ({"train_mask": np.array([[True]])}, r"give \[splits, 2\]"),
    ],
)
@pytest.mark.filterwarnings("ignore:the graphs have no features")
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        read_graphs(saved(tmp_path, **changes))


def test_nodes_that_only_a_pointer_claims_take_no_memory(tmp_path: Path) -> None:
    """A file of 600 bytes claimed 20 million nodes, and took 1.7 GB for features from degrees."""
    path = saved(
        tmp_path,
        node_ptr=np.array([0, 10**12]),
        edge_ptr=np.array([0, 0]),
        edge_index=np.zeros((2, 0), np.int64),
        **dict.fromkeys(("x", "y", "train_mask")),
    )
    with pytest.raises(GraphError, match="the features from degrees"):
        read_graphs(path)


@pytest.mark.parametrize("x", [None, np.zeros((4, 1))], ids=["degrees", "features"])
@pytest.mark.filterwarnings("ignore:the graphs have no features")
def test_pointers_whose_differences_wrap_around_are_refused(tmp_path: Path, x: Any) -> None:
    """The differences are counts of np.repeat, which then wrote outside its memory (a crash)."""
    wraps = np.array([0, 2**62, -(2**63), -(2**62), 3])
    path = saved(tmp_path, node_ptr=np.arange(5), edge_ptr=wraps, x=x, y=None, train_mask=None)
    with pytest.raises(GraphError, match="edge_ptr must begin with 0 and rise"):
        read_graphs(path)
    path = saved(tmp_path, node_ptr=wraps, edge_ptr=np.array([0, 1, 2, 3, 3]), x=x, y=None, train_mask=None)
    with pytest.raises(GraphError, match="node_ptr must begin with 0 and rise"):
        read_graphs(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("edge_index", 5, "5 in graph 30,000, where valid ids are 0–0"),
        ("x", np.inf, "not a finite"),
        ("y", -7, "below -1"),
        ("edge_weight", -1, "must be positive"),
    ],
)
def test_an_error_in_the_last_graph_comes_at_once(
    tmp_path: Path, key: str, value: float, message: str
) -> None:
    """170,000 graphs of a file of 260 kB took 9 s until the last one was refused."""
    count = 30_000
    given = {
        "edge_index": np.zeros((2, 1), int),
        "x": np.zeros((count, 1)),
        "y": np.zeros(count, int),
        "edge_weight": np.ones(1),
    }
    given[key].flat[-1] = value
    pointers = {"node_ptr": np.arange(count + 1), "edge_ptr": np.r_[np.zeros(count, int), 1]}
    path = saved(tmp_path, **pointers, **given, train_mask=None)
    started = time.process_time()
    with pytest.raises(GraphError, match=message):
        read_graphs(path)
    assert time.process_time() - started < 0.4


def test_keys_of_one_graph_are_named(tmp_path: Path) -> None:
    with pytest.warns(AdarWarning, match="not used: pairs, ids"):
        read_graphs(saved(tmp_path, ids=np.arange(5), pairs=np.zeros((2, 1), int)))


def test_graphs_are_counted_before_they_are_made(tmp_path: Path) -> None:
    count = 200_000
    path = saved(
        tmp_path,
        node_ptr=np.arange(count + 1),
        edge_ptr=np.zeros(count + 1, np.int8),
        edge_index=np.zeros((2, 0), np.int64),
        x=np.zeros((count, 1), np.int8),
        y=None,
        train_mask=None,
    )
    np.savez_compressed(path, **np.load(path))
    with pytest.raises(GraphError, match="with node_ptr"):
        read_graphs(path)


def test_graphs_share_their_class_names(tmp_path: Path) -> None:
    """Each graph had its own checked copy: 1,000 graphs with 30,000 names took 9 s."""
    names = np.array([f"class {number}" for number in range(50)])
    first, second = read_graphs(saved(tmp_path, class_names=names))
    assert first.class_names is second.class_names
    assert first.class_names == tuple(names.tolist())


def test_graphs_can_be_written_and_read_again(tmp_path: Path) -> None:
    graphs = read_graphs(saved(tmp_path))
    path = tmp_path / "again.npz"
    path.write_bytes(encode_graphs(graphs))
    for one, other in zip(graphs, read_graphs(path), strict=True):
        assert one.rows(0, one.nodes).tolist() == other.rows(0, other.nodes).tolist()
        assert one.edge_index.tolist() == other.edge_index.tolist()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": np.zeros(2)}, "not used: labels"),
        ({"edge_attr": np.zeros(3)}, r"not used: edge_attr \(edge features"),
        ({"y": np.eye(2)}, "2 columns of 0 and 1"),
        ({"y": np.array([[np.nan, 1.5], [0.5, 2.5]])}, "1 of 2 rows of y have NaN in some of 2 columns"),
        ({"y": np.array([0, 100])}, "so 101 classes"),
        ({"y": np.array([0.0, 1.0])}, r"whole numbers as floats.*shape \[2, 1\]"),
    ],
    ids=["other name of y", "edge features", "indicators", "partly unknown", "gaps", "floats"],
)
def test_what_is_said_about_one_graph_is_said_once_about_many(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.warns(AdarWarning, match=said) as found:
        read_graphs(saved(tmp_path, **changes))
    assert len(found) == 1
