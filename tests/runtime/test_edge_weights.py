"""Edge weights in graphs, files, tables and neighbour tables."""

from pathlib import Path

import networkx
import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from adar_runtime import Graph, read_graph, write_graph
from adar_runtime.errors import GraphError
from adar_runtime.evaluation.training_data import identity
from adar_runtime.graph.directions import both_ways, links_of
from adar_runtime.graph.formats import import_graph, read_graphs, read_tables
from adar_runtime.graph.formats._tables import TableChoice
from adar_runtime.graph.formats.graphml import from_networkx
from adar_runtime.graph.formats.texts import read_texts
from adar_runtime.graph.graph_warnings import warnings
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.statistics import statistics

X, EDGES = np.ones((4, 2), np.float32), np.array([[0, 1, 2], [1, 2, 3]])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -2.0, 1.0], r"edge 1 has the weight -2.0; edge weights must be positive"),
        ([1.0, 1.0, 0.0], r"edge 2 has the weight 0.0"),
        ([np.nan, 1.0, 1.0], r"edge 0 has the weight nan"),
        ([1.0, np.inf, 1.0], r"edge 1 has the weight inf"),
        ([1.0, 1e39, 1.0], r"edge 1 has the weight 1e\+39"),
        ([1.0, 1e-50, 1.0], r"edge 1 has the weight 1e-50"),
        ([1.0, 2.0], r"has shape \[2\], not one weight for each of 3 edges"),
        ([True, False, True], r"holds bool, not numbers"),
        (["a", "b", "c"], r"holds <U1, not numbers"),
    ],
)
def test_weights_that_are_refused(weights: list, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph(X, EDGES, edge_weight=weights)


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_graph_files_keep_the_weights(tmp_path: Path, suffix: str) -> None:
    write_graph(tmp_path / f"g{suffix}", Graph(X, EDGES, edge_weight=[0.5, 2, 3]))
    assert read_graph(tmp_path / f"g{suffix}").edge_weight.tolist() == [0.5, 2, 3]


def test_a_column_of_weights_from_pyg(tmp_path: Path) -> None:
    column = torch.tensor([[1.0], [2.0], [3.0]])
    torch.save(
        Data(x=torch.ones(4, 2), edge_index=torch.from_numpy(EDGES), edge_weight=column), tmp_path / "g.pt"
    )
    assert read_graph(tmp_path / "g.pt").edge_weight.tolist() == [1, 2, 3]


def test_an_edge_list_with_a_column_of_weights(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("source,target,kind,Weight\n0,1,a,0.5\n1,2,b,4\n")
    found = import_graph(edges)
    assert found.graph.edge_weight.tolist() == [0.5, 4]
    (note,) = (note for note in found.notes if "edge weights" in note)
    assert note.startswith(
        "edge weights are from the column 'Weight'; other columns of the edges are not used"
    )
    edges.write_text("u,v,weight\n0,1,0.5\n1,2,4\n")  # a header of other words
    assert import_graph(edges).graph.edge_weight.tolist() == [0.5, 4]
    edges.write_text("0,1,0.5\n1,2,4\n")
    found = import_graph(edges)
    assert found.graph.edge_weight is None
    assert any("name a column 'weight' in a header" in note for note in found.notes)


def test_tables_with_weights_in_both_directions(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,size\na,1\nb,2\nc,3\n")
    pyarrow.parquet.write_table(
        pyarrow.table({"source": ["a", "b"], "target": ["b", "c"], "weight": [0.5, 2.0]}),
        tmp_path / "edges.parquet",
    )
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,0.5\nb,c,2\n")
    for edges in ("edges.parquet", "edges.csv"):
        found = read_tables(tmp_path / "nodes.csv", tmp_path / edges, TableChoice(both_ways=True)).graph
        assert found.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert found.edge_weight.tolist() == [0.5, 0.5, 2, 2]
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,0.5\nb,c,-2\n")
    with pytest.raises(GraphError, match=r"edges\.csv: line 3: the weight of the edge is -2"):
        read_tables(tmp_path / "nodes.csv", tmp_path / "edges.csv")


def test_a_file_of_many_graphs_with_weights(tmp_path: Path) -> None:
    arrays = {"node_ptr": [0, 2, 4], "edge_ptr": [0, 2, 3], "edge_index": [[0, 1, 0], [1, 0, 1]]}
    numbers = {name: np.array(value) for name, value in arrays.items()}
    np.savez(tmp_path / "g.npz", **numbers, x=X, y=np.array([0, 1]), edge_weight=np.array([1.0, 2.0, 3.0]))
    assert [graph.edge_weight.tolist() for graph in read_graphs(tmp_path / "g.npz")] == [[1, 2], [3]]
    np.savez(tmp_path / "g.npz", **numbers, x=X, y=np.array([0, 1]), edge_weight=np.array([1.0]))
    with pytest.raises(GraphError, match=r"edge_weight has shape \[1\], not one weight for each of 3 edges"):
        read_graphs(tmp_path / "g.npz")


@pytest.mark.parametrize("cell", ["-1", "0", "", "much", "inf", "1e99"])
def test_a_wrong_weight_names_its_line(tmp_path: Path, cell: str) -> None:
    (tmp_path / "edges.csv").write_text(f"source,target,weight\n0,1,1\n1,2,{cell}\n")
    with pytest.raises(GraphError, match=r"edges\.csv: line 3: the weight of the edge is"):
        import_graph(tmp_path / "edges.csv")


def test_weights_of_networkx_graphs(tmp_path: Path) -> None:
    graph = networkx.Graph()
    graph.add_edge("a", "b", weight=2.0, color="red")
    graph.add_edge("b", "b", weight=3.0)
    graph.add_edge("b", "c")  # without a weight: 1, as in networkx
    found = from_networkx(graph)
    edges = zip(*found.graph.edge_index.tolist(), found.graph.edge_weight.tolist(), strict=True)
    assert set(edges) == {(0, 1, 2.0), (1, 0, 2.0), (1, 1, 3.0), (1, 2, 1.0), (2, 1, 1.0)}
    assert "edge features are not used: color was not read" in found.notes
    networkx.write_graphml(graph, tmp_path / "g.graphml")
    assert sorted(import_graph(tmp_path / "g.graphml").graph.edge_weight) == [1, 1, 2, 2, 3]
    graph["a"]["b"]["weight"] = -2
    with pytest.raises(GraphError, match=r"edge \('a', 'b'\): the weight of the edge is -2"):
        from_networkx(graph)


def test_tables_of_texts_have_weights(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,text\na,x\nb,y\nc,z\n")
    (tmp_path / "edges.jsonl").write_text(
        '{"source": "a", "target": "b", "weight": 2}\n{"source": "b", "target": "c", "weight": 0.5}\n'
    )
    found = read_texts(tmp_path / "nodes.csv", tmp_path / "edges.jsonl")
    assert found.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert found.graph(np.ones((3, 2)), None).edge_weight.tolist() == [2, 2, 0.5, 0.5]


def test_missing_reverse_edges_get_the_weight_of_the_edge() -> None:
    edges = np.array([[0, 0, 1, 2, 2, 3], [1, 1, 0, 1, 2, 3]])
    both, weights = both_ways(edges, 4, np.array([1, 2, 7, 4, 5, 6], np.float32))
    found = dict(zip(map(tuple, both.T.tolist()), weights.tolist(), strict=True))
    # 0→1 is repeated (1 + 2) and has a reverse of its own (7); 2→1 gets one; loops are their own reverse.
    assert found == {(0, 1): 3, (1, 0): 7, (2, 1): 4, (1, 2): 4, (2, 2): 5, (3, 3): 6}
    assert np.array_equal(both_ways(edges, 4)[0], np.unique(np.concatenate([edges, edges[::-1]], 1), axis=1))


def test_a_link_has_the_mean_weight_of_its_directions() -> None:
    graph = Graph(X, [[0, 1, 2, 3], [1, 0, 1, 3]], edge_weight=[1, 3, 5, 9])
    links, weights = links_of(graph)
    assert (links.tolist(), weights.tolist()) == ([0 * 4 + 1, 1 * 4 + 2], [2, 5])


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(1, 80), edges=st.integers(0, 1500), skew=st.floats(0.2, 6), seed=st.integers(0, 999))
def test_weighted_sums_of_any_graph(nodes: int, edges: int, skew: float, seed: int) -> None:
    """Integers, so that the sums are exactly equal to those over repeated edges."""
    random = np.random.default_rng(seed)
    target = np.minimum((nodes * random.random(edges) ** skew).astype(np.int64), nodes - 1)
    edge_index = np.stack([random.integers(0, nodes, edges), target])
    weights = random.integers(1, 6, edges)
    tables = Tables.of(Neighbours.of(edge_index, nodes, weights.astype(np.float32)))
    messages = random.integers(-1000, 1000, (nodes, 2)).astype(np.float64)
    expected = np.zeros_like(messages)
    source, target = np.repeat(edge_index, weights, axis=1)
    np.add.at(expected, target, messages[source])
    rows, zero = np.concatenate([np.zeros((1, 2)), messages]), np.zeros((1, 2))
    pairs = zip(tables.leaves, tables.weights, strict=True)
    sums = np.concatenate([zero, *((weight @ rows[leaf])[:, 0] for leaf, weight in pairs)])
    joined = np.concatenate([sums, *(sums[table].sum(axis=1) for table in tables.joins)])
    assert np.array_equal(joined[tables.place], expected)
    for leaf, weight in zip(tables.leaves, tables.weights, strict=True):
        assert (weight[:, 0] > 0).tolist() == (leaf > 0).tolist()


def test_the_share_of_a_node_is_one_over_all_weights() -> None:
    neighbours = Neighbours.of(np.array([[1, 2, 2], [0, 0, 0]]), 3, np.array([2, 0.25, 0.25], np.float32))
    assert neighbours.weights.tolist() == [2, 0.5]  # the weights of the repeated edge 2→0 add up
    assert neighbours.share[:, 0].tolist() == [np.float32(1 / 3.5), 1, 1]


def test_weights_change_the_identity_of_a_graph() -> None:
    plain, weighted = Graph(X, EDGES), Graph(X, EDGES, edge_weight=[1, 2, 3])
    shuffled = Graph(X, EDGES[:, ::-1], edge_weight=[3, 2, 1])
    others = Graph(X, EDGES, edge_weight=[1, 3, 2])
    assert identity(weighted) == identity(shuffled)
    assert len({identity(plain), identity(weighted), identity(others)}) == 3


def test_statistics_and_warnings_of_weights() -> None:
    graph = Graph(X, [[0, 1, 1, 2, 2], [1, 0, 2, 1, 1]], edge_weight=[1000, 1000, 2000, 500, 1000])
    assert statistics(graph).edge_weight == {"least": 500, "median": 1000, "most": 2000}
    assert statistics(Graph(X, EDGES)).edge_weight is None
    found = "\n".join(warnings(graph))
    assert "1 edges are repeated: their weights add up" in found
    assert "the median edge weight is 1,000" in found
