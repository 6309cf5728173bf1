"""Given masks are kept; missing masks are drawn from the labels that are in no given mask."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.errors import GraphError
from adar_train.data.splits import split_graphs, with_split
from adar_train.prepare import prepare
from tests.helpers import random_graph


def masked(nodes: int = 60, **chosen: slice) -> Graph:
    """A graph with masks of these nodes."""
    masks = {}
    for name, part in chosen.items():
        masks[f"{name}_mask"] = np.zeros(nodes, np.bool_)
        masks[f"{name}_mask"][part] = True
    return replace(random_graph(nodes, 150), **masks)


def one_label_graphs(*parts: str | None) -> list[Graph]:
    """Graphs with one label each, in this part of the split or without any mask."""
    graphs = [random_graph(5, 9, level="graph", seed=i) for i in range(len(parts))]
    return [
        graph if part is None else replace(graph, **{f"{part}_mask": np.array([True])})
        for graph, part in zip(graphs, parts, strict=True)
    ]


def test_given_test_nodes_are_never_trained_on() -> None:
    graph = masked(test=slice(20))
    split = with_split(graph)
    assert np.array_equal(split.test_mask, graph.test_mask)
    assert not ((split.train_mask | split.val_mask) & graph.test_mask).any()
    assert not (split.train_mask & split.val_mask).any()
    assert [split.train_mask.sum(), split.val_mask.sum()] == [30, 10]


def test_every_one_of_several_splits_is_completed() -> None:
    tests = np.stack([np.arange(60) < 20, np.arange(60) >= 40])
    split = with_split(replace(random_graph(60, 150), test_mask=tests))
    assert split.train_mask.shape == (2, 60)
    assert np.array_equal(split.train_mask.astype(int) + split.val_mask + split.test_mask, np.ones((2, 60)))


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        ({"train": slice(40), "test": slice(40, 60)}, [30, 10, 20]),  # val is drawn from train
        ({"train": slice(40), "test": slice(50, 60)}, [30, 10, 10]),
        ({"train": slice(40)}, [40, 10, 10]),  # val and test are drawn from the other nodes
        ({"train": slice(60)}, [45, 15, 0]),
        ({"val": slice(20)}, [30, 20, 10]),
        ({"train": slice(30), "val": slice(30, 40)}, [30, 10, 0]),  # training needs no other mask
    ],
)
def test_missing_masks_are_drawn(given: dict[str, slice], counts: list[int]) -> None:
    split = with_split(masked(**given))
    masks = [split.train_mask, split.val_mask, split.test_mask]
    assert [0 if mask is None else int(mask.sum()) for mask in masks] == counts
    assert np.sum([mask for mask in masks if mask is not None], axis=0).max() == 1


def test_a_graph_without_labels_left_for_training_is_refused() -> None:
    with pytest.raises(GraphError, match="all labels are in test_mask"):
        with_split(masked(test=slice(60)))


def test_graphs_without_labels_are_refused() -> None:
    """The error named a mask without a name."""
    graphs = [replace(graph, labels=None) for graph in one_label_graphs(*[None] * 8)]
    with pytest.raises(GraphError, match="no labels: training needs y"):
        split_graphs(graphs)


def test_graphs_without_masks_are_divided_and_others_keep_their_part() -> None:
    graphs = split_graphs(one_label_graphs("test", *[None] * 8, "test"))
    assert [bool(graph.test_mask[0, 0]) for graph in graphs] == [True, *[False] * 8, True]
    assert sum(int(graph.train_mask.sum()) for graph in graphs) == 6
    assert sum(int(graph.val_mask.sum()) for graph in graphs) == 2


def test_one_graph_with_a_mask_among_graphs_without() -> None:
    graphs = split_graphs(one_label_graphs("train", *[None] * 8))
    assert all(
        sum(int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)) == 1
        for graph in graphs
    )
    with pytest.raises(GraphError, match="2 of 5 graphs have no masks"):
        split_graphs(one_label_graphs("train", "val", "test", None, None))


def test_drawn_masks_are_reported(tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", masked(test=slice(20)))
    notes: list[str] = []
    prepare([str(tmp_path / "g.npz")], on_note=notes.append)
    assert notes == [
        f"{tmp_path / 'g.npz'}: drew the missing train_mask, val_mask at random: 30 train, 10 val, 20 test"
    ]
    write_graph(tmp_path / "g.npz", masked(train=slice(20), val=slice(20, 40), test=slice(40, 60)))
    prepare([str(tmp_path / "g.npz")], on_note=notes.append)
    assert len(notes) == 1
