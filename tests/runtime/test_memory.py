"""A graph that the machine has no room for is refused before anything is allocated for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Bundle, Graph, SparseRows, memory
from adar_runtime.errors import GraphError

HUGE = 10**10


def empty(nodes: int, width: int) -> Graph:
    """A graph of many nodes that takes next to nothing itself."""
    starts = np.broadcast_to(np.int64(0), (1,))
    sparse = SparseRows(starts, np.zeros(0, np.int64), np.zeros(0), (0, width))
    object.__setattr__(sparse, "shape", (nodes, width))
    graph = Graph(np.zeros((1, width)), np.zeros((2, 0), np.int64))
    object.__setattr__(graph, "features", sparse)
    return graph


def test_it_says_how_much_it_would_have_needed(bundle: Bundle) -> None:
    graph = empty(HUGE, bundle.manifest.features)
    needed = memory.needed_bytes(graph, bundle.manifest)
    assert needed > HUGE * bundle.manifest.hidden * 4 * 5
    with pytest.raises(GraphError, match=f"about {needed:,} bytes"):
        bundle.run(graph)


def test_the_environment_has_the_last_word(
    bundle: Bundle, board: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = memory.needed_bytes(board, bundle.manifest)
    monkeypatch.setenv("ADAR_MAX_BYTES", str(needed - 1))
    with pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        bundle.run(board, 2)
    monkeypatch.setenv("ADAR_MAX_BYTES", str(needed))
    assert bundle.run(board, 2).steps == 2


def test_what_is_free_is_the_least_of_machine_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADAR_MAX_BYTES", raising=False)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.limit_bytes() is None  # neither can be known: not Linux
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:   7 kB\n")
    assert memory.limit_bytes() == 7 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1500\n")
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 500\n")
    assert memory.limit_bytes() == 7 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory.limit_bytes() == 4000


def test_more_of_anything_needs_more(bundle: Bundle, board: Graph) -> None:
    small = memory.needed_bytes(board, bundle.manifest)
    doubled = replace(board, edge_index=np.tile(board.edge_index, 2))
    assert memory.needed_bytes(doubled, bundle.manifest) > small
    assert memory.needed_bytes(board, replace(bundle.manifest, hidden=32)) > small
    # A row of 3d numbers for every edge, and an index for each of them, instead of d numbers.
    assert memory.needed_bytes(board, replace(bundle.manifest, aggregation="edges")) > 4 * small
