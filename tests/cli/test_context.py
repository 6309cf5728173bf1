"""adar-deploy run --context: a table of new nodes."""

import json
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Final, Graph, load


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
    assert adar(*words)[0] == 0  # without edges
    alone = json.loads((tmp_path / "answers.json").read_text())
    assert alone != answer


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new.csv", "--max-steps", 5], "--max-steps does not apply"),
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
