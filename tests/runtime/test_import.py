"""Graph files of other programs: edge lists, tables of nodes, GraphML and GML."""

import warnings
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from adar_runtime import write_graph
from adar_runtime.errors import AdarError, AdarWarning, GraphError, UsageError
from adar_runtime.graph import FeatureEncoding
from adar_runtime.graph.formats import import_graph, read_graph
from adar_runtime.graph.formats.graphml import from_networkx
from adar_runtime.graph.formats.texts import read_texts
from adar_runtime.graph.limits import MAX_CLASSES
from tests.helpers import random_graph

NO_IDS = "; node ids are from the column 'f1'; choose another column with --id"
NODES = "id,height,colour,y,split\nb,1.5,red,yes,train\na,2,blue,no,val\nc,,red,,test\n"


def test_edges_with_a_table_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target,weight\na,b,3\nc,a,1\n")
    (tmp_path / "n.csv").write_text(NODES)
    imported = import_graph(tmp_path / "e.csv", tmp_path / "n.csv")
    graph = imported.graph
    assert graph.edge_index.tolist() == [[1, 2], [0, 1]]
    # height, height is missing, blue, red
    assert graph.features.tolist() == [[1.5, 0, 0, 1], [2, 0, 1, 0], [0, 1, 0, 1]]
    assert graph.ids.tolist() == ["b", "a", "c"]
    assert graph.labels.tolist() == [1, 0, -1]
    assert graph.class_names == ("no", "yes")
    assert [mask.tolist() for mask in (graph.train_mask[0], graph.test_mask[0])] == [
        [True, False, False],
        [False, False, True],
    ]
    assert any("weight" in note for note in imported.notes)


@pytest.mark.parametrize(
    "content", ["10 2\n2 7\n", "# SNAP\n10\t2\n\n2\t7\n", "10;2\r\n2;7\r\n", "from,to\n10,2\n2,7\n"]
)
def test_edges_alone_with_any_separator(tmp_path: Path, content: str) -> None:
    (tmp_path / "e.txt").write_text(content)
    graph = import_graph(tmp_path / "e.txt").graph
    assert graph.edge_index.tolist() == [[2, 0], [0, 1]]  # ids 2, 7, 10, sorted by value
    assert graph.features[:, 0].tolist() == [1, 1, 1]
    assert graph.features[:, 1] == pytest.approx(np.log1p([2, 1, 1]))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tsv", "a\tb\t1,5\nb\tc\t2,5\n"), ("a.csv", "a;b;1,5\nb;c;2\n"), ("a.tsv", "a\tb\t1,5,2,3\nb\tc\n")],
)
def test_one_separator_holds_for_the_whole_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert import_graph(tmp_path / name).graph.edge_index.tolist() == [[0, 1], [1, 2]]
    (tmp_path / "n.tsv").write_text("id\tx\ttitle\nc\t1\tone, two\nb\t2\tthree\na\t3\tfour; five\n")
    graph = import_graph(tmp_path / name, tmp_path / "n.tsv").graph
    assert graph.edge_index.tolist() == [[2, 1], [1, 0]]
    assert graph.features[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("first", ["u,v", "v,u", "to,from", "from,u", "target,source"])
def test_only_a_known_pair_is_a_header(tmp_path: Path, first: str) -> None:
    (tmp_path / "e.csv").write_text(f"{first}\n{first}\n")
    assert import_graph(tmp_path / "e.csv").graph.edges == 2
    (tmp_path / "e.csv").write_text("SRC,dst\nu,v\n")
    assert import_graph(tmp_path / "e.csv").graph.edges == 1


def test_ids_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text(f"{'9' * 5000} 007\n7 {'1' * 5000}\n")
    assert import_graph(tmp_path / "e.txt").graph.edge_index.tolist() == [[3, 1], [0, 2]]


@pytest.mark.parametrize(("suffix", "write"), [("graphml", nx.write_graphml), ("gml", nx.write_gml)])
def test_files_of_networkx(tmp_path: Path, suffix: str, write) -> None:
    club = nx.karate_club_graph()
    for node in club:
        club.nodes[node]["height"] = float(node)
    write(club, tmp_path / f"club.{suffix}")
    graph = import_graph(tmp_path / f"club.{suffix}", label="club").graph
    assert (graph.nodes, graph.edges, graph.targets) == (34, 2 * 78, 2)
    assert graph.features[:, 0].tolist() == list(range(34))
    assert graph.class_names == ("Mr. Hi", "Officer")
    assert {tuple(edge) for edge in graph.edge_index.T.tolist()} == {
        pair for a, b in club.edges() for pair in ((a, b), (b, a))
    }


def test_an_empty_cell_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\nb,c\n")
    (tmp_path / "n.csv").write_text("id,v,w,label\na,0.5,1,3.7\nb,, ,\nc,.1,,2.1\n")
    imported = import_graph(tmp_path / "e.csv", tmp_path / "n.csv")
    graph = imported.graph
    assert graph.labels[:, 0] == pytest.approx([3.7, np.nan, 2.1], nan_ok=True)
    assert graph.labelled("all").tolist() == [True, False, True]
    expected = [[0.5, 0, 1, 0], [0, 1, 0, 1], [0.1, 0, 0, 1]]  # v, v is missing, w, w is missing
    assert graph.features == pytest.approx(np.array(expected))
    note = "empty cells became 0, with a column that marks them: 1 of 'v', 2 of 'w'"
    assert note in imported.notes
    write_graph(tmp_path / "g.npz", graph)
    assert np.isnan(read_graph(tmp_path / "g.npz").labels[1, 0])


def test_a_note_lists_only_a_few_columns_with_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,a\n")
    (tmp_path / "n.csv").write_text(f"id,{','.join('abcdefg')}\na{',' * 7}\n")
    notes = import_graph(tmp_path / "e.csv", tmp_path / "n.csv").notes
    (note,) = (one for one in notes if one.startswith("empty cells"))
    assert note.endswith("1 of 'e', …: 7 columns in total")


def test_directed_graphs_stay_directed_and_numbers_stay_numbers() -> None:
    directed = nx.DiGraph([("a", "b"), ("b", "c")])
    nx.set_node_attributes(directed, {"a": 0.5, "b": 1.5, "c": 2.0}, "y")
    graph = from_networkx(directed).graph
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
    assert graph.regression
    assert graph.labels.tolist() == [[0.5], [1.5], [2.0]]


@pytest.mark.parametrize("values", [[1, 2, 7], [0, -1, 1], ["0", "1", "2"]])
def test_classes_by_number(values: list) -> None:
    path = nx.path_graph(3)
    nx.set_node_attributes(path, dict(enumerate(values)), "label")
    graph = from_networkx(path).graph
    if -1 in values:
        assert graph.labels.tolist() == values
    else:
        assert graph.labels.tolist() == [0, 1, 2]
    assert graph.class_names == (("1", "2", "7") if 7 in values else None)


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        ([1999, 2004, 1999], None, [0, 1, 0]),
        ([1999, 2004, 1999], "classes", [0, 1, 0]),
        ([1999, 2004, 1999], "numbers", [[1999], [2004], [1999]]),
        ([1.5, 2, 1.5], None, [[1.5], [2], [1.5]]),
        ([1.5, 2, 1.5], "classes", [0, 1, 0]),
        ([1, None, 2], "numbers", [[1], [np.nan], [2]]),
    ],
)
def test_the_user_may_choose_the_kind_of_labels(values: list, kind: str | None, labels: list) -> None:
    path = nx.path_graph(3)
    nx.set_node_attributes(path, dict(enumerate(values)), "year")
    imported = from_networkx(path, "year", kind)
    assert np.array_equal(imported.graph.labels, labels, equal_nan=imported.graph.regression)
    guessed_classes = kind is None and values[0] == 1999
    assert any("--labels numbers" in note for note in imported.notes) == guessed_classes


def test_words_are_not_numbers() -> None:
    path = nx.path_graph(2)
    nx.set_node_attributes(path, {0: "red", 1: "blue"}, "y")
    with pytest.raises(GraphError, match="'y' contains labels that are not numbers"):
        from_networkx(path, kind="numbers")
    with pytest.raises(UsageError, match="labels are classes or numbers, not 'words'"):
        from_networkx(path, kind="words")


def test_text_is_left_out_with_a_note() -> None:
    path = nx.path_graph(9)
    nx.set_node_attributes(path, {node: f"sentence {node}" for node in path}, "title")
    imported = from_networkx(path)
    assert imported.graph.width == 2
    assert any("'title' was left out" in note for note in imported.notes)


def test_npz_is_imported_as_it_is(tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", random_graph(5, 9))
    assert np.array_equal(
        import_graph(tmp_path / "g.npz").graph.features, read_graph(tmp_path / "g.npz").features
    )


@pytest.mark.parametrize(
    ("edges", "nodes", "message"),
    [
        ("a,b\nc\n", None, "e.csv: line 2: an edge needs two node ids"),
        ("a,b\nc\n", NODES, "e.csv: line 2: an edge needs two node ids"),
        ("a,b\na,z\n", NODES, "e.csv: line 2: node 'z' is not in n.csv"),
        ("0,1\n", "f1,y\n0.5,1\n0.1,0\n", f"e.csv: line 1: node '0' is not in n.csv{NO_IDS}"),
        (
            "0,1\n",
            "f1,y\n0.5,1\n0.5,0\n",
            f"n.csv: line 3: node '0.5' is already defined in line 2{NO_IDS}",
        ),
        ("a,b\n", "id,x\na,1\na,2\n", "n.csv: line 3: node 'a' is already defined in line 2"),
        ("a,b\n", "id,x\n,1\n", "n.csv: line 2: the node has no name"),
        ("a,b\n", "id,x\na,1,2\n", "n.csv: line 2 has 3 cells, but the header has 2"),
        ("a,b\n", "id,x\n", "n.csv: the table is empty"),
        ("a,b\n", "# all of them\n\nid,split\na,train\nb,later\n", "n.csv: line 5: split is 'later'"),
        ("a,b\n", "id,x\na,1\nb,nan\n", "n.csv: line 3: 'x' is nan, not a finite 32-bit number"),
        ("a,b\n", "id,x\na,1e99\nb,1\n", "n.csv: line 2: 'x' is 1e99, not a finite"),
        ("a,b\n", "id,y\na,0.5\nb,inf\n", "n.csv: line 3: 'y' is inf, not a finite"),
        ("", None, "e.csv: the graph is empty"),
        (f"a,{'b' * 200_000}\n", None, "e.csv: line 1 is not a valid table row"),
        (f"a,{'b' * 200_000}\n", NODES, "e.csv: line 1 is not a valid table row"),
        ("a,b\n", f"id,x\na,{'1' * 200_000}\n", "n.csv: line 2 is not a valid table row"),
        ("a,b\n", 'id,x\na,"1\nb,2\n', "n.csv: line 2 is not a valid table row (a quote is opened"),
        (b"a,b\na,\xff\n", NODES, "e.csv: line 2 is not UTF-8 text: save the file as UTF-8"),
        ("a,b\n", b"id,x\na,1\nb,\xff\n", "n.csv: line 3 is not UTF-8 text"),
    ],
)
def test_an_error_names_its_file_and_line(
    tmp_path: Path, edges: str | bytes, nodes: str | bytes | None, message: str
) -> None:
    for name, content in (("e.csv", edges), ("n.csv", nodes)):
        if content is not None:
            (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(GraphError) as error:
        import_graph(tmp_path / "e.csv", tmp_path / "n.csv" if nodes else None)
    assert str(error.value).replace(f"{tmp_path}/", "").startswith(message)


def test_an_error_about_a_whole_table_names_the_table(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\n")
    (tmp_path / "n.csv").write_text(NODES)
    with pytest.raises(GraphError, match=r"/n\.csv: label column 'z' not found; the columns are height"):
        import_graph(tmp_path / "e.csv", tmp_path / "n.csv", label="z")
    with pytest.raises(GraphError, match=r"^[^:]*: this is a folder"):
        import_graph(tmp_path / "e.csv", tmp_path)
    with pytest.raises(GraphError, match=r"/none\.csv: there is no such file"):
        import_graph(tmp_path / "e.csv", tmp_path / "none.csv")
    (tmp_path / "many.csv").write_text("id,y\n" + "".join(f"n{i},c{i}\n" for i in range(MAX_CLASSES + 1)))
    (tmp_path / "e.csv").write_text("n1,n2\n")
    with pytest.raises(GraphError, match=r"^[^:]*/many\.csv: the graph has 100,001 classes"):
        import_graph(tmp_path / "e.csv", tmp_path / "many.csv")


def test_an_error_names_the_networkx_node() -> None:
    path = nx.path_graph(["a", "b"])
    nx.set_node_attributes(path, {"a": "train", "b": "later"}, "split")
    with pytest.raises(
        GraphError, match=r"^node 'b': split is 'later', not one of train, val, test or empty"
    ):
        from_networkx(path)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"h": 1.0, "y": [0, 1]}, "'y' holds lists, and a label is one number or word"),
        ({"x": [1.0, 2.0], "x_0": 5.0}, "two attributes of nodes become the column 'x_0'"),
        ({"x_1": 5.0, "x": [1.0, 2.0]}, "two attributes of nodes become the column 'x_1'"),
        ({1: 1.0, "1": 2.0}, "two attributes of nodes become the column '1'"),
        ({"h": 1.0, "graphics": {"x": 1.0}}, "'graphics' holds several named values"),
    ],
)
def test_attributes_that_would_be_lost_or_mistaken_are_refused(attributes: dict, message: str) -> None:
    path = nx.path_graph(3)
    for node in path:
        path.nodes[node].update(attributes)
    with pytest.raises(GraphError, match=message):
        from_networkx(path)


def test_a_quoted_cell_may_span_several_lines(tmp_path: Path) -> None:
    """Lines that look like comments or are empty belong to the cell, and count as lines."""
    (tmp_path / "e.csv").write_text("source,target\n1,2\n")
    (tmp_path / "n.csv").write_text('id,text,x\n1,"one\n# two\n\nthree; four",5\n2,"say ""yes""",6\n')
    assert import_graph(tmp_path / "e.csv", tmp_path / "n.csv").graph.features[:, -1].tolist() == [5, 6]
    with pytest.warns(AdarWarning, match="table of nodes that are not used: x$"):
        texts = read_texts(tmp_path / "n.csv", tmp_path / "e.csv").texts
    assert texts == ("one\n# two\n\nthree; four", 'say "yes"')
    with (tmp_path / "n.csv").open("a") as file:
        file.write("2,again,7\n")
    for read in (
        lambda: import_graph(tmp_path / "e.csv", tmp_path / "n.csv"),
        lambda: read_texts(tmp_path / "n.csv", tmp_path / "e.csv"),
    ):
        with pytest.raises(GraphError, match=r"n\.csv: line 7: node '2' is already defined in line 6"):
            read()


def test_columns_that_a_graph_of_texts_does_not_use_are_said(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("text,Label\na,A\nb,B\n")
    (tmp_path / "e.csv").write_text("source,target,edge_weight\n0,1,2\n")
    (tmp_path / "c.csv").write_text("name,description\nA,first\nB,second\n")
    with pytest.warns(AdarWarning) as said:
        read_texts(tmp_path / "n.csv", tmp_path / "e.csv", tmp_path / "c.csv")
    assert [str(each.message) for each in said] == [
        f"columns of the table of {table} that are not used: {column}"
        for table, column in (("classes", "description"), ("nodes", "Label"), ("edges", "edge_weight"))
    ]


@pytest.mark.parametrize("word", ["NA", "nan", "-1"])
def test_a_class_of_texts_that_may_mean_unknown_is_said(tmp_path: Path, word: str) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    (tmp_path / "n.csv").write_text(f"id,text,label\na,x,0\nb,y,1\nc,z,{word}\n")
    (tmp_path / "c.csv").write_text(f"name\n0\n1\n{word}\n")
    with pytest.warns(AdarWarning, match=f"'{word}' in 'label' is the name of a class: leave unknown labels"):
        found = read_texts(tmp_path / "n.csv", tmp_path / "e.csv")
    assert word in (found.class_names or ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a table of classes with this name
        read_texts(tmp_path / "n.csv", tmp_path / "e.csv", tmp_path / "c.csv")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0", "nan", "-1"), ["nan", "-1"]),
        (("0", "NA", "-1"), ["NA", "-1"]),
        (("-1", "-2", "1"), []),  # ratings
        (("-1", "low", "high"), []),
    ],
)
def test_minus_one_among_numbers_may_mean_unknown(
    tmp_path: Path, words: tuple[str, ...], said: list[str]
) -> None:
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    (tmp_path / "n.csv").write_text("text,label\n" + "".join(f"a,{word}\n" for word in words))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        read_texts(tmp_path / "n.csv", tmp_path / "e.csv")
    assert [str(each.message).split("'")[1] for each in found] == said


def test_ids_that_only_some_nodes_have_are_refused(tmp_path: Path) -> None:
    """Numbering the rows would connect other nodes than the edges name."""
    (tmp_path / "n.jsonl").write_text('{"text": "a"}\n{"id": 0, "text": "b"}\n{"id": 1, "text": "c"}\n')
    (tmp_path / "e.jsonl").write_text('{"source": 0, "target": 1}\n')
    with pytest.raises(GraphError, match="line 1: column 'id' not found"):
        read_texts(tmp_path / "n.jsonl", tmp_path / "e.jsonl")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_may_use_any_separator(tmp_path: Path, separator: str) -> None:
    lines = ["source|target", "1|2"], ["id|text|split", "1|a b|train", "2|#c|test"]
    for name, text in zip(("e.csv", "n.csv"), lines, strict=True):
        (tmp_path / name).write_text("\ufeff" + "\r\n".join(text).replace("|", separator))
    assert read_texts(tmp_path / "n.csv", tmp_path / "e.csv").texts == ("a b", "#c")
    assert import_graph(tmp_path / "e.csv", tmp_path / "n.csv").graph.nodes == 2


def test_a_table_of_one_column_has_no_separator(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    (tmp_path / "n.csv").write_text("text\nof two words\n# of three words\n")
    assert read_texts(tmp_path / "n.csv", tmp_path / "e.csv").texts == ("of two words", "# of three words")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.graphml", b"<graphml", "not a readable .graphml file"),
        ("g.gml", b"graph [", "not a readable .gml file"),
        ("g.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("g.xlsx", b"", "a file to convert ends in"),
    ],
)
def test_files_of_another_kind_are_an_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AdarError, match=message):
        import_graph(tmp_path / name)


def test_an_xml_entity_bomb_is_refused(tmp_path: Path) -> None:
    """Ten levels of ten entities: 10^10 letters if a parser expands them."""
    levels = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 11))
    bomb = f'<!DOCTYPE g [<!ENTITY a0 "a">{levels}]><graphml><node id="&a10;"/></graphml>'
    (tmp_path / "bomb.graphml").write_text(bomb)
    with pytest.raises(AdarError, match=r"not a readable \.graphml"):
        import_graph(tmp_path / "bomb.graphml")


def test_the_file_size_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.csv").write_text("1,2\n" * 100)
    monkeypatch.setenv("ADAR_MAX_BYTES", "100")
    with pytest.raises(AdarError, match="ADAR_MAX_BYTES"):
        import_graph(tmp_path / "e.csv")


def test_tables_have_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "e.csv").write_text("source,target\n1,2\n")
    (tmp_path / "n.csv").write_text("id,text\n1,a\n2,b\n" + "\n" * 100)
    monkeypatch.setenv("ADAR_MAX_BYTES", "100")
    with pytest.raises(AdarError, match=r"n\.csv: larger than 100 bytes.*ADAR_MAX_BYTES"):
        import_graph(tmp_path / "e.csv", tmp_path / "n.csv")
    with pytest.raises(AdarError, match=r"n\.csv: larger than 100 bytes.*ADAR_MAX_BYTES"):
        read_texts(tmp_path / "n.csv", tmp_path / "e.csv")


def test_parts_of_a_split_have_the_same_names_in_every_table(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n1,2\n")
    (tmp_path / "n.csv").write_text("id,text,split\n1,a,Valid\n2,b,validation\n3,c,test\n")
    masks = read_texts(tmp_path / "n.csv", tmp_path / "e.csv").masks
    graph = import_graph(tmp_path / "e.csv", tmp_path / "n.csv").graph
    assert masks is not None
    assert masks["val_mask"].tolist() == graph.val_mask[0].tolist() == [True, True, False]


def test_a_header_of_other_words_is_certain_if_the_ids_are_integers(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("id_1,id_2\n1,2\n2,3\n")
    imported = import_graph(tmp_path / "e.csv")
    assert (imported.graph.nodes, imported.graph.edges) == (3, 2)
    assert any("line 1 (id_1,id_2) was read as a header" in note for note in imported.notes)


def test_a_known_header_in_the_other_order_is_read_by_its_names(tmp_path: Path) -> None:
    rows = [(1, 2), (2, 3), (1, 3)]
    (tmp_path / "e.csv").write_text("target,source\n" + "".join(f"{a},{b}\n" for a, b in rows))
    objects = [f'{{"target": {a}, "source": {b}}}\n' for a, b in rows]
    (tmp_path / "e.jsonl").write_text("".join(objects))
    text, objects_read = (import_graph(tmp_path / name).graph for name in ("e.csv", "e.jsonl"))
    assert text.edge_index.tolist() == objects_read.edge_index.tolist() == [[1, 2, 2], [0, 1, 0]]
    assert text.feature_encoding == objects_read.feature_encoding


def test_a_header_of_other_words_gets_a_note_if_it_may_be_an_edge(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("paper,cites\np1,p2\np2,p3\n")
    imported = import_graph(tmp_path / "e.csv")
    assert imported.graph.edges == 3
    assert any("line 1 (paper,cites) was read as an edge" in note for note in imported.notes)
    (tmp_path / "e.csv").write_text("p1,p2\np2,p3\n")
    assert not any("line 1" in note for note in import_graph(tmp_path / "e.csv").notes)


@pytest.mark.parametrize(
    "header", ["id,height", "name,height,y", "node,f1,f2", "f1,label", "name,text", "n,split"]
)
def test_a_table_of_nodes_is_not_a_file_of_edges(tmp_path: Path, header: str) -> None:
    (tmp_path / "n.csv").write_text(f"{header}\n1,2,3\n2,3,4\n")
    with pytest.raises(GraphError, match=r"n\.csv: line 1: .*is the header of a table of nodes.*--edges"):
        import_graph(tmp_path / "n.csv")


def test_rows_that_look_like_nodes_get_a_note(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("a,1.5,red\nb,2.5,blue\nc,0.5,red\n")
    assert any(
        "the file of the edges with --edges" in note for note in import_graph(tmp_path / "n.csv").notes
    )
    (tmp_path / "e.csv").write_text("a,b,1\nb,c,2\n")
    assert not any("--table" in note for note in import_graph(tmp_path / "e.csv").notes)


@pytest.mark.parametrize(
    ("header", "message"), [("id,x,x", "name 'x'"), ("id,,", "no name"), ("id,x,id", "'id'")]
)
def test_a_column_of_the_same_name_is_an_error(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    (tmp_path / "n.csv").write_text(f"{header}\na,1,2\nb,3,4\n")
    with pytest.raises(GraphError, match=rf"n\.csv: line 1: two columns have .*{message}"):
        import_graph(tmp_path / "e.csv", tmp_path / "n.csv")
    (tmp_path / "n.jsonl").write_text('{"id": "a", "text": "x", "text": "y"}\n')
    (tmp_path / "e.csv").write_text("source,target\na,a\n")
    with pytest.raises(GraphError, match=r"n\.jsonl: line 1: .*duplicate key"):
        read_texts(tmp_path / "n.jsonl", tmp_path / "e.csv")


def test_a_second_column_of_labels_is_not_silently_a_feature(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    (tmp_path / "n.csv").write_text("id,y,label,v\na,0,0,0.5\nb,1,1,0.1\n")
    notes = import_graph(tmp_path / "e.csv", tmp_path / "n.csv").notes
    assert any(note.startswith("'label' became a feature, but may be a label") for note in notes)
    (tmp_path / "n.csv").write_text("id,y,Y\na,0,0\nb,1,1\n")
    with pytest.raises(GraphError, match="two columns mean 'y'"):
        import_graph(tmp_path / "e.csv", tmp_path / "n.csv")


def test_whole_numbers_as_decimals_are_the_same_classes(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    (tmp_path / "n.csv").write_text("id,y\na,1.0\nb,1\nc,2.0\nd,\n")
    graph = import_graph(tmp_path / "e.csv", tmp_path / "n.csv").graph
    assert (graph.labels.tolist(), graph.class_names) == ([0, 0, 1, -1], ("1", "2"))
    (tmp_path / "n.csv").write_text("id,y\na,-1.0\nb,0.0\nc,1.0\n")
    assert import_graph(tmp_path / "e.csv", tmp_path / "n.csv").graph.labels.tolist() == [-1, 0, 1]


def test_attributes_of_edges_and_defaults_of_nodes(tmp_path: Path) -> None:
    (tmp_path / "g.graphml").write_text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        '<key id="w" for="edge" attr.name="weight" attr.type="double"/>'
        '<key id="v" for="node" attr.name="v" attr.type="double"><default>7</default></key>'
        '<graph edgedefault="directed"><node id="a"><data key="v">1</data></node><node id="b"/>'
        '<edge source="a" target="b"><data key="w">2</data></edge></graph></graphml>'
    )
    imported = import_graph(tmp_path / "g.graphml")
    assert imported.graph.features.tolist() == [[1], [7]]
    assert any("weight" in note for note in imported.notes)


GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="h" for="node" attr.name="h" '
    'attr.type="double"/><key id="m" for="node" attr.name="train_mask" attr.type="string"/><key id="w" '
    'for="edge" attr.name="weight" attr.type="double"><default>3</default></key>{keys}'
    '<graph edgedefault="directed"><node id="a"><data key="h">1</data><data key="m">{a}</data></node><node '
    'id="b"><data key="h">2</data><data key="m">{b}</data></node>{more}<edge source="a" target="b"/></graph>'
    "</graphml>"
)


def graphml(folder: Path, a: str = "True", b: str = "False", more: str = "", keys: str = "") -> Path:
    (folder / "g.graphml").write_text(GRAPHML.format(a=a, b=b, more=more, keys=keys))
    return folder / "g.graphml"


def test_masks_as_words_and_the_default_weight_of_graphml(tmp_path: Path) -> None:
    """`bool("False")` is True: all nodes were in every mask."""
    graph = import_graph(graphml(tmp_path)).graph
    assert graph.train_mask.tolist() == [[True, False]]
    assert graph.edge_weight.tolist() == [3]
    nodes = nx.Graph()
    nodes.add_node("a", h=1.0, train_mask=np.True_)
    nodes.add_node("b", h=2.0, train_mask=False)
    assert from_networkx(nodes).graph.train_mask.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": "yes"}, "node 'a': 'train_mask' is 'yes', not true or false"),
        ({"more": '<node id="b"/>'}, "node 'b' is there twice"),
        ({"more": '<edge source="a" target="zz"/>'}, "an edge ends at 'zz', which is not a node"),
        ({"more": '<node id="c"><graph edgedefault="directed"/></node>'}, "the file has 2 graphs"),
        ({"keys": '<key id="x" for="node" attr.name="h" attr.type="int"/>'}, "two keys have the name 'h'"),
        ({"keys": '<key id="x" for="edge" attr.name="weight" attr.type="int"/>'}, "the name 'weight'"),
        ({"keys": '<key id="x" for="all" attr.name="h" attr.type="int"/>'}, "two keys have the name 'h'"),
        ({"keys": '<key id="h" for="node" attr.name="g" attr.type="int"/>'}, "two keys have the id 'h'"),
        (
            {"keys": '<key id="x" attr.name="g" attr.type="int"><default>2</default></key>'},
            "for all elements",
        ),
        ({"a": 'True</data><data key="h">9'}, "two values of the key 'h'"),
        ({"more": '<edge id="e" source="a" target="b"/>' * 2}, "the file has 3 edges"),
        ({"more": '<edge source="a" target="a" directed="0"/>'}, "directed is '0', not 'true' or 'false'"),
    ],
)
def test_graphml_that_networkx_changes_without_a_word_is_refused(
    tmp_path: Path, fields: dict[str, str], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        import_graph(graphml(tmp_path, **fields))


BOTH_WAYS = FeatureEncoding((), both_ways=True)  # of a model of a table of edges


@pytest.mark.parametrize("suffix", ["graphml", "gml"])
def test_degrees_of_undirected_edges_are_those_of_a_table(tmp_path: Path, suffix: str) -> None:
    """A model of tables without feature columns reads another format: an undirected edge counted twice."""
    {"graphml": nx.write_graphml, "gml": nx.write_gml}[suffix](nx.path_graph(4), tmp_path / f"g.{suffix}")
    (tmp_path / "e.csv").write_text("source,target\n0,1\n1,2\n2,3\n")
    found, table = (
        import_graph(tmp_path / name, encoding=BOTH_WAYS).graph for name in (f"g.{suffix}", "e.csv")
    )
    assert found.features.tolist() == table.features.tolist()
    assert found.edges == 6


@pytest.mark.parametrize("file", ["e.csv", "g.graphml", "g.gml"])
@pytest.mark.parametrize("choice", [{}, {"both_ways": True}, {"both_ways": False}], ids=str)
def test_reverse_edges_are_added_as_for_the_training(
    tmp_path: Path, file: str, choice: dict[str, bool]
) -> None:
    """The encoding of the graph said that they were, also where they were not."""
    graph = nx.DiGraph([(0, 1), (1, 2)])
    nx.write_graphml(graph, tmp_path / "g.graphml"), nx.write_gml(graph, tmp_path / "g.gml")
    (tmp_path / "e.csv").write_text("source,target\n0,1\n1,2\n")
    found = import_graph(tmp_path / file, encoding=BOTH_WAYS, **choice).graph
    added = choice != {"both_ways": False}
    assert (found.edges, found.feature_encoding.both_ways) == (4 if added else 2, added)
