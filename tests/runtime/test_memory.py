"""A graph that the machine has no room for is refused before anything is allocated for it."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_export import export_bundle
from adar_runtime import Bundle, Final, Graph, SparseRows, load
from adar_runtime.backends import CPU
from adar_runtime.backends import prepared_graph as layouts
from adar_runtime.bundle import memory
from adar_runtime.errors import GraphError
from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
from tests.helpers import awake, random_graph

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


@pytest.mark.parametrize(("nodes", "classes", "width"), [(2000, 300, 5), (8000, 2, 5), (20, 2, 40_000)])
def test_the_start_of_the_pretrained_model_is_counted(
    nodes: int, classes: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    described = random.normal(size=(classes, width))
    graph = Graph(random.normal(size=(nodes, width)), np.zeros((2, 0), np.int64), target_features=described)
    bundle = load(named_bundle(PRETRAINED), CPU, threads=1)
    tracemalloc.start()
    try:
        bundle.prepare(graph)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    monkeypatch.setenv("ADAR_MAX_BYTES", str(peak))
    with pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        bundle.run(graph, 2)
    monkeypatch.setenv("ADAR_MAX_BYTES", str(4 * peak))
    assert bundle.run(graph, 2).steps == 2


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_known_labels_of_the_pretrained_model_are_counted(share: float, described: bool) -> None:
    """Each way to score the known labels keeps a score for each of them and each class."""
    random, nodes, classes = np.random.default_rng(0), 1500, 200
    graph = Graph(
        random.normal(size=(nodes, 5)),
        np.zeros((2, 0), np.int64),
        np.arange(nodes) % classes,
        train_mask=np.arange(nodes) < share * nodes,
        target_features=random.normal(size=(classes, 5)) if described else None,
    )
    bundle = load(named_bundle(PRETRAINED), CPU, threads=1)
    tracemalloc.start()
    try:
        bundle.prepare(graph)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(GraphError, match="ADAR_MAX_BYTES"):
        patch.setenv("ADAR_MAX_BYTES", str(peak))
        bundle.check(graph)


def test_only_one_table_is_gathered_at_a_time(bundle: Bundle) -> None:
    """Lists of six lengths have six tables; lists of one length have one, with all edges."""
    one_length, six_lengths = np.full(600, 102), 100 + np.arange(600) // 100
    needed = [
        memory.needed_bytes(
            Graph(
                np.zeros((600, 4)), np.stack([np.arange(lengths.sum()) % 600, np.repeat(range(600), lengths)])
            ),
            replace(bundle.manifest, hidden=256),
        )
        for lengths in (one_length, six_lengths)
    ]
    assert needed[0] > 2 * needed[1]


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


def test_attention_between_many_proxies_is_counted(bundle: Bundle, board: Graph) -> None:
    """A bundle of one megabyte can have 40,000 proxies, if they have one number each."""
    many = replace(bundle.manifest, hidden=1, proxies=40_000)
    assert memory.needed_bytes(board, many) > 2 * 4 * 40_000**2


def test_sparse_features_that_become_dense_are_counted(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing forces a bundle to say that its encoder takes nodes in blocks."""
    graph = empty(10**6, bundle.manifest.features)
    monkeypatch.setenv("ADAR_MAX_BYTES", str(memory.needed_bytes(graph, bundle.manifest)))
    memory.check(graph, bundle.manifest, by_row=True)
    monkeypatch.setattr(bundle, "by_row", False)
    with pytest.raises(GraphError, match="would need about"):
        bundle.loop(graph)


def test_more_of_anything_needs_more(bundle: Bundle, board: Graph) -> None:
    small = memory.needed_bytes(board, bundle.manifest)
    doubled = replace(board, edge_index=np.tile(board.edge_index, 2))
    assert memory.needed_bytes(doubled, bundle.manifest) > small
    assert memory.needed_bytes(board, replace(bundle.manifest, hidden=32)) > small
    # A row of 3d numbers for every edge, and an index for each of them, instead of d numbers.
    assert memory.needed_bytes(board, replace(bundle.manifest, aggregation="edges")) > 4 * small


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle that judges links."""
    folder = tmp_path_factory.mktemp("links")
    graph = random_graph(40, 120, level="edge")
    model = awake(ModelConfig(graph.width, None, hidden=16, proxies=4, level="edge"))
    save_run(folder / "run", Fitted(model, {"metric": "accuracy"}, []), graph, ["random"], TrainConfig())
    export_bundle(load_run(folder / "run"), folder / "bundle", steps=[1])
    return load(folder / "bundle", CPU)


def with_pairs(count: int) -> Graph:
    random = np.random.default_rng(1)
    return replace(random_graph(40, 120, level="edge"), labels=None, pairs=random.integers(0, 40, (2, count)))


def test_links_are_counted_in(links: Bundle) -> None:
    few, many = (memory.needed_bytes(with_pairs(count), links.manifest) for count in (10, 1_000_000))
    assert many - few > 1_000_000 * (2 * 8 + 3 * 4)  # a copy of the pairs, and their scores


def test_links_are_judged_in_blocks(links: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at a time as there are nodes, each as it is judged with all others."""
    graph = with_pairs(95)
    whole = links.run(graph, 3, Final())
    monkeypatch.setattr(layouts, "PAIRS", 1)
    assert [block.shape[1] for block in links.prepare(graph).pair_blocks()] == [40, 40, 15]
    blocks = links.run(graph, 3, Final())
    assert blocks.scores == pytest.approx(whole.scores, abs=1e-5)
    assert blocks.alignment == pytest.approx(whole.alignment)


def test_a_block_is_all_that_links_take(links: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of nodes are made for a block, and never for all pairs."""
    started = memory.needed_bytes(with_pairs(1_000_000), links.manifest)
    monkeypatch.setattr(layouts, "PAIRS", 2_000_000)
    assert memory.needed_bytes(with_pairs(1_000_000), links.manifest) > 2 * started
