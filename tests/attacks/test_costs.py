"""Small files that would take much memory: refused within 2 s of processor time and 500 MB."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import files, read_graph
from adar_runtime.errors import GraphError
from adar_runtime.graph.formats import import_graph
from tests.attacks import measured, test_npz
from tests.attacks.test_command_line import MEGABYTES, SECONDS


def many_attributes(path: Path) -> None:
    """1 MB: 9,000 nodes, each with an attribute of its own: 81 million values."""
    count = 9000
    keys = "".join(f'<key id="k{i}" for="node" attr.name="a{i}" attr.type="int"/>' for i in range(count))
    nodes = "".join(f'<node id="{i}"><data key="k{i}">1</data></node>' for i in range(count))
    name = "http://graphml.graphdrawing.org/xmlns"
    path.write_text(f'<graphml xmlns="{name}">{keys}<graph edgedefault="directed">{nodes}</graph></graphml>')


def many_attributes_gml(path: Path) -> None:
    nodes = "".join(f"node [ id {i} a{i} 1 ]\n" for i in range(9000))
    path.write_text(f"graph [\n{nodes}]\n")


def a_value_per_row(path: Path) -> None:
    """70 to 100 kB: each node has one attribute of its own, and 8 to 16 million values are missing."""
    if path.suffix == ".gml":
        nodes = "".join(f"node [ id {i} k{i} 1 ]\n" for i in range(2900))
        path.write_text(f"graph [\n{nodes}]\n")
    else:
        path.write_text("".join(f'{{"id":{i},"k{i}":"x"}}\n' for i in range(4000)))
    path.with_name("edges.csv").write_text("source,target\n0,1\n")


def a_key_many_times(path: Path) -> None:
    """1 MB: a list of 250,000 numbers, which become columns."""
    path.write_text(f"graph [ node [ id 0 {'a 1 ' * 250_000}] ]\n")


def many_keys_gml(path: Path) -> None:
    """1 MB: 100,000 attributes of one node."""
    path.write_text(f"graph [ node [ id 0 {' '.join(f'a{i} 1' for i in range(100_000))} ] ]\n")


def many_words(path: Path) -> None:
    """2 MB: 1,400 columns of 50 different words: 70,000 one-hot columns of 1,000 rows."""
    letters = [f"{chr(97 + i % 26)}{i // 26}" for i in range(50)]
    rows = "\n".join(f"{row},{','.join([letters[row % 50]] * 700)}" for row in range(1000))
    path.with_name("nodes.csv").write_text(f"id,{','.join(f'c{i}' for i in range(700))}\n{rows}\n")
    path.write_text("source,target\n0,1\n")


def many_columns(path: Path) -> None:
    """1.5 MB: 100,000 columns of two nodes."""
    names = [f"k{number}" for number in range(100_000)]
    if path.suffix == ".csv":
        path.write_text(f"id,{','.join(names)}\na{',1' * 100_000}\nb{',2' * 100_000}\n")
    else:
        path.write_text(json.dumps({"id": "a"} | dict.fromkeys(names, 1)))
    path.with_name("edges.csv").write_text("source,target\na,a\n")


def long_names(path: Path) -> None:
    """1 MB: a label of a million letters among a thousand short ones."""
    labels = ["x" * 10**6, *(f"c{number}" for number in range(1, 1000))]
    path.write_text("".join(f"{json.dumps({'id': i, 'label': one})}\n" for i, one in enumerate(labels)))
    path.with_name("edges.csv").write_text("source,target\n0,1\n")


def pairs_of_long_ids(path: Path) -> None:
    """20 kB: the ids of 5,000 pairs would take 2 GB."""
    ids, pairs = np.array(["x" * 50_000, "b"]), np.tile([[0], [1]], 5000)
    np.savez_compressed(path, x=np.eye(2), edge_index=[[0], [1]], ids=ids, pairs=pairs)


FILES: dict[str, tuple[Callable[[Path], object], tuple[str, ...], str]] = {
    "bytes as edges": (test_npz.bytes_as_edges, ("data", "show", "g.npz"), "would unpack"),
    "bytes as sparse rows": (test_npz.bytes_as_rows, ("data", "show", "g.npz"), "would unpack"),
    "attributes of graphml": (many_attributes, ("data", "convert", "g.graphml", "o.npz"), "would unpack"),
    "attributes of gml": (many_attributes_gml, ("data", "convert", "g.gml", "o.npz"), "would unpack"),
    "a value per row of gml": (a_value_per_row, ("data", "convert", "g.gml", "o.npz"), "would unpack"),
    "a value per row of jsonl": (
        a_value_per_row,
        ("data", "show", "g.jsonl", "--edges", "edges.csv"),
        "would unpack",
    ),
    "a key of gml": (a_key_many_times, ("data", "convert", "g.gml", "o.npz"), "a table may have"),
    "keys of gml": (many_keys_gml, ("data", "convert", "g.gml", "o.npz"), "a table may have"),
    "columns of csv": (many_columns, ("data", "show", "g.csv", "--edges", "edges.csv"), "a table may have"),
    "names of classes": (
        long_names,
        ("data", "convert", "g.jsonl", "o.npz", "--edges", "edges.csv"),
        "has 1,000,000 characters; at most 500",
    ),
    "ids of pairs": (pairs_of_long_ids, ("data", "show", "g.npz"), "the ids of the pairs"),
    "keys of jsonl": (many_columns, ("data", "show", "g.jsonl", "--edges", "edges.csv"), "a table may have"),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".gml", ".txt", ".edges"])
def test_a_text_with_a_hole_is_not_read(suffix: str, tmp_path: Path) -> None:
    """4 kB on the disk, and 2 GB of zeros that took 7 s and as much memory."""
    path = (tmp_path / "graph").with_suffix(suffix)
    for text in ('{"source": 0, "target": 1}\n', ""):  # without text, no block is in use
        path.write_text(text)
        os.truncate(path, 2**30)
        with pytest.raises(GraphError, match=r"of which the disk has only .* set ADAR_MAX_BYTES"):
            import_graph(path)


def test_an_archive_with_a_hole_is_read_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 kB on the disk took 3.4 s and 1.3 GB, for features that are zeros."""
    monkeypatch.setattr(files, "HOLES_FROM_BYTES", 2**20)
    path = tmp_path / "graph.npz"
    np.savez(path, x=np.zeros((2**20, 1), np.float32), edge_index=np.zeros((2, 1), np.int64))
    assert read_graph(path).nodes == 2**20  # zeros that the disk has
    with_holes(path)
    with pytest.raises(GraphError, match=r"graph\.npz: .* set ADAR_MAX_BYTES"):
        read_graph(path)
    monkeypatch.setenv("ADAR_MAX_BYTES", str(2**30))
    assert read_graph(path).nodes == 2**20


def with_holes(path: Path) -> None:
    """Write a file again with holes in place of zeros."""
    content, step = path.read_bytes(), 2**12
    with path.open("wb") as file:
        for start in range(0, len(content), step):
            if any(content[start : start + step]):
                file.seek(start)
                file.write(content[start : start + step])
        file.truncate(len(content))


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_system_that_counts_few_blocks_is_believed(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZFS counts a file some seconds after it was written, and compressed; network file systems often not."""
    monkeypatch.setattr(files, "HOLES_FROM_BYTES", 2**20)
    monkeypatch.setattr(files, "BLOCK_BYTES", count)
    path = tmp_path / "graph.npz"
    np.savez(path, x=np.ones((2**19, 1), np.float32), edge_index=np.zeros((2, 1), np.int64))
    assert read_graph(path).nodes == 2**19


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_takes_little(name: str, tmp_path: Path) -> None:
    make, words, message = FILES[name]
    path = tmp_path / next(word for word in words if word.startswith("g."))
    make(path)
    assert path.stat().st_size < 2 * 2**20
    report = tmp_path / "report.json"
    command = [sys.executable, measured.__file__, str(report), "", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    facts = json.loads(report.read_text())
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert facts["seconds"] < SECONDS, facts
    assert facts["megabytes"] < MEGABYTES, facts


def test_defaults_of_attributes_cost_little(tmp_path: Path) -> None:
    """200 kB of GraphML: 2,000 attributes with a default for each of 2,500 nodes."""
    keys = "".join(
        f'<key id="k{i}" for="node" attr.name="a{i}" attr.type="int"><default>{i}</default></key>'
        for i in range(2000)
    )
    nodes = "".join(f'<node id="{i}"/>' for i in range(2500))
    path = tmp_path / "g.graphml"
    path.write_text(f'<graphml>{keys}<graph edgedefault="directed">{nodes}</graph></graphml>')
    started = time.process_time()
    graph = import_graph(path).graph
    assert time.process_time() - started < SECONDS
    assert np.array_equal(graph.rows(7, 8)[0], np.arange(2000))


def test_one_hot_columns_are_counted_before_they_are_made(tmp_path: Path, monkeypatch) -> None:
    from adar_runtime.errors import GraphError
    from adar_runtime.graph.formats import import_graph

    many_words(tmp_path / "e.csv")
    monkeypatch.setenv("ADAR_MAX_BYTES", str(100 * 2**20))
    with pytest.raises(GraphError, match=r"nodes\.csv: column 'c\d+' would bring"):
        import_graph(tmp_path / "e.csv", tmp_path / "nodes.csv")


def test_compressed_bags_of_words_are_still_read(tmp_path: Path) -> None:
    """The limit by ratio must not refuse graphs of real data."""
    import numpy as np

    from adar_runtime import read_graph

    x = np.random.default_rng(0).random((20_000, 500)) < 0.01
    np.savez_compressed(tmp_path / "g.npz", x=x.astype(np.float32), edge_index=np.zeros((2, 1), np.int64))
    assert read_graph(tmp_path / "g.npz").nodes == 20_000


def test_splits_are_limited(tmp_path: Path) -> None:
    """18 kB: training drew a missing mask for each of 3 million splits, which took 46 s."""
    masks = np.ones((3_000_000, 3), np.bool_)
    np.savez_compressed(
        tmp_path / "a.npz", x=np.eye(3), edge_index=[[0], [1]], y=[0, 1, 0], train_mask=masks, test_mask=masks
    )
    with pytest.raises(GraphError, match="train_mask has 3,000,000 splits; at most 10,000 are supported"):
        read_graph(tmp_path / "a.npz")
