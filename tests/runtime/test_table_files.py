"""Pairs of tables in every format: the same graph, the same encoding, and errors that name the row."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_runtime import read_graph, write_graph
from adar_runtime.errors import AdarWarning, GraphError, MissingExtraError, UsageError
from adar_runtime.graph import EncodedColumn, FeatureEncoding
from adar_runtime.graph.formats import TableChoice, _arrow, _table_files, import_graph, read_tables
from adar_runtime.graph.formats.tables import read_new_nodes

parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")

NODES = {
    "person": ["b", "a", "c d", "é"],
    "height": [1.5, 2.0, None, 4.0],
    "colour": ["red", "blue", "red", None],
    "member": [True, False, True, True],
    "group": ["yes", "no", None, "yes"],
    "split": ["train", "val", "test", None],
}
EDGES = {"weight": [1.0, 2.0, 3.0], "source": ["b", "a", "é"], "target": ["a", "c d", "b"]}
CHOICE = TableChoice(id="person", label="group")
FORMATS = [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"]


def write(path: Path, columns: dict) -> Path:
    """A table in the format of the suffix; None is a gap."""
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(columns), path)
    elif path.suffix in (".jsonl", ".ndjson"):
        objects = ({key: v for key, v in zip(columns, row, strict=True) if v is not None} for row in rows)
        path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(columns)
            writer.writerows(["" if v is None else v for v in row] for row in rows)
    return path


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("edges", FORMATS)
@pytest.mark.parametrize("nodes", FORMATS)
def test_every_format_gives_the_same_graph(
    tmp_path: Path, nodes: str, edges: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:  # pyarrow reads text as well
        monkeypatch.setattr(_table_files, "LARGE", 1)
    read = read_tables(write(tmp_path / f"n{nodes}", NODES), write(tmp_path / f"e{edges}", EDGES), CHOICE)
    graph = read.graph
    assert graph.ids.tolist() == NODES["person"]
    assert graph.edge_index.tolist() == [[0, 1, 3], [1, 2, 0]]
    assert (graph.labels.tolist(), graph.class_names) == ([1, 0, -1, 1], ("no", "yes"))
    assert graph.train_mask.tolist() == [[True, False, False, False]]
    member = graph.feature_encoding.columns[2]
    assert graph.features[:, :5].tolist() == [
        [1.5, 0, 0, 1, 0], [2, 0, 1, 0, 0], [0, 1, 0, 1, 0], [4, 0, 0, 0, 1]
    ]  # fmt: skip
    text = nodes in (".csv", ".tsv")  # a text has no type for truth values: True and False are words
    assert member == (
        EncodedColumn("member", "category", ("False", "True")) if text else EncodedColumn("member", "number")
    )
    assert graph.features[:, -1].tolist() == [1, 0, 1, 1]
    assert any("weight" in note for note in read.notes)


def test_pyarrow_reads_large_text_and_gives_the_same_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    ids = [f"n{i}" for i in random.permutation(500)]
    nodes = {
        "id": ids,
        "x": [f" {value:.3f} " for value in random.normal(size=500)],
        "word": [["a", " b", 'say "c", d', "two\nlines", ""][i % 5] for i in range(500)],
        "y": [["1", "2.0", "2", "", "-1"][i % 5] for i in range(500)],
    }
    edges = {
        "source": [ids[i] for i in random.integers(0, 500, 900)],
        "target": [ids[i] for i in random.integers(0, 500, 900)],
    }
    write(tmp_path / "n.csv", nodes), write(tmp_path / "e.csv", edges)
    plain = read_tables(tmp_path / "n.csv", tmp_path / "e.csv").graph
    monkeypatch.setattr(_table_files, "LARGE", 1)
    called = []
    read_text = _arrow.read_text
    monkeypatch.setattr(_arrow, "read_text", lambda *args: called.append(args[0].name) or read_text(*args))
    fast = read_tables(tmp_path / "n.csv", tmp_path / "e.csv").graph
    assert called == ["n.csv", "e.csv"]
    for name in ("features", "edge_index", "labels", "ids"):
        assert np.array_equal(getattr(fast, name), getattr(plain, name)), name
    assert (fast.class_names, fast.feature_encoding) == (plain.class_names, plain.feature_encoding)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "edges", ["source,target\na,b,1\nb,a\n", 'source,target,why\na,b,\nb,a,"two\nlines"\n']
)
def test_edges_are_read_alike_by_both_readers(tmp_path: Path, monkeypatch, large: bool, edges: str) -> None:
    """Rows of different lengths, and a cell with a line break at the end."""
    if large:
        monkeypatch.setattr(_table_files, "LARGE", 1)
    (tmp_path / "n.csv").write_text("id,x\na,1\nb,2\n")
    (tmp_path / "e.csv").write_text(edges)
    found = read_tables(tmp_path / "n.csv", tmp_path / "e.csv").graph
    assert found.edge_index.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (
            "id,x\na,1\nb,2\na,3\n",
            "source,target\na,b\n",
            "n.csv: line 4: node 'a' is already defined in line 2",
        ),
        ('id,x\n"a\n",1\nb,2\n', "source,target\na,b\nb,z\n", "e.csv: line 3: node 'z' is not in"),
        ("id,x\na,1\nb,2,3\n", "source,target\na,b\n", "n.csv: line 3 has 3 cells, but the header has 2"),
        ("id,x\na,1\nb,inf\n", "source,target\na,b\n", "n.csv: line 3: 'x' is inf"),
        ("id,x\na,1\nb,2\n", "source,target\na,b\n,b\n", "e.csv: line 3: an edge needs two node ids"),
        # pyarrow reads all lines below as one cell
        (
            'id,x,y\na,1,"no\nb,2,no\n',
            "source,target\na,a\n",
            "n.csv: line 2 is not a valid table row (a quote",
        ),
        (
            "id,x\na,1\nb,2\n",
            'source,target,why\na,b,"so\nb,a,so\n',
            "e.csv: line 2 is not a valid table row (a quote is opened and never closed)",
        ),
        # the quote of a later cell closes it
        (
            "id,x\na,1\nb,2\n",
            'source,target,why\na,b,"so\nb,a,"so"\na,a,so\n',
            "e.csv: line 2 has a quote that is not closed in its cell, which ends in line 3",
        ),
        (
            "id,x\na,1\nb,2\n",
            'source,target,why\na,b,"so\n"b","a","so"\n',
            "e.csv: line 2 has a quote that is not closed in its cell, which ends in line 3",
        ),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_errors_name_the_line(tmp_path: Path, nodes, edges, message, large, monkeypatch) -> None:
    """What pyarrow reads without lines is read again to find the line."""
    if large:
        monkeypatch.setattr(_table_files, "LARGE", 1)
    (tmp_path / "n.csv").write_text(nodes)
    (tmp_path / "e.csv").write_text(edges)
    with pytest.raises(GraphError) as error:
        read_tables(tmp_path / "n.csv", tmp_path / "e.csv")
    assert str(error.value).replace(f"{tmp_path}/", "").startswith(message)


def test_rows_of_parquet_and_lines_of_json_are_named(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    for suffix, place in ((".parquet", "row 3: node 'a' is already defined in row 1"), (".jsonl", "line 3")):
        nodes = write(tmp_path / f"n{suffix}", {"id": ["a", "b", "a"], "x": [1, 2, 3]})
        with pytest.raises(GraphError, match=place):
            read_tables(nodes, edges)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["b", "c", "d", "a"], "every edge goes one way"),
        (["b"] * 11 + ["a"], None),  # a → b and b → a, repeated
        ([], "the graph has no edges"),
    ],
)
def test_missing_edges_and_directions_are_said(tmp_path: Path, targets: list[str], said: str | None) -> None:
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b", "c", "d"], "x": [1, 2, 3, 4]})
    sources = (["a"] * 11 + ["b"]) if said is None else ["a", "b", "c", "d"][: len(targets)]
    edges = write(tmp_path / "e.csv", {"source": sources, "target": targets})
    found = [note for note in read_tables(nodes, edges).notes if "edge" in note]
    assert [note[: len(said or "")] for note in found] == ([said] if said else [])


def test_a_few_reverse_edges_do_not_hide_one_way_edges(tmp_path: Path) -> None:
    ids = [str(number) for number in range(40)]
    nodes = write(tmp_path / "n.csv", {"id": ids, "x": [1.0] * 40})
    edges = write(tmp_path / "e.csv", {"source": [*ids, "1"], "target": [*ids[1:], "0", "0"]})
    assert any(note.startswith("39 of 41 edges go one way") for note in read_tables(nodes, edges).notes)


def test_empty_cells_of_categories_are_counted(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b", "c", "d"], "plan": ["gold", "", "basic", ""]})
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    notes = read_tables(nodes, edges).notes
    assert "'plan' became 2 one-hot columns, one per value" in notes
    assert "empty cells became 0, with a column that marks them: 2 of 'plan'" in notes


def test_columns_are_guessed_and_said(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", {"x": [1, 2], "Node_ID": ["a", "b"], "Label": ["u", "v"]})
    edges = write(tmp_path / "e.parquet", {"dst": ["b"], "src": ["a"]})
    read = read_tables(nodes, edges)
    assert read.graph.ids.tolist() == ["a", "b"]
    assert read.graph.edge_index.tolist() == [[0], [1]]
    assert "node ids are from 'Node_ID'" in read.notes
    assert "labels are from 'Label': 2 classes" in read.notes
    assert any(note.startswith("every edge goes one way") for note in read.notes)
    encoding = read.graph.feature_encoding
    assert (encoding.id, encoding.label, encoding.source, encoding.target) == (
        "Node_ID",
        "Label",
        "src",
        "dst",
    )
    edges = write(tmp_path / "e.parquet", {"one": ["a"], "two": ["b"]})
    assert "edges go from 'one' to 'two'" in read_tables(nodes, edges).notes


def test_chosen_features_and_both_ways(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", NODES)
    edges = write(tmp_path / "e.csv", EDGES)
    choice = TableChoice(id="person", label="group", features=("colour",), both_ways=True)
    graph = read_tables(nodes, edges, choice).graph
    assert graph.feature_encoding.feature_names == ["colour=blue", "colour=red", "colour is missing"]
    assert graph.edges == 6
    assert graph.feature_encoding.both_ways
    names = [f"name {i}" for i in range(1001)]
    many = write(tmp_path / "m.csv", {"id": [*range(1001)], "name": names})
    pair = write(tmp_path / "p.csv", {"source": [0], "target": [1]})
    with pytest.raises(GraphError, match=r"'name' has 1,001 different words; at most 1,000 become features"):
        read_tables(many, pair, TableChoice(features=("name",)))
    assert read_tables(many, pair).graph.feature_encoding.columns == ()  # text is left out
    with pytest.raises(UsageError, match="omit --features"):
        read_tables(nodes, edges, choice, graph.feature_encoding)


def test_a_later_table_becomes_the_same_features(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", EDGES)
    encoding = read_tables(write(tmp_path / "n.csv", NODES), edges, CHOICE).graph.feature_encoding
    later = NODES | {
        "colour": ["green", "teal", "red", "green"],
        "extra": [1, 2, 3, 4],
        "member": ["True"] * 4,
    }
    later["height"], later["group"] = [9, 8, 7, 6], ["?"] * 4
    nodes = write(tmp_path / "later.jsonl", dict(reversed(later.items())))  # another order and format
    message = (
        r"3 values of 'colour' are categories that the model has not seen: green, teal; they become zeros"
    )
    with pytest.warns(AdarWarning, match=message):
        read = read_tables(nodes, edges, encoding=encoding)
    assert read.graph.feature_encoding.columns == encoding.columns
    assert read.graph.features[:, 0].tolist() == [9, 8, 7, 6]
    assert read.graph.features[:, 2:5].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert read.notes == ["columns that the model does not use: extra"]
    write_graph(tmp_path / "g.npz", read.graph)
    assert read_graph(tmp_path / "g.npz").feature_encoding == read.graph.feature_encoding


def test_numbers_with_a_decimal_comma_are_named(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "x": ["1", "2,5"], "y": ["one, two", "3"]})
    notes = read_tables(nodes, edges).notes
    assert [note for note in notes if "comma" in note] == [
        "'x' has numbers with a comma ('2,5'): write them with a point to use them"
    ]


def test_values_that_a_model_cannot_take(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    encoding = FeatureEncoding((EncodedColumn("x", "number"), EncodedColumn("y", "number")), id="id")
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "x": ["1", "n/a"], "y": [1, 2]})
    with pytest.raises(GraphError, match=r"n\.csv: line 3: 'x' is 'n/a': the model takes numbers here"):
        read_tables(nodes, edges, encoding=encoding)
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "x": ["1", ""], "y": [1, 2]})
    with pytest.warns(AdarWarning, match="1 values of 'x' are missing, which the model has not seen"):
        assert read_tables(nodes, edges, encoding=encoding).graph.features.tolist() == [[1, 1], [0, 2]]
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "z": [1, 2]})
    with pytest.raises(GraphError, match=r"the model needs the column x, y; the columns are z"):
        read_tables(nodes, edges, encoding=encoding)
    with pytest.raises(GraphError, match=r"id column 'id' not found; the columns are key, x"):
        read_tables(write(tmp_path / "n.csv", {"key": ["a"], "x": [1]}), edges, encoding=encoding)


def test_ids_keep_their_type_and_their_text(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"source": ["007"], "target": ["8"]})
    assert read_tables(
        write(tmp_path / "n.csv", {"id": ["007", "8"], "x": [1, 2]}), edges
    ).graph.ids.tolist() == ["007", "8"]
    numbers = write(tmp_path / "n.parquet", {"id": [2**62, -1], "x": [1, 2]})
    floats = write(tmp_path / "e.parquet", {"source": [-1.0, None], "target": [-1.0, -1.0]})
    with pytest.raises(GraphError, match="row 2: an edge needs two node ids"):
        read_tables(numbers, floats)  # pandas turns integers with a gap into floats
    floats = write(tmp_path / "e.parquet", {"source": [-1.0], "target": [-1.0]})
    ids = read_tables(numbers, floats).graph.ids
    assert (ids.dtype, ids.tolist()) == (np.int64, [2**62, -1])
    assert import_graph(edges).graph.ids.tolist() == ["007", "8"]
    assert import_graph(floats).graph.ids.tolist() == [-1]


def test_nested_columns_are_left_out_with_a_note(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    for suffix in (".parquet", ".jsonl"):
        nodes = write(tmp_path / f"n{suffix}", {"id": ["a", "b"], "x": [1, 2], "tags": [["u"], ["v", "w"]]})
        read = read_tables(nodes, edges)
        assert "columns of lists or objects are not read: tags" in read.notes
        assert read.graph.features.tolist() == [[1], [2]]


def test_parquet_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, edges = write(tmp_path / "n.parquet", NODES), write(tmp_path / "e.csv", EDGES)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"adar-deploy\[parquet\]"):
        read_tables(nodes, edges, CHOICE)


@pytest.mark.parametrize("suffix", FORMATS)
def test_masks_in_a_table_are_masks_and_not_features(tmp_path: Path, suffix: str) -> None:
    masks = {"train_mask": [1, 0, 0], "val_mask": [False, True, False], "Test_Mask": ["false", "False", "1"]}
    nodes = write(tmp_path / f"n{suffix}", {"id": ["a", "b", "c"], "h": [1, 2, 3], **masks})
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    graph = read_tables(nodes, edges).graph
    assert graph.width == 1
    parts = [mask[0].tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]
    assert parts == np.eye(3, dtype=bool).tolist()
    assert read_tables(nodes, edges, TableChoice(features=("h", "train_mask"))).graph.width == 2


def test_a_column_split_that_is_a_feature_of_the_model_stays_one(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", {"id": [1, 2, 3, 4], "split": ["left", "right", "left", "right"]})
    edges = write(tmp_path / "e.csv", {"source": [1, 2], "target": [2, 3]})
    trained = read_tables(nodes, edges, TableChoice(features=("split",))).graph
    later = read_tables(nodes, edges, encoding=trained.feature_encoding).graph
    assert np.array_equal(later.features, trained.features)
    assert later.train_mask is None


def test_a_mask_with_other_words_is_refused(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "train_mask": ["yes", "no"]})
    with pytest.raises(GraphError, match="line 2: 'train_mask' is 'yes', not true or false"):
        read_tables(nodes, edges)
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "train_mask": [1, 0], "split": ["train", "val"]})
    with pytest.raises(GraphError, match="both 'split' and 'train_mask' are a split"):
        read_tables(nodes, edges)


def test_rows_that_look_like_comments_are_reported(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("# people\nid,h\n#a,1\nb,2\n# a remark\nc,3\n")
    edges = write(tmp_path / "e.csv", {"source": ["b"], "target": ["c"]})
    with pytest.warns(AdarWarning, match="1 lines with as many cells as a row begin with # or % .* line 3"):
        assert read_tables(tmp_path / "n.csv", edges).graph.nodes == 2


def test_numbers_with_underscores_are_words_and_large_labels_have_one_order(tmp_path: Path) -> None:
    labels = ["90071992547409932", "90071992547409931"]
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "version": ["1_0", "2_0"], "label": labels})
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    graph = read_tables(nodes, edges).graph
    assert graph.features.tolist() == [[1, 0], [0, 1]]
    assert graph.class_names == tuple(sorted(labels))


def test_new_nodes_without_columns_have_the_degree_of_their_edges(tmp_path: Path) -> None:
    """As in the whole graph, which a model without feature columns was trained on."""
    nodes, edges, new = tmp_path / "nodes.csv", tmp_path / "edges.csv", tmp_path / "new.csv"
    nodes.write_text("id\na\nb\nc\nd\n")
    new.write_text("id\nc\nd\n")
    edges.write_text("source,target\na,c\nb,c\nc,d\na,d\nc,a\n")
    whole = read_tables(nodes, edges).graph
    encoding = FeatureEncoding((), id="id", source="source", target="target")
    found = read_new_nodes(new, edges, ["a", "b"], TableChoice(), encoding)
    np.testing.assert_array_equal(found.graph.features, whole.features[2:])
    assert found.graph.features[0, 1] == np.float32(np.log(5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,b\nnew,1,red\n", "the column 'b' has words"),
        ("id,a,b\nnew,1,\nother,2,3\n", "the column 'b' has empty cells"),
        ("id\nnew\n", "no feature columns"),
    ],
)
def test_new_nodes_of_a_model_of_graph_files_are_numbers(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(GraphError, match=message):
        read_new_nodes(tmp_path / "new.csv", None, ["a"], TableChoice(), None)


def test_weights_of_edges_of_new_nodes_are_said_to_be_unused(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id,a\nnew,1\n")
    (tmp_path / "edges.csv").write_text("source,target,weight\na,new,2\n")
    found = read_new_nodes(tmp_path / "new.csv", tmp_path / "edges.csv", ["a"], TableChoice(), None)
    assert "the edges have weights, which the model does not use" in found.notes
    (tmp_path / "edges.csv").write_text("source,target,weight\na,new,-2\n")
    with pytest.raises(GraphError, match="positive"):
        read_new_nodes(tmp_path / "new.csv", tmp_path / "edges.csv", ["a"], TableChoice(), None)


def test_true_and_false_are_classes_in_json_lines(tmp_path: Path) -> None:
    rows = [
        {"id": name, "a": 1, "y": value}
        for name, value in zip("abcd", [True, False, None, True], strict=True)
    ]
    (tmp_path / "n.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    graph = read_tables(tmp_path / "n.jsonl", tmp_path / "e.csv").graph
    assert (graph.labels.tolist(), graph.class_names) == ([1, 0, -1, 1], ("False", "True"))


def test_words_for_missing_values_are_named(tmp_path: Path) -> None:
    """R writes NA where pandas writes nothing."""
    (tmp_path / "n.csv").write_text("id,f,y\na,1,0\nb,NA,1\nc,2,NA\nd,3,0\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    notes = read_tables(tmp_path / "n.csv", tmp_path / "e.csv").notes
    assert any("'NA' in 'f' is not a number" in note for note in notes)
    assert any("'NA' in 'y' is a class of the labels" in note for note in notes)


@pytest.mark.parametrize("later", FORMATS)
@pytest.mark.parametrize("first", [".csv", ".jsonl", ".parquet"])
def test_true_and_false_are_the_same_features_in_every_format(
    tmp_path: Path, first: str, later: str, recwarn: pytest.WarningsRecorder
) -> None:
    """A text table of another program has the words in lower or upper case."""
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    values = {"id": ["a", "b", "c"], "member": [True, False, True]}
    words = values | {"member": ["true", "false", "true"]}
    model = read_tables(write(tmp_path / f"n{first}", words if first == ".csv" else values), edges).graph
    is_text = later in (".csv", ".tsv")
    nodes = write(
        tmp_path / f"later{later}", words | {"member": ["TRUE", "FALSE", "TRUE"]} if is_text else values
    )
    found = read_tables(nodes, edges, encoding=model.feature_encoding).graph
    assert found.features.tolist() == model.features.tolist()
    assert not recwarn.list


def test_labels_of_minus_one_are_said_to_be_unknown(tmp_path: Path) -> None:
    """-1, 0 and 1 may be three classes, such as opinions."""
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    nodes = write(tmp_path / "n.csv", {"id": list("abcd"), "x": [1, 2, 3, 4], "y": ["-1", "0", "1", "-1.0"]})
    read = read_tables(nodes, edges)
    assert read.graph.labels.tolist() == [-1, 0, 1, -1]
    assert "2 labels of 'y' are -1, which is no class: they are unknown" in read.notes


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("heading", ["", "Unnamed: 0", "Unnamed: 0.1", "__index_level_1__"])
def test_row_numbers_of_pandas_are_no_feature_and_no_ids(tmp_path: Path, heading: str, suffix: str) -> None:
    numbered = {heading: [0, 1, 2]}
    nodes = write(tmp_path / f"n{suffix}", numbered | {"id": [7, 8, 9], "x": [1, 2, 3]})
    edges = write(tmp_path / f"e{suffix}", numbered | {"source": [7, 8, 7], "target": [8, 9, 9]})
    found = read_tables(nodes, edges)
    assert found.graph.features.tolist() == [[1], [2], [3]]
    assert any("was left out: pandas writes row numbers" in note for note in found.notes)
    chosen = read_tables(nodes, edges, TableChoice(features=(heading,))).graph
    assert chosen.features.tolist() == [[0], [1], [2]]
    assert read_tables(nodes, edges, encoding=chosen.feature_encoding).graph.features.tolist() == [
        [0],
        [1],
        [2],
    ]
    edges = write(tmp_path / f"f{suffix}", numbered | {"u": [0, 1, 2], "v": [1, 2, 0]})
    if suffix in (".csv", ".tsv"):  # where the first line may be an edge
        said = f"is '{heading}'" if heading else "has no name"
        with pytest.raises(GraphError, match=f"line 1: the first column {said}, as row numbers of pandas"):
            import_graph(edges)
    else:
        assert import_graph(edges).graph.edge_index.tolist() == [[0, 1, 2], [1, 2, 0]]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", ["source", "target", "weight"])
def test_lists_in_a_column_that_an_edge_needs_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    """The next columns were the ids, or the weights were not used."""
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2], "x": [1, 2, 3]})
    columns = {"source": [0, 1], "target": [1, 2], "weight": [1.0, 2.0], "a": [0, 1], "b": [0, 2]}
    edges = write(tmp_path / f"e{suffix}", columns | {name: [[one] for one in columns[name]]})
    with pytest.raises(GraphError, match=f"the column '{name}' of edges holds lists or objects"):
        read_tables(nodes, edges)


@pytest.mark.parametrize(
    ("columns", "choice"),
    [
        ({"source": [0, 1], "target": [1, 2], "from": [["a"], ["b"]]}, TableChoice()),
        ({"u": [0, 1], "v": [1, 2], "source": [["a"], ["b"]]}, TableChoice()),
        (
            {"u": [0, 1], "v": [1, 2], "source": [["a"], ["b"]], "target": [3, 3]},
            TableChoice(source="u", target="v"),
        ),
    ],
)
def test_lists_in_other_columns_of_edges_are_left_out(
    tmp_path: Path, columns: dict[str, list[Any]], choice: TableChoice
) -> None:
    """A column such as "from" was refused even beside source and target."""
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2], "x": [1, 2, 3]})
    edges = write(tmp_path / "e.jsonl", columns)
    assert read_tables(nodes, edges, choice).graph.edge_index.tolist() == [[0, 1], [1, 2]]


def test_a_column_has_one_meaning(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", {"id": ["a", "b"], "x": [1, 2], "y": [0, 1]})
    edges = write(tmp_path / "e.csv", {"source": ["a"], "target": ["b"]})
    for choice, message in (
        (TableChoice(source="target"), "source and target are both the column 'target'"),
        (TableChoice(label="x", features=("x",)), "'x' is the label and a feature"),
    ):
        with pytest.raises(GraphError, match=message):
            read_tables(nodes, edges, choice)
    write(edges, {"source": ["a"], "target": ["b"], "weight": ["1_0"]})
    with pytest.raises(GraphError, match="the weight of the edge is '1_0'"):
        read_tables(nodes, edges)
