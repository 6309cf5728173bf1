"""adar-deploy run --context: a table of new nodes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_export import export_bundle
from adar_runtime import Final, Graph, load, write_graph
from adar_runtime.bundle.manifest import checksum_of
from adar_runtime.errors import GraphError
from adar_runtime.graph import EncodedColumn, FeatureEncoding
from adar_runtime.phases import remember as remembering
from adar_runtime.phases.context_files import load_context
from adar_train import ModelConfig
from adar_train.untrained import trial_run


@pytest.fixture(scope="module")
def bundle_folder(board: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that moves: after a short training, the reaction of a neighbour is below rounding."""
    path = tmp_path_factory.mktemp("moving")
    run = trial_run(path / "run", board, ModelConfig(board.width, 2, hidden=16, proxies=4))
    export_bundle(run, path / "bundle", steps=(1,))
    return path / "bundle"


@pytest.fixture
def context(board: Graph, bundle_folder: Path, tmp_path: Path) -> Path:
    """A context, and a copy of node 5 as a new node with the id "new"."""
    bundle = load(bundle_folder, threads=1)
    bundle.remember(board, 4, Final(), "euler").save(tmp_path / "context")
    source = board.edge_index[0, board.edge_index[1] == 5]
    names = ",".join(f"f{i}" for i in range(board.width))
    row = ",".join(map(str, board.rows(5, 6)[0].tolist()))
    (tmp_path / "new.csv").write_text(f"id,{names}\nnew,{row}\n")
    edges = "\n".join(f"{one},new" for one in source)
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges}\n")
    return tmp_path / "context"


def test_new_nodes_of_a_table_are_answered(
    adar, context: Path, board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    words = ["run", "new.csv", "--bundle", bundle_folder, "--context", context, "--output", "answers.json"]
    code, out, err = adar(*words, "--edges", "edges.csv", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["nodes"] == 1
    answer = json.loads((tmp_path / "answers.json").read_text())
    expected = load(bundle_folder, threads=1).run(board, 4, Final(), "euler").probabilities
    assert answer["id"] == ["new"]
    assert expected is not None
    found = [column[0] for name, column in answer.items() if name.startswith("probability")]
    np.testing.assert_allclose(found, expected[5], atol=1e-5)
    back = (tmp_path / "edges.csv").read_text() + "new,6\n"  # node 6 reacts to the new node
    (tmp_path / "back.csv").write_text(back)
    by_hops = []
    for hops in (0, 1, 2):
        assert adar(*words, "--edges", "back.csv", "--hops", hops)[0] == 0
        by_hops.append(json.loads((tmp_path / "answers.json").read_text()))
    assert by_hops[0] == answer
    assert by_hops[1] != answer
    assert adar(*words, "--edges", "back.csv")[0] == 0
    assert json.loads((tmp_path / "answers.json").read_text()) == by_hops[2]
    code, _, err = adar("run", "new.csv", "--bundle", bundle_folder, "--hops", 1)
    assert (code, "--hops is for new nodes" in err) == (2, True)
    assert adar(*words)[0] == 0  # without edges
    alone = json.loads((tmp_path / "answers.json").read_text())
    assert alone != answer


def test_columns_of_new_nodes_are_found_by_name(
    adar, context: Path, board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    """The bundle has no encoding, but the graph of the context was made from a table: pretrained models."""
    columns = tuple(EncodedColumn(f"f{i}", "number") for i in range(board.width))
    of_table = replace(board, feature_encoding=FeatureEncoding(columns, id="id", both_ways=True))
    load(bundle_folder, threads=1).remember(of_table, 4, Final(), "euler").save(context)
    header, row = (line.split(",") for line in (tmp_path / "new.csv").read_text().splitlines())
    words = ["run", "--bundle", bundle_folder, "--context", context, "--edges", "edges.csv", "--one-way"]
    answers = []
    for name, order in (("new.csv", 1), ("reversed.csv", -1)):
        lines = [",".join([first, *rest[::order]]) for first, *rest in (header, row)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        code, _, err = adar(*words, name, "--output", "answers.json")
        assert (code, err) == (0, "")
        answers.append((tmp_path / "answers.json").read_text())
    assert answers[0] == answers[1]
    (tmp_path / "other.csv").write_text(f"id,{','.join(header[2:])}\nnew,{','.join(row[2:])}\n")
    code, _, err = adar(*words, "other.csv")
    assert (code, f"needs the column {header[1]}" in err) == (2, True)


def test_an_encoding_of_another_width_is_refused(context: Path, bundle_folder: Path) -> None:
    raw = json.loads((context / "context.json").read_text())
    raw["feature_encoding"] = FeatureEncoding((EncodedColumn("a", "number"),)).to_value()
    raw["checksum"] = checksum_of(raw)
    (context / "context.json").write_text(json.dumps(raw))
    with pytest.raises(GraphError, match="feature_encoding has 1 features"):
        load_context(load(bundle_folder, threads=1), context)


def test_a_command_writes_the_context(
    adar, context: Path, board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    """The answers are those of a context that Python made; a second command replaces the folder."""
    write_graph(tmp_path / "board.npz", board)
    words = ["remember", bundle_folder, "board.npz", "-o", "made/context", "--max-steps", 4, "--exit=final"]
    code, out, err = adar(*words, "--solver", "euler", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["context"], facts["nodes"], facts["cell_calls"]) == ("made/context", board.nodes, 4)
    assert facts["bytes"] == load_context(load(bundle_folder), context).bytes
    ask = ["run", "new.csv", "--edges", "edges.csv", "--bundle", bundle_folder, "--output", "answers.json"]
    answers = []
    for folder in (context, "made/context"):
        assert adar(*ask, "--context", folder)[0] == 0
        answers.append((tmp_path / "answers.json").read_text())
    assert answers[0] == answers[1]
    code, out, _ = adar(*words, "--half")
    assert (code, "next: adar-deploy run NEW-NODES" in " ".join(out.split())) == (0, True)
    assert load_context(load(bundle_folder), tmp_path / "made/context").kept.calls.rows[0].dtype == np.float16
    code, _, err = adar(*words, "--max-size", "1KB")
    assert (code, "1,000 are allowed" in err) == (2, True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    assert adar("remember", bundle_folder, "board.npz", "-o", "other")[0] == 2


def test_a_context_says_when_to_make_it_again(
    adar, context: Path, board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    names = ",".join(f"f{i}" for i in range(board.width))
    count = board.nodes // 5
    rows = [f"new{i}," + ",".join(["50"] * board.width) for i in range(count)]
    (tmp_path / "many.csv").write_text("\n".join([f"id,{names}", *rows]))
    words = ["run", "--bundle", bundle_folder, "--context", context]
    code, out, _ = adar(*words, "many.csv", "--json")
    assert code == 0
    share, drift = json.loads(out)["warnings"]
    assert share.startswith(f"{count} new and 0 changed nodes are")
    assert drift.startswith("the features of the new nodes are unlike the training data")
    assert "degree" not in drift
    assert "warnings" not in json.loads(adar(*words, "new.csv", "--json")[1])
    assert "make the context again" in " ".join(adar(*words, "many.csv")[1].split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new.csv", "--max-steps", 5], "--max-steps does not apply"),
        (["new.csv", "--patience", 5], "--patience does not apply"),
        (["new.csv", "--backend", "openvino"], "--backend does not apply"),
        (["new.csv", "new.csv"], "exactly one table"),
        (["board.npz"], "new nodes are a table"),
        (["kept.csv"], "node '5' is in the context already"),
        (["new.csv", "--edges", "unknown.csv"], "node '9999' is not in"),
    ],
)
def test_errors(
    adar, context: Path, bundle_folder: Path, tmp_path: Path, words: list[object], message: str
) -> None:
    (tmp_path / "kept.csv").write_text((tmp_path / "new.csv").read_text().replace("new,", "5,"))
    (tmp_path / "unknown.csv").write_text("source,target\n9999,new\n")
    code, _, err = adar("run", *words, "--bundle", bundle_folder, "--context", context)
    assert code == 2
    assert message in err


def test_a_context_of_another_bundle_is_replaced_on_request_only(
    adar, context: Path, board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    file = context / "context.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bundle": "another"}))
    words = ["remember", bundle_folder, "board.npz", "--max-steps", 2, "--solver", "euler", "--out", context]
    code, _, err = adar(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert "is a context of another bundle: choose another --out, or add --overwrite" in err
    assert adar(*words, "--overwrite")[0] == 0
    assert adar(*words)[0] == 0  # of the same bundle


def test_a_context_that_appears_during_the_work_is_not_replaced(
    adar, context: Path, board: Graph, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_graph(tmp_path / "board.npz", board)
    file, work = context / "context.json", remembering.remember
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bundle": "another"}))

    def slow(*words: object) -> object:
        shutil.copytree(context, "other")
        return work(*words)

    monkeypatch.setattr(remembering, "remember", slow)
    code, _, err = adar("remember", bundle_folder, "board.npz", "--max-steps", 2, "--out", "other")
    assert (code, "is a context of another bundle" in err) == (2, True)
    assert Path("other/context.json").read_bytes() == file.read_bytes()
