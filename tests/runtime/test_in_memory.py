"""Graphs of PyG, networkx and scipy become the same `Graph` as arrays, or an error that names the fix."""

import re
import subprocess
import sys
from pathlib import Path

import networkx
import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Batch, Data, Dataset, HeteroData

from adar_runtime import AdarError, Graph, SparseRows, read_graph, write_graph
from adar_runtime.errors import AdarWarning, GraphError, UsageError
from adar_runtime.graph.in_memory import ADAPTERS, as_graph, as_graphs

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
EDGES = np.array([[0, 1], [1, 2]])


def data(**changes: object) -> Data:
    return Data(**{"x": torch.tensor(X), "edge_index": torch.tensor(EDGES)} | changes)


def silent(value: object, **fields: object) -> Graph:
    return as_graph(value, on_note=lambda _: None, **fields)


def path_graph(**attributes: list) -> networkx.Graph:
    graph = networkx.DiGraph([(0, 1), (1, 2)])
    for name, values in attributes.items():
        networkx.set_node_attributes(graph, dict(enumerate(values)), name)
    return graph


ADJACENCY = scipy.sparse.csr_array((np.ones(2), EDGES), shape=(3, 3))


@pytest.mark.parametrize(
    "given",
    [
        data(y=torch.tensor([0, 1, 0])),
        data(y=[0, 1, 0], x=X, edge_index=EDGES),  # numpy and lists in a Data
        data(y=torch.tensor([[0], [1], [0]])),
        data(y=torch.tensor([False, True, False])),
        data(y=torch.tensor([0, 1, 0]), x=torch.tensor(X).requires_grad_()),
        path_graph(x=X.tolist(), y=[0, 1, 0]),
        path_graph(x=[torch.tensor(row) for row in X], y=[0, 1, 0]),
        path_graph(a=[1, 3, 5], b=[2, 4, 6], label=[0, 1, 0]),
        (ADJACENCY, X, [0, 1, 0]),
        (scipy.sparse.csc_matrix(ADJACENCY), X.tolist(), np.array([0, 1, 0])),
    ],
    ids=lambda given: type(given).__name__,
)
def test_all_forms_give_one_graph(given: object) -> None:
    graph = silent(given)
    assert np.array_equal(graph.features, X)
    assert sorted(graph.edge_index.T.tolist()) == [[0, 1], [1, 2]]
    assert graph.labels.tolist() == [0, 1, 0]


def test_an_undirected_edge_goes_both_ways() -> None:
    graph = silent(path_graph(a=[1, 2, 3]).to_undirected())
    assert sorted(graph.edge_index.T.tolist()) == [[0, 1], [1, 0], [1, 2], [2, 1]]


@pytest.mark.parametrize(
    "given", [data(), path_graph(a=[1, 2, 3]), (ADJACENCY, X)], ids=["pyg", "nx", "scipy"]
)
def test_masks_have_the_shape_of_pyg_or_of_a_graph(given: object) -> None:
    by_column = np.array([[True, False], [False, True], [False, False]])
    for mask in (by_column, by_column.T):
        assert np.array_equal(silent(given, train_mask=mask).train_mask, by_column.T)
    assert silent(given, train_mask=[True, False, True]).train_mask.tolist() == [[True, False, True]]


def test_one_test_mask_serves_all_splits_as_in_wikics() -> None:
    graph = as_graph(data(train_mask=torch.ones(3, 20, dtype=bool), test_mask=torch.zeros(3, dtype=bool)))
    assert graph.train_mask.shape == graph.test_mask.shape == (20, 3)


def test_masks_of_networkx_are_no_features() -> None:
    graph = silent(path_graph(a=[1, 2, 3], train_mask=[True, False, True]))
    assert graph.width == 1
    assert graph.train_mask.tolist() == [[True, False, True]]


@pytest.mark.parametrize(
    "given",
    [
        data(y=["b", None, "a"]),
        (ADJACENCY, X, ["b", np.nan, "a"]),
        (ADJACENCY, X, pandas.Series(["b", None, "a"]).astype("string")),
    ],
)
def test_words_become_classes_and_that_is_said(given: object) -> None:
    with pytest.warns(AdarWarning, match="the labels are words: 2 classes, a, b"):
        graph = as_graph(given)
    assert (graph.labels.tolist(), graph.class_names) == ([1, -1, 0], ("a", "b"))


def test_the_label_attribute_of_networkx_is_chosen() -> None:
    club = silent(networkx.karate_club_graph(), label="club")
    assert club.class_names == ("Mr. Hi", "Officer")
    assert club.nodes == 34


def test_mostly_zero_features_become_sparse() -> None:
    one_hot = silent((ADJACENCY, np.eye(30)[:3]))
    assert isinstance(one_hot.features, SparseRows)
    assert np.array_equal(one_hot.rows(0, 3), np.eye(30)[:3])
    rows = scipy.sparse.csr_matrix(X)
    assert np.array_equal(silent((ADJACENCY, rows)).rows(0, 3), X)
    assert np.array_equal(as_graph(data(x=torch.tensor(X).to_sparse())).rows(0, 3), X)


@pytest.mark.parametrize("field", ["edge_index", "edge_weight"])
def test_fields_that_an_adjacency_has_are_refused(field: str) -> None:
    """They were ignored without a word."""
    with pytest.raises(UsageError, match=f"leave out {field}"):
        as_graph((ADJACENCY, X), **{field: EDGES if field == "edge_index" else [1.0, 2.0]})


def test_rows_for_numbered_nodes_in_another_order_are_refused() -> None:
    """Row 0 was that of the node added first, also if that is node 2."""
    graph = networkx.DiGraph([(2, 0), (0, 1)])
    for fields in ({"features": X}, {"labels": [0, 1, 0]}, {"train_mask": [True, False, True]}):
        with pytest.raises(GraphError, match="not clear which node a row"):
            silent(graph, **fields)
    ordered = networkx.DiGraph()
    ordered.add_nodes_from(sorted(graph))
    ordered.add_edges_from(graph.edges)
    assert np.array_equal(silent(ordered, features=X).features, X)
    named = networkx.relabel_nodes(graph, {0: "a", 1: "b", 2: "c"})
    assert np.array_equal(silent(named, features=X).features, X)  # in the order of graph.nodes


def test_fields_of_a_graph_have_the_forms_of_other_data() -> None:
    found = silent(
        silent((ADJACENCY, X)), labels=["no", "yes", None], train_mask=np.array([[True], [False], [True]])
    )
    assert found.class_names == ("no", "yes")
    assert found.labels.tolist() == [0, 1, -1]
    assert silent(found, labels=[1, 1, 0]).class_names == ("no", "yes")
    assert found.train_mask.tolist() == [[True, False, True]]


def test_the_values_of_an_adjacency_are_edge_weights() -> None:
    weighted = as_graph((2 * ADJACENCY, X))
    assert weighted.edge_weight.tolist() == [2.0] * weighted.edges
    assert as_graph((ADJACENCY, X)).edge_weight is None
    zero = scipy.sparse.coo_array(([1.0, 0.0], EDGES), shape=(3, 3))
    assert as_graph((zero, X)).edge_index.tolist() == [[0], [1]]  # a stored zero is no edge


class Graphs(Dataset):
    def len(self) -> int:
        return 3

    def get(self, index: int) -> Data:
        nodes = (3, 1, 2)[index]
        return Data(
            x=torch.ones(nodes, 2),
            edge_index=torch.zeros(2, 0, dtype=torch.long),
            y=torch.tensor([index % 2]),
        )


@pytest.mark.parametrize("collect", [list, iter, tuple, lambda given: Batch.from_data_list([*given])])
def test_several_graphs_with_one_label_each(collect) -> None:
    dataset = Graphs()
    found = as_graphs(collect(dataset))
    assert (found.several, as_graphs(dataset).names) == (True, found.names)
    assert found.names == ["Data 1", "Data 2", "Data 3"]
    assert [(graph.level, graph.nodes, graph.labels.tolist()) for graph in found.graphs] == [
        ("graph", 3, [0]),
        ("graph", 1, [1]),
        ("graph", 2, [0]),
    ]


def test_one_graph_in_a_list_is_a_list() -> None:
    assert as_graphs([data()]).several
    assert not as_graphs(data()).several
    assert not as_graphs((ADJACENCY, X)).several


def hetero() -> HeteroData:
    found = HeteroData()
    found["a"].x, found["b"].x = torch.ones(3, 2), torch.ones(2, 2)
    found["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 0]])
    return found


def test_hetero_data_names_the_way_out_and_the_way_works() -> None:
    with pytest.raises(GraphError, match=r"give data.to_homogeneous\(\)"):
        as_graph(hetero())
    with pytest.warns(AdarWarning, match="edge_type, node_type"):
        assert as_graph(hetero().to_homogeneous()).nodes == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (data(edge_index=torch.tensor(EDGES).float()), "holds float32, not integers: convert it, such as"),
        (data(edge_index=torch.ones(3, 2).long()), "shape [3, 2], not [2, edges]: transpose it"),
        (data(edge_index=torch.tensor(EDGES) + 1), "3, but valid ids are 0–2; are the ids 1-based?"),
        (data(edge_index=None), "key 'edge_index' not found; the Data has x"),
        (data(edge_index=None, adj_t=ADJACENCY), "leave out the transform ToSparseTensor"),
        (data(x=None), "the Data has no x: set data.x"),
        (data(x=None, features=torch.tensor(X)), "rename features to x"),
        (data(x=torch.ones(3)), "x has shape [3], not [rows, columns]"),
        (data(x=torch.full((3, 2), torch.nan)), "not a finite 32-bit number, first at [0, 0]"),
        (data(y=torch.tensor([0, 1])), "y has shape [2], not one label for each of 3 nodes"),
        (data(y=[object(), 1, 2]), "y holds object, not integers"),
        (path_graph(x=[[1, 2], [1, 2], [1]]), "node 2: the attribute 'x' must be a list of 2 numbers"),
        (ADJACENCY, "the adjacency has no features: give (adjacency, features)"),
        ((ADJACENCY, X[:2]), "the adjacency has 3 nodes and the features have shape [2, 2]"),
        ((ADJACENCY[:2], X), "the adjacency has shape [2, 3], not [nodes, nodes]"),
        ((ADJACENCY,), "a tuple with an adjacency has 1 items"),
        ([data(), data(x=None)], "graph 2 of 2: the Data has no x"),
        ([], "the list of graphs is empty"),
        (None, "a graph is needed, not None: give a Graph, the path"),
        (X, "a graph is needed, not ndarray of numpy"),
        ({"x": X}, "a graph is needed, not dict"),
        ("nothing.npz", "nothing.npz: there is no such file"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(given: object, said: str) -> None:
    with pytest.raises(AdarError, match=re.escape(said)):
        as_graphs(given)


def test_fields_are_checked() -> None:
    with pytest.raises(UsageError, match="no field 'y': choose from features, edge_index, labels"):
        as_graph(data(), y=[0, 1, 0])
    with pytest.raises(UsageError, match="label names an attribute of a networkx graph"):
        as_graph(data(), label="y")


def test_a_data_in_memory_is_the_data_in_a_file(tmp_path) -> None:
    given = data(y=torch.tensor([0, 1, 0]), train_mask=torch.ones(3, 2, dtype=bool))
    torch.save(given, tmp_path / "a.pt")
    write_graph(tmp_path / "b.npz", given)
    for path in ("a.pt", "b.npz"):
        read, held = as_graph(tmp_path / path), as_graph(given)
        for name in ("features", "edge_index", "labels", "train_mask"):
            assert np.array_equal(getattr(read, name), getattr(held, name)), name


def test_the_table_imports_no_library() -> None:
    """The adapters know a library by the name of a class, so that none is loaded to look."""
    code = (
        "import sys\n"
        "from adar_runtime.graph.in_memory import as_graph\n"
        "try: as_graph({})\n"
        "except Exception: pass\n"
        "print({'torch', 'networkx', 'scipy', 'torch_geometric', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert {package for package, _ in ADAPTERS} == {"torch_geometric", "networkx", "scipy"}


def test_masked_values_are_not_used() -> None:
    hidden = np.ma.array([0, 1, 1], mask=[False, True, False])
    for fields in ({"labels": hidden}, {"features": np.ma.array(np.ones((3, 2)), mask=np.eye(3, 2))}):
        given = {"features": np.ones((3, 2)), "edge_index": np.zeros((2, 0), int)} | fields
        with pytest.raises(GraphError, match="masked values"):
            Graph(**given)
    filled = hidden.filled(-1)
    assert Graph(np.ones((3, 2)), np.zeros((2, 0), int), filled).labels.tolist() == [0, -1, 1]


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.0, -1.0, 1.0], [0.5, 0.5, 1.0]])
def test_repeated_entries_of_an_adjacency_add_up_in_every_format(values: list[float]) -> None:
    matrix = scipy.sparse.coo_array((values, ([0, 0, 1], [1, 1, 2])), shape=(3, 3))
    one, other = (as_graph((each, np.ones((3, 2)))) for each in (matrix, matrix.tocsr()))
    assert one.edge_index.tolist() == other.edge_index.tolist()
    assert np.array_equal(one.edge_weight, other.edge_weight) or one.edge_weight is other.edge_weight is None
    assert matrix.nnz == 3  # the caller's matrix does not change


def test_booleans_and_tensors_in_a_networkx_graph() -> None:
    graph = networkx.path_graph(4)
    for node in graph:
        graph.nodes[node].update(x=torch.tensor(float(node)), y=node > 1)
    found = as_graph(graph, on_note=lambda _: None)
    assert found.features[:, 0].tolist() == [0, 1, 2, 3]
    assert (found.labels.tolist(), found.class_names) == ([0, 0, 1, 1], ("False", "True"))


def test_a_data_with_more_nodes_than_rows_is_refused() -> None:
    data = Data(x=torch.ones(3, 2), edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=5)
    with pytest.raises(GraphError, match="num_nodes 5 and 3 rows"):
        as_graph(data)
    data.num_nodes = 3
    assert as_graph(data).nodes == 3


def test_booleans_are_the_same_classes_in_every_library() -> None:
    """A graph with one of the two labels would have its only class as number 0."""
    found = as_graph(data(y=torch.tensor([True, True, True])))
    assert found.class_names == ("False", "True")
    assert found.labels is not None
    assert found.labels.tolist() == [1, 1, 1]


def test_as_many_splits_as_nodes_are_read_as_in_a_file(tmp_path: Path) -> None:
    """PyG has the splits in columns, also where the mask is a square."""
    mask = torch.tensor([[True, True, False], [False, True, True], [False, False, True]])
    given = data(y=torch.tensor([0, 1, 0]), train_mask=mask)
    torch.save(given, tmp_path / "g.pt")
    found = as_graph(given).train_mask
    assert found is not None
    np.testing.assert_array_equal(found, mask.numpy().T)
    np.testing.assert_array_equal(found, read_graph(tmp_path / "g.pt").train_mask)
    rows = as_graph(given, train_mask=mask.numpy()).train_mask  # given as [splits, k]
    np.testing.assert_array_equal(rows, mask.numpy())


@pytest.mark.parametrize("width", [1, 2, 4])
def test_given_features_have_no_encoding_of_the_attributes(width: int) -> None:
    features = np.arange(3 * width, dtype=np.float32).reshape(3, width)
    for given in (path_graph(), path_graph(a=[1, 3, 5], b=[2, 4, 6]), silent(path_graph(a=[1, 3, 5]))):
        graph = silent(given, features=features)
        assert np.array_equal(graph.features, features)
        assert graph.feature_encoding is None


def test_given_labels_of_networkx_have_names_of_their_own() -> None:
    club = path_graph(label=["x", "y", "x"])
    assert silent(club, labels=[1, 0, 2]).class_names is None
    graph = silent(club, labels=["up", None, "down"])
    assert graph.class_names == ("down", "up")
    assert graph.labels.tolist() == [1, -1, 0]
    assert silent(club, labels=[1, 0, 1], class_names=["a", "b"]).class_names == ("a", "b")


def test_labels_that_are_a_sparse_matrix_are_refused() -> None:
    with pytest.raises(GraphError, match="y holds"):
        silent((ADJACENCY, X), labels=scipy.sparse.csr_array(np.eye(3)))
