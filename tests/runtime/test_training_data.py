"""Training graphs are recognised, and scored on the test part of their training split."""

from dataclasses import replace

import numpy as np
import pytest

from adar_runtime import Graph, SparseRows
from adar_runtime.errors import AdarError, BundleError
from adar_runtime.evaluation.scoring import choose_outputs
from adar_runtime.evaluation.training_data import KEY, TrainingData, describe, identity, output_hashes
from adar_runtime.graph.synthetic import minesweeper

BARE = {"train_mask": None, "val_mask": None, "test_mask": None}


def graph(seed: int = 0, nodes: int = 203, level: str = "node", splits: int = 1) -> Graph:
    random = np.random.default_rng(seed)
    outputs = {"node": nodes, "edge": 150, "graph": 1}[level]
    part = random.integers(0, 4, (splits, outputs))  # 3: in no part
    return Graph(
        features=random.normal(size=(nodes, 5)) * (random.random((nodes, 5)) < 0.7),
        edge_index=random.integers(0, nodes, (2, 800)),
        labels=random.integers(0, 3, outputs),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
        pairs=random.integers(0, nodes, (2, outputs)) if level == "edge" else None,
        level=level,
    )


def record(*graphs: Graph, split: int = 0) -> dict:
    return {KEY: describe(graphs, split), "split": split}


@pytest.mark.parametrize("level", ["node", "edge"])
@pytest.mark.parametrize("split", [0, 2])
def test_a_training_graph_gets_its_split_back(level: str, split: int) -> None:
    trained = graph(level=level, splits=3)
    found = choose_outputs(
        record(graph(1, splits=3), trained, split=split), [replace(trained, **BARE)], split
    )
    assert found.recognised
    assert found.part == "test"
    assert found.warnings == []
    assert found.title == f"test {'nodes' if level == 'node' else 'pairs'} of the training split"
    for part in ("train", "val", "test"):
        assert np.array_equal(found.graphs[0].labelled(part, split), trained.labelled(part, split))


def exchanged(pairs: Graph, chosen: np.ndarray) -> Graph:
    """The graph with these pairs written in the other direction."""
    assert pairs.pairs is not None
    return replace(pairs, pairs=np.where(chosen, pairs.pairs[::-1], pairs.pairs))


@pytest.mark.parametrize("chosen", [np.ones(150, np.bool_), np.arange(150) % 2 == 0], ids=["all", "half"])
def test_pairs_in_the_other_direction_are_the_same(chosen: np.ndarray) -> None:
    trained = graph(level="edge")
    other = exchanged(replace(trained, **BARE), chosen)
    found = choose_outputs(record(trained), [other])
    assert found.recognised
    assert np.array_equal(found.graphs[0].test_mask, trained.test_mask)
    used = trained.train_mask[0]
    part = replace(other, pairs=other.pairs[:, used], labels=other.labels[used])  # another graph, same pairs
    (warning,) = choose_outputs(record(trained), [part]).warnings
    assert "look like training pairs" in warning
    assert choose_outputs(record(trained), [replace(graph(1, level="edge"), **BARE)]).warnings == []


# Written by version 1: the graph of `graph(nodes=9, level="edge")`, with its first ten pairs.
OLD = {
    "sha256": "35e21c650059c6eb7d71a32e5c16f9121211e010fb48847dfad3ef16b7569633",
    "nodes": 9,
    "edges": 800,
    "outputs": 10,
    "split": "eNrbE8YIAALkARQ=",
}
OLD_SAMPLE = "IbKOllOPEUxF7c2g/RZsZGM/4eYlmLiyCM3GS2lAiL4="


def test_a_record_of_version_1_recognises_what_it_did() -> None:
    whole = graph(nodes=9, level="edge")
    masks = {name: getattr(whole, name)[:, :10] for name in BARE}
    trained = replace(whole, pairs=whole.pairs[:, :10], labels=whole.labels[:10], **masks)
    old = {"version": 1, "graphs": [OLD], "sample": {"rounds": 0, "hashes": OLD_SAMPLE}}
    bare = replace(trained, **BARE)
    found = choose_outputs({KEY: old}, [bare])
    assert found.recognised
    assert np.array_equal(found.graphs[0].test_mask, trained.test_mask)
    data, used = TrainingData(old), trained.train_mask[0]
    assert data.trained_share(trained, used) == 1
    turned = exchanged(bare, np.ones(10, np.bool_))
    assert data.split_of(turned) is None, "as before: train again"


def test_what_does_not_change_a_graph() -> None:
    dense = graph()
    starts = np.concatenate([[0], np.cumsum((dense.features != 0).sum(axis=1))])
    rows, columns = np.nonzero(dense.features)
    sparse = SparseRows(starts, columns, dense.features[rows, columns], dense.features.shape)
    order = np.random.default_rng(0).permutation(dense.edges)
    same = replace(dense, features=sparse, edge_index=dense.edge_index[:, order], labels=dense.labels * 0)
    assert identity(same) == identity(dense)
    moved, changed = dense.edge_index.copy(), dense.features.copy()
    moved[0, 0] = (moved[0, 0] + 1) % dense.nodes
    changed[7, 3] += 1e-3
    others = [replace(dense, edge_index=moved), replace(dense, features=changed)]
    assert len({identity(one) for one in [dense, *others]}) == 3


def test_masks_of_the_file_are_kept_and_checked() -> None:
    trained = graph(splits=2)
    found = choose_outputs(record(trained, split=1), [trained], 1)
    assert (found.recognised, found.part, found.warnings, found.title) == (False, "test", [], "test labels")
    (warning,) = choose_outputs(record(trained, split=1), [trained], 0).warnings
    leaked = (trained.test_mask[0] & trained.train_mask[1]).sum()
    assert f"{leaked} of {trained.test_mask[0].sum()} scored nodes were trained on" in warning
    assert "trained on split 1 (--split)" in warning


def test_without_a_test_part_the_unused_labels_are_scored() -> None:
    trained = replace(graph(), test_mask=None)
    found = choose_outputs(record(trained), [replace(trained, **BARE)])
    assert np.array_equal(found.graphs[0].test_mask[0], ~trained.train_mask[0] & ~trained.val_mask[0])
    full = replace(trained, val_mask=~trained.train_mask)
    found = choose_outputs(record(full), [replace(full, **BARE)])
    assert (found.part, found.recognised) == ("all", False)
    (warning,) = found.warnings
    assert "all labelled nodes were used for training or validation" in warning


def test_a_part_of_a_training_graph_is_warned_about() -> None:
    trained = graph(nodes=2000)
    half = Graph(trained.features[:1000], np.zeros((2, 0), np.int64), labels=trained.labels[:1000])
    (warning,) = choose_outputs(record(trained), [half]).warnings
    assert "look like training nodes" in warning
    untouched = replace(half, test_mask=~trained.train_mask[:, :1000])
    assert choose_outputs(record(trained), [untouched]).warnings == []
    assert choose_outputs(record(trained), [replace(graph(1, nodes=2000), **BARE)]).warnings == []


def test_boards_with_few_kinds_of_cells_are_told_apart_by_their_neighbours() -> None:
    """Cells of minesweeper have few different features: alone, they would match on every board."""
    trained, other = minesweeper(40, seed=0), replace(minesweeper(40, seed=1), **BARE)
    assert len(np.unique(output_hashes(trained, 0))) < 20
    assert choose_outputs(record(trained), [other]).warnings == []
    assert choose_outputs(record(trained), [replace(trained, **BARE)]).recognised


def test_graphs_with_one_label_each() -> None:
    random = np.random.default_rng(3)
    parts = random.permutation(np.repeat([0, 1, 2], [12, 4, 4]))
    graphs = [
        replace(
            graph(seed, 9, "graph"),
            train_mask=np.array([part == 0]),
            val_mask=np.array([part == 1]),
            test_mask=np.array([part == 2]),
        )
        for seed, part in enumerate(parts)
    ]
    graphs[3] = replace(graphs[2], train_mask=[False], val_mask=[False], test_mask=[True])  # the same twice
    graphs[2] = replace(graphs[2], train_mask=[True], val_mask=[False], test_mask=[False])
    bare, new = [replace(one, **BARE) for one in graphs], replace(graph(99, 9, "graph"), **BARE)
    found = choose_outputs(record(*graphs), [*bare, new])
    scored = [one.labelled("test") is not None for one in found.graphs]
    assert scored == [one.labelled("test") is not None for one in graphs] + [True]
    assert found.title == "test graphs of the training split"


def test_bundles_without_a_record_and_damaged_ones() -> None:
    bare = replace(graph(), **BARE)
    assert choose_outputs({}, [bare]).part == "all"
    assert choose_outputs({KEY: {"version": 99}}, [bare]).graphs == [bare]  # of a later version
    good = record(graph())[KEY]
    entry = good["graphs"][0]
    damaged = [
        {"graphs": 3},
        {"graphs": [{}]},
        {"graphs": [entry | {"nodes": -1}]},
        {"graphs": [entry | {"split": 7}]},
        {"graphs": [entry | {"split": "AAAA"}]},
        {"graphs": [entry | {"split": entry["split"][:8]}]},
        {"sample": {"rounds": 10**9, "hashes": ""}},
        {"sample": {"rounds": 0, "hashes": "AAA"}},
        {"sample": {"rounds": 1e400, "hashes": ""}},
        {"sample": [1]},
    ]
    for change in damaged:
        with pytest.raises(BundleError, match="damaged"):
            choose_outputs({KEY: good | change}, [bare])


def test_a_split_that_expands_without_end_is_refused() -> None:
    import base64
    import zlib

    good = record(graph())[KEY]
    bomb = base64.b64encode(zlib.compress(bytes(2**26), 9)).decode()
    with pytest.raises(AdarError, match="damaged"):
        TrainingData(good | {"graphs": [good["graphs"][0] | {"split": bomb}]}).split_of(graph())
