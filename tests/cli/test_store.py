"""adar-deploy data shard, and adar-deploy run on a graph store."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_deploy.store_inference import StoreInference
from adar_runtime import Graph, write_graph
from adar_runtime.graph.store import sources

pyarrow = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def store(adar, board: Graph, tmp_path: Path) -> Path:
    write_graph(tmp_path / "board.npz", board)
    code, out, err = adar("data", "shard", "board.npz", "--parts", 3, "-o", "store")
    assert (code, err) == (0, "")
    assert "of the edges connect two parts" in out
    return tmp_path / "store"


def predictions(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and classes of all parts."""
    tables = [pyarrow.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    assert len(tables) == 3
    return tuple(
        np.concatenate([table[name].to_numpy() for table in tables]) for name in ("output", "prediction")
    )


def test_a_store_is_answered_by_part(adar, store: Path, bundle_folder: Path, tmp_path: Path) -> None:
    options = ["--bundle", bundle_folder, "--max-steps", 5]
    code, out, err = adar("run", store, *options, "--memory", "1GB", "--output", "answers", "--json")
    assert (code, err) == (0, "")
    one = json.loads(adar("run", "board.npz", *options, "--output", "one.json", "--json")[1])
    found = json.loads(out)
    assert {name: found[name] for name in ("nodes", "best_step", "stop_reason", "classes")} == {
        name: one[name] for name in ("nodes", "best_step", "stop_reason", "classes")
    }
    nodes, classes = predictions(tmp_path / "answers")
    expected = json.loads((tmp_path / "one.json").read_text())["prediction"]
    assert np.array(expected)[nodes].tolist() == classes.tolist()
    assert sorted(nodes) == list(range(found["nodes"]))
    assert not (tmp_path / "answers/unfinished").exists()
    assert adar("run", bundle_folder, store, "--max-steps", 2, "--output", "answers")[0] == 0  # replaced


def test_a_store_is_not_replaced_without_a_word(adar, store: Path, bundle_folder: Path) -> None:
    before = (store / "store.json").read_bytes()
    code, _, err = adar("data", "shard", "board.npz", "--parts", 2, "-o", "store")
    assert (code, err.count("\n")) == (2, 1)
    assert "is a graph store: choose another --output, or add --overwrite" in err
    options = ["--bundle", bundle_folder, "--max-steps", 2, "--output"]
    code, _, err = adar("run", "board.npz", *options, store / "store.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "is a file of a graph store or context" in err
    assert (store / "store.json").read_bytes() == before
    assert adar("data", "shard", "board.npz", "--parts", 2, "-o", "store", "--overwrite")[0] == 0
    assert (store / "store.json").read_bytes() != before


def test_a_store_that_appears_during_the_work_is_not_replaced(
    adar, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = sources.edge_blocks

    def slow(graph: Graph) -> Iterator[np.ndarray]:
        shutil.copytree(store, "other")
        yield from read(graph)

    monkeypatch.setattr(sources, "edge_blocks", slow)
    code, _, err = adar("data", "shard", "board.npz", "--parts", 2, "-o", "other")
    assert (code, "is a graph store: choose another --output" in err) == (2, True)
    assert Path("other/store.json").read_bytes() == (store / "store.json").read_bytes()


def test_a_folder_of_the_user_is_not_taken_for_an_unfinished_inference(
    adar, store: Path, bundle_folder: Path, tmp_path: Path
) -> None:
    """The folder `unfinished` is removed at the end, and nothing is written through links."""
    words = ["run", store, "--bundle", bundle_folder, "--max-steps", 2, "--output", "mine"]
    novel = tmp_path / "mine/unfinished/novel.txt"
    novel.parent.mkdir(parents=True)
    novel.write_text("It was a dark night")
    code, _, err = adar(*words)
    assert (code, err.count("\n"), novel.exists()) == (2, 1, True)
    novel.unlink()
    (novel.parent / "state.json.new").symlink_to(tmp_path / "board.npz")
    (novel.parent / "adar-deploy").touch()
    assert "is a link" in adar(*words)[2]
    (novel.parent / "state.json.new").unlink()
    (novel.parent / "small").mkdir()
    (novel.parent / "small/mine.csv").touch()
    assert "also contains small/mine.csv, which would be deleted" in adar(*words)[2]
    (novel.parent / "small/mine.csv").unlink()
    before = (tmp_path / "board.npz").read_bytes()
    (tmp_path / "mine/run.json").symlink_to(tmp_path / "board.npz")
    (tmp_path / "mine/part-mine.parquet").touch()
    assert adar(*words)[0] == 0
    assert (tmp_path / "board.npz").read_bytes() == before
    assert (tmp_path / "mine/part-mine.parquet").exists()


@pytest.mark.parametrize("late", [False, True])
def test_a_store_that_is_replaced_during_the_run_is_refused(
    adar, store: Path, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, late: bool
) -> None:
    """The predictions of the old nodes were written with the ids of the new ones."""
    (tmp_path / "nodes.csv").write_text("id,f\na,1\nb,2\nc,3\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    words = ["data", "shard", "nodes.csv", "--edges", "edges.csv", "--parts", 3, "-o", "new"]
    assert adar(*words)[0] == 0
    done = "_write" if late else "_loop"
    before = getattr(StoreInference, done)

    def replaced(*args: Any, **options: Any) -> Any:
        found = before(*args, **options)
        store.rename(tmp_path / "old")
        (tmp_path / "new").rename(store)
        return found

    monkeypatch.setattr(StoreInference, done, replaced)
    code, _, err = adar("run", store, "--bundle", bundle_folder, "--max-steps", 2, "--output", "answers")
    assert (code, err.count("\n")) == (2, 1)
    assert "was replaced during the inference: run the command again" in err
    assert not (tmp_path / "answers/unfinished").exists()
    assert not (tmp_path / "answers/run.json").exists()


def test_tables_become_a_store(adar, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,a,b\nx,1,2\ny,3,4\nz,5,6\n")
    (tmp_path / "edges.csv").write_text("source,target\nx,y\ny,z\n")
    options = ["--edges", "edges.csv", "--both-ways", "--parts", 2, "-o", "store", "--json"]
    found = json.loads(adar("data", "shard", "nodes.csv", *options)[1])
    assert found == {"store": "store", "nodes": 3, "edges": 4, "features": 2, "parts": 2, "cut": 0.5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "store"], "need --output, a folder"),
        (["run", "board.npz", "--memory", "1GB"], "--memory is for a graph store"),
        (["run", "store", "store", "--output", "x"], "run it alone"),
        (["run", "store", "--output", "x", "--memory", "much"], "--memory takes a number of bytes"),
        (["run", "store", "--output", "x", "--memory", "1MB"], "allow more memory"),  # parts do not help
        (["run", "store", "--output", "x", "--memory", "262150kB"], "with more parts (data shard --parts"),
        (["run", "store", "--output", "full"], "full already exists"),
        (["data", "shard", "board.npz", "--source", "a", "-o", "new"], "--source is for tables"),
        (["data", "shard", "nodes.csv", "-o", "new"], "add --edges"),
        (["data", "shard", "board.npz", "--parts", 999, "-o", "new"], "choose 1 to 144 parts"),
        (["run", "board.npz", "--shards", 999, "--output", "x"], "choose 1 to 144 parts"),
        (["data", "shard", "x.npy", "--edges", "e.csv", "--partition", "metis", "-o", "new"], "in memory"),
    ],
)
def test_errors(
    adar, store: Path, bundle_folder: Path, tmp_path: Path, words: list[object], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    options = ["--bundle", bundle_folder] if words[0] == "run" else []
    code, _, err = adar(*words, *options)
    assert code == 2
    assert message in err
    assert not (tmp_path / "new").exists()
    assert store.exists()


def test_a_killed_run_continues(adar, store: Path, bundle_folder: Path, tmp_path: Path) -> None:
    options = ["--bundle", bundle_folder, "--max-steps", 40, "--exit", "final"]
    words = ["run", store, *options, "--output", "answers"]
    state = tmp_path / "answers/unfinished/state.json"
    with subprocess.Popen([sys.executable, "-m", "adar_deploy", *map(str, words)], cwd=tmp_path) as process:
        while not state.exists() or len(json.loads(state.read_text())["calls"]) < 3:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    done = len(json.loads(state.read_text())["calls"])
    assert 3 <= done < 40
    assert "another budget" in adar("run", store, "--bundle", bundle_folder, "--output", "answers")[2]
    assert adar(*words)[0] == 0
    nodes, classes = predictions(tmp_path / "answers")
    assert adar("run", "board.npz", *options, "--output", "one.json")[0] == 0
    expected = json.loads((tmp_path / "one.json").read_text())["prediction"]
    assert np.array(expected)[nodes].tolist() == classes.tolist()


def test_weights_that_a_store_leaves_out_are_said(adar, tmp_path: Path) -> None:
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    write_graph(tmp_path / "g.npz", Graph(np.ones((3, 1)), edges, edge_weight=np.array([1.0, 2.0, 3.0])))
    (tmp_path / "nodes.csv").write_text("id,f\na,1\nb,2\n")
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,2\n")
    for words in (["g.npz"], ["nodes.csv", "--edges", "edges.csv"]):
        code, _, err = adar("data", "shard", *words, "--parts", 1, "-o", "store", "--overwrite", "--json")
        assert (code, err) == (0, "note: the edge weights are left out: a graph store has none\n")
