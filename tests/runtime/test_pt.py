"""`.pt` files: read without PyTorch, with the content that PyTorch reads."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from adar_runtime import Graph, SparseRows, read_graph, write_graph
from adar_runtime.errors import AdarWarning, GraphError, MissingExtraError
from adar_runtime.graph import GRAPH, NODE
from adar_runtime.graph.formats import read_graphs
from adar_runtime.graph.formats._tensor_arrays import float8_values
from adar_runtime.graph.formats._tensors import FLOAT8

FLOATS = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MASKS = ("train_mask", "val_mask", "test_mask")


def drawn_features(random: np.random.Generator, nodes: int, width: int) -> torch.Tensor:
    """Features of any type, in one of nine layouts in memory."""
    kind = str(random.choice([*FLOATS, *INTEGERS, "bool"]))
    base = torch.from_numpy(random.random((2 * nodes + 1, 2 * width + 1)) * 8).to(getattr(torch, kind))
    dense = base[:nodes, :width]
    sparse = (dense.float() * torch.from_numpy(random.random(dense.shape) < 0.5)).bfloat16()
    layouts = (
        dense.clone,
        lambda: dense,
        lambda: base[1::2, 1::2][:nodes, :width],
        lambda: base.T[:width, :nodes].T,
        lambda: dense[:1].expand(nodes, width),
        lambda: dense[:, :1].expand(nodes, width),
        lambda: torch.nn.Parameter(dense.float()),
        sparse.to_sparse,
        sparse.to_sparse_csr,
        sparse.to_sparse_csc,
    )
    return layouts[random.integers(len(layouts))]()


def drawn_data(seed: int) -> dict[str, Any]:
    """The entries of a valid graph, with optional and unknown keys."""
    random = np.random.default_rng(seed)
    nodes, width, edges = (int(random.integers(low, 9)) for low in (1, 1, 0))
    index = torch.from_numpy(random.integers(0, nodes, (edges, 2))).to(
        getattr(torch, random.choice(INTEGERS))
    )
    several = random.random() < 0.5
    optional = {
        "y": torch.from_numpy(random.integers(-1, 4, (nodes, 1) if several else nodes)),
        **{name: torch.from_numpy(random.random((nodes, 3) if several else nodes) < 0.5) for name in MASKS},
        "edge_weight": torch.from_numpy(random.random(edges) + 0.1),
        "ids": [f"node é{number}" for number in range(nodes)] if several else torch.arange(nodes) * 3,
        "class_names": ["a", "b", "c", "d"] if several else ("a", "b", "c", "d"),
        "edge_attr": torch.from_numpy(random.random((edges, 2))),
        "num_nodes": nodes,
        "labels": torch.ones(2, dtype=torch.complex64).conj(),
        "note": {"a": [1, {"b": (0.5, None, True, 10**30)}], 3: torch.Size([2]), "d": torch.device("cpu")},
    }
    kept = {name: value for name, value in optional.items() if random.random() < 0.5}
    return {"x": drawn_features(random, nodes, width), "edge_index": index.T} | kept


def as_array(value: Any) -> Any:
    """A tensor as PyTorch converts it."""
    value = value.detach()
    value = value.to_dense() if value.layout != torch.strided else value
    numpy_has = not value.is_floating_point() or value.dtype in (torch.float16, torch.float32, torch.float64)
    return (value if numpy_has else value.float()).numpy()


def assert_same(graph: Graph, expected: dict[str, Any]) -> None:
    x = expected["x"]
    assert isinstance(graph.features, SparseRows) == (x.layout != torch.strided)
    assert np.array_equal(graph.rows(0, graph.nodes), as_array(x).astype(np.float32))
    assert np.array_equal(graph.edge_index, as_array(expected["edge_index"]).astype(np.int64))
    for key, found in (("y", graph.labels), ("edge_weight", graph.edge_weight)):
        wanted = expected.get(key)
        assert (found is None) == (wanted is None)
        assert wanted is None or np.array_equal(found, as_array(wanted).reshape(-1).astype(found.dtype))
    for name in MASKS:
        mask = getattr(graph, name)
        assert (mask is None) == (name not in expected)
        assert mask is None or np.array_equal(mask, np.atleast_2d(as_array(expected[name]).T))
    ids = expected.get("ids")
    assert ids is None or graph.ids.tolist() == (ids if isinstance(ids, list) else ids.tolist())
    assert graph.class_names == (tuple(expected["class_names"]) if "class_names" in expected else None)


def test_sparse_features_with_one_entry_are_written(tmp_path: Path) -> None:
    rows, columns = np.eye(4, 9, k=3)[:, :4].nonzero()  # numpy gives this one number a stride of 16
    assert len(columns) == 1
    x = SparseRows(np.searchsorted(rows, np.arange(5)), columns, np.ones(1), (4, 9))
    write_graph(tmp_path / "g.pt", Graph(x, [[0], [1]]))
    assert np.array_equal(read_graph(tmp_path / "g.pt").rows(0, 4), x.dense(0, 4))


def test_sparse_features_are_written_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(SparseRows(np.arange(5), np.arange(4), np.ones(4), (4, 9)), [[0], [1]])
    arrays, from_numpy = [], torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda array: arrays.append(array) or from_numpy(array))
    write_graph(tmp_path / "g.pt", graph)
    x = graph.features
    assert all(any(part is array for array in arrays) for part in (x.starts, x.columns, x.values))


@pytest.mark.filterwarnings("ignore")  # of unknown keys, and PyTorch's of sparse tensors
@pytest.mark.parametrize(
    "seeds", [range(100), pytest.param(range(100, 5000), marks=pytest.mark.torture)], ids=["fast", "all"]
)
def test_the_content_is_the_one_that_pytorch_reads(seeds: range, tmp_path: Path) -> None:
    path = tmp_path / "g.pt"
    for seed in seeds:
        torch.save(Data(**drawn_data(seed)), path)
        expected = torch.load(path, weights_only=False).to_dict()
        assert_same(read_graph(path), expected)


@pytest.mark.parametrize("name", FLOAT8)
def test_small_floats_are_those_of_pytorch(name: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float().numpy()
    assert np.array_equal(float8_values(name), codes, equal_nan=True)
    assert np.array_equal(np.signbit(float8_values(name))[codes == 0], np.signbit(codes)[codes == 0])


WITHOUT_PYTORCH = """
import sys
from pathlib import Path
import adar_runtime.graph  # numpy imports pickle itself
for name in ("torch", "torch_geometric", "pickle", "_pickle"):
    sys.modules[name] = None  # its import raises an ImportError
from adar_runtime.graph.formats import pt
graph = pt.read(Path(sys.argv[1]))
print(graph.rows(0, 2).tolist(), graph.labels.tolist(), graph.train_mask.tolist())
"""


def test_neither_pytorch_nor_pickle_is_imported(tmp_path: Path) -> None:
    path, mask = tmp_path / "g.pt", torch.tensor([[True, False], [False, True]])
    x, edges = torch.tensor([[1.0, 2], [3, 4]]).bfloat16(), torch.zeros(2, 1, dtype=torch.long)
    torch.save(Data(x=x, edge_index=edges, y=torch.tensor([1, 0]), train_mask=mask), path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYTORCH, path], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[[1.0, 2.0], [3.0, 4.0]] [1, 0] [[True, False], [False, True]]", (
        done.stderr
    )


def small(nodes: int, label: int, **entries: Any) -> Data:
    edges = torch.tensor([[0], [nodes - 1]])
    return Data(x=torch.full((nodes, 2), float(label)), edge_index=edges, y=torch.tensor([label]), **entries)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_graphs_is_read(kind: Any, tmp_path: Path) -> None:
    torch.save(kind([small(3, 0), small(1, 1), small(2, 1)]), tmp_path / "g.pt")
    graphs = read_graphs(tmp_path / "g.pt")
    assert [(graph.nodes, graph.level, graph.labels.tolist()) for graph in graphs] == [
        (3, GRAPH, [0]),
        (1, GRAPH, [1]),
        (2, GRAPH, [1]),
    ]
    assert graphs[2].edge_index.tolist() == [[0], [1]]
    with pytest.raises(GraphError, match="holds many graphs"):
        read_graph(tmp_path / "g.pt")


def test_graphs_with_labels_of_nodes_are_read_and_unused_keys_named_once(tmp_path: Path) -> None:
    data = [
        Data(x=torch.ones(n, 2), edge_index=torch.zeros(2, 1, dtype=int), y=torch.zeros(n, dtype=int))
        for n in (2, 3)
    ]
    data[1].edge_attr = torch.ones(1, 1)
    data[1].more = torch.ones(1)
    torch.save(data, tmp_path / "g.pt")
    with pytest.warns(AdarWarning, match="edge_attr .*, more") as warned:
        assert [graph.level for graph in read_graphs(tmp_path / "g.pt")] == [NODE, NODE]
    assert len(warned) == 1


def test_the_labels_of_a_list_are_warned_of_once(tmp_path: Path) -> None:
    """Labels with gaps were read as 101 classes without a word."""
    torch.save([small(3, 0), small(1, 100), small(2, 0)], tmp_path / "g.pt")
    with pytest.warns(AdarWarning, match="so 101 classes") as warned:
        read_graphs(tmp_path / "g.pt")
    assert len(warned) == 1


def test_a_label_without_a_dimension_belongs_to_a_graph_of_one_node_too(tmp_path: Path) -> None:
    data = [small(1, 1), small(3, 0)]
    for each in data:
        each.y = each.y[0]
    torch.save(data, tmp_path / "g.pt")
    found = [(graph.level, graph.labels.tolist()) for graph in read_graphs(tmp_path / "g.pt")]
    assert found == [(GRAPH, [1]), (GRAPH, [0])]


def test_an_error_names_the_graph(tmp_path: Path) -> None:
    torch.save([small(3, 0), Data(x=torch.ones(2, 2))], tmp_path / "g.pt")
    with pytest.raises(GraphError, match="graph 2 of 2: key 'edge_index' not found"):
        read_graphs(tmp_path / "g.pt")


def test_a_data_set_of_pyg_is_read(tmp_path: Path) -> None:
    given = [small(3, 0, edge_weight=torch.tensor([2.0])), small(2, 1, edge_weight=torch.tensor([0.5]))]
    InMemoryDataset.save(given, tmp_path / "new.pt")
    torch.save(InMemoryDataset.collate(given), tmp_path / "old.pt")
    for name in ("new.pt", "old.pt"):
        first, second = read_graphs(tmp_path / name)
        assert (first.nodes, second.nodes, second.level) == (3, 2, GRAPH)
        assert (first.labels.tolist(), second.labels.tolist()) == ([0], [1])
        assert second.edge_index.tolist() == [[0], [1]]
        assert second.edge_weight.tolist() == [0.5]


def test_a_data_set_without_features_gets_degrees(tmp_path: Path) -> None:
    edges = torch.tensor([[0], [1]])
    given = [Data(edge_index=edges, y=torch.tensor([label]), num_nodes=2 + label) for label in (0, 1)]
    InMemoryDataset.save(given, tmp_path / "g.pt")
    with pytest.warns(AdarWarning, match="made from degrees"):
        assert [graph.nodes for graph in read_graphs(tmp_path / "g.pt")] == [2, 3]


@pytest.mark.parametrize("listed", [False, True])
def test_a_number_of_nodes_that_is_not_that_of_x_is_an_error(tmp_path: Path, listed: bool) -> None:
    """Nodes without features were left out without a word. In memory, this was an error already."""
    data = small(3, 0, num_nodes=5)
    if not listed:
        data.y = torch.zeros(3, dtype=torch.long)
    torch.save([small(2, 1), data] if listed else data, tmp_path / "g.pt")
    with pytest.raises(GraphError, match="num_nodes is not 3"):
        read_graphs(tmp_path / "g.pt")
    data.num_nodes = 3
    torch.save([data] if listed else data, tmp_path / "g.pt")
    assert read_graphs(tmp_path / "g.pt")[0].nodes == 3


def test_columns_of_0_and_1_as_labels_are_a_warning(tmp_path: Path) -> None:
    """One column per class was read as regression targets without a word."""
    data = small(3, 0)
    data.y = torch.eye(3)
    torch.save(data, tmp_path / "g.pt")
    with pytest.warns(AdarWarning, match="3 columns of 0 and 1, so they are read as regression targets"):
        assert read_graph(tmp_path / "g.pt").regression
    data.y = torch.tensor([[0.0, 1.0], [0.5, 1.0], [1.0, 0.0]])
    torch.save(data, tmp_path / "g.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_graph(tmp_path / "g.pt").regression


def test_a_data_set_with_labels_of_nodes_is_an_error(tmp_path: Path) -> None:
    given = [
        Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 1, dtype=int), y=torch.zeros(2, dtype=int))
    ] * 2
    InMemoryDataset.save(given, tmp_path / "g.pt")
    with pytest.raises(GraphError, match="give one label per graph"):
        read_graphs(tmp_path / "g.pt")


def test_labels_that_belong_to_other_graphs_are_an_error(tmp_path: Path) -> None:
    """One graph has two labels and another has none: the second label was read as that of the other graph."""
    given = [small(3, 0), small(2, 1)]
    given[0].y, given[1].y = torch.tensor([0, 1]), torch.zeros(0, dtype=int)
    InMemoryDataset.save(given, tmp_path / "g.pt")
    with pytest.raises(GraphError, match="y does not have one value for each graph"):
        read_graphs(tmp_path / "g.pt")
    weights = [small(3, 0, edge_weight=torch.ones(2)), small(2, 1, edge_weight=torch.ones(0))]
    InMemoryDataset.save(weights, tmp_path / "g.pt")
    with pytest.raises(GraphError, match="edge_weight does not have one value for each edge"):
        read_graphs(tmp_path / "g.pt")


def test_writing_needs_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingExtraError, match=r"writing a \.pt graph needs"):
        write_graph(tmp_path / "g.pt", Graph(np.ones((2, 1)), np.zeros((2, 0), int)))
