"""Several graphs with the same features and classes train one model: classes, masks, validation."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adar_runtime import Graph, write_graph
from adar_runtime.errors import AdarWarning, GraphError, UsageError
from adar_runtime.evaluation.evaluate import evaluate
from adar_train import TrainConfig, fit
from adar_train.data.checks import check_together, check_trainable
from adar_train.data.classes import match_classes
from adar_train.data.splits import with_split
from adar_train.prepare import model_config, prepare
from tests.helpers import SHARED_DATA, random_graph

SHORT = TrainConfig(
    epochs=25, warmup=3, train_steps=2, select_budgets=(3,), exit_budgets=(3, 6), evaluate_every=5
)
TWITCH = [SHARED_DATA / "more" / f"twitch-{country}.npz" for country in ("engb", "ptbr", "es")]


def day(seed: int, names: tuple[str, ...] = ("low", "middle", "high"), nodes: int = 90) -> Graph:
    """Nodes whose first three features show their class, in any numbering of the class names."""
    random = np.random.default_rng(seed)
    true = random.integers(0, 3, nodes)  # in the order low, middle, high
    number = np.array([names.index(name) for name in ("low", "middle", "high")])
    features = random.normal(size=(nodes, 5))
    features[:, :3] += 5 * np.eye(3)[true]
    edges = random.integers(0, nodes, (2, 2 * nodes))
    return Graph(features, edges, labels=number[true], class_names=names)


def write(folder: Path, **graphs: Graph) -> list[str]:
    for name, graph in graphs.items():
        write_graph(folder / f"{name}.npz", graph)
    return [str(folder / f"{name}.npz") for name in graphs]


def train(graphs: list[Graph]) -> dict:
    return fit(graphs, model_config(graphs, hidden=16, proxies=4, dropout=0.0), SHORT).metrics


def test_classes_are_matched_by_name_and_one_model_learns_from_all(tmp_path: Path) -> None:
    files = write(
        tmp_path, a=day(0), b=day(1, ("high", "low", "middle")), c=day(2, ("middle", "high", "low"))
    )
    graphs = prepare(files)
    assert {graph.class_names for graph in graphs} == {("low", "middle", "high")}
    for graph in graphs:  # the first three features show the class
        assert (graph.features[:, :3].argmax(axis=1) == graph.labels).mean() > 0.9
    metrics = train(graphs)
    assert metrics["val"] > 0.9
    assert metrics["val"] == pytest.approx(np.mean([one["val"] for one in metrics["graphs"]]))


def test_a_class_of_one_graph_alone_gets_a_number_of_its_own() -> None:
    one = Graph(np.eye(3), np.zeros((2, 0), int), labels=[0, 1, -1], class_names=("a", "b"))
    other = Graph(np.eye(3), np.zeros((2, 0), int), labels=[1, 0, 2], class_names=("b", "c", "a"))
    first, second = match_classes(["one", "other"], [one, other])
    assert first.class_names == second.class_names == ("a", "b", "c")
    assert first.labels.tolist() == [0, 1, -1]
    assert second.labels.tolist() == [2, 1, 0]


def test_labels_without_a_name_are_named_by_their_number() -> None:
    one = Graph(np.eye(3), np.zeros((2, 0), int), labels=[0, 1, 2], class_names=("a", "b"))
    other = Graph(np.eye(3), np.zeros((2, 0), int), labels=[0, 1, 1], class_names=("b", "a"))
    first, second = match_classes(["one", "other"], [one, other])
    assert first.class_names == ("a", "b", "2")
    assert first.labels.tolist() == [0, 1, 2]
    assert second.labels.tolist() == [1, 0, 0]


def test_whole_graphs_are_matched_by_name_too(tmp_path: Path) -> None:
    whole = replace(random_graph(9, 9, level="graph"), target_features=None)
    graphs = {
        f"g{index}": replace(
            whole, labels=np.array([0]), class_names=("no", "yes") if index % 2 else ("yes", "no")
        )
        for index in range(10)
    }
    prepared = prepare(write(tmp_path, **graphs))
    assert [int(graph.labels[0]) for graph in prepared] == [0, 1] * 5


def test_a_graph_without_validation_labels_is_trained_on_whole(tmp_path: Path) -> None:
    everything = np.ones(90, bool)
    masks = {"train_mask": np.arange(90) < 60, "val_mask": np.arange(90) >= 60}
    for val_mask in (None, ~everything):
        whole = replace(day(0), train_mask=everything, val_mask=val_mask)
        graphs = prepare(write(tmp_path, a=whole, b=replace(day(1), **masks)))
        assert graphs[0].labelled("train").sum() == 90
        assert graphs[0].labelled("val") is None
        metrics = train(graphs)
        assert "val" not in metrics["graphs"][0]
        assert metrics["val"] == metrics["graphs"][1]["val"] > 0.9


def test_a_graph_with_one_class_in_validation_does_not_count(tmp_path: Path) -> None:
    """ROC-AUC is undefined there; the other graphs select the model."""
    two = [replace(day(seed), labels=day(seed).labels // 2, class_names=None) for seed in range(2)]
    train_mask = np.arange(90) < 45
    one_class = replace(two[0], train_mask=train_mask, val_mask=~train_mask & (two[0].labels == 0))
    graphs = prepare(
        write(tmp_path, a=one_class, b=replace(two[1], train_mask=train_mask, val_mask=~train_mask))
    )
    metrics = train(graphs)
    assert metrics["metric"] == "roc_auc"
    assert metrics["val"] == metrics["graphs"][1]["val"] > 0.9
    with pytest.raises(GraphError, match="all labels in val_mask are of one class"):
        check_trainable(graphs[:1], 0)


def test_graphs_that_are_scored_together_describe_the_same_classes() -> None:
    """Other numbers were a traceback; names in another order gave wrong numbers per class."""
    graphs = [random_graph(5, 5, level="graph", classes=3 + seed % 2, seed=seed) for seed in range(10)]
    names = [replace(graphs[0], class_names=tuple(order)) for order in ("abc", "cab")]
    subject = SimpleNamespace(in_context=False, targets=None, training={})
    for group in (graphs, names):
        with pytest.raises(GraphError, match="describe different classes"):
            check_together(["a", "b"], group[:2])
        with pytest.raises(GraphError, match="describe different classes"):
            evaluate("10 graphs", group, subject, [8])  # type: ignore[arg-type]


def test_equal_regression_targets_are_not_of_one_class() -> None:
    graph = replace(day(0), labels=np.full((90, 1), 0.5, np.float32), class_names=None)
    with pytest.raises(GraphError, match="all labels in val_mask are equal"):
        check_trainable([with_split(graph)], 0)


def test_validation_on_one_graph_trains_on_all_labels_of_the_others(tmp_path: Path) -> None:
    part = np.arange(90) % 3
    masks = {
        name: np.stack([part == i, part == (i + 1) % 3]) for i, name in enumerate(("train_mask", "val_mask"))
    }
    tested = replace(day(0), **masks, test_mask=np.stack([part == 2, part == 0]))
    files = write(tmp_path, a=tested, b=day(1), c=replace(day(2), train_mask=np.ones(90, bool)))
    first, second, last = prepare(files, validate_on=1)
    for split in (0, 1):
        assert first.labelled("train", split).tolist() == (~first.test_mask[split]).tolist()
        assert second.labelled("train", split).all()
        assert last.labelled("val", split).all()
    assert first.labelled("val") is second.labelled("val") is None
    assert last.labelled("train") is None
    assert last.test_mask is None
    metrics = train([first, second, last])
    assert [sorted(one) for one in metrics["graphs"]] == [["test", "train"], ["train"], ["val"]]
    assert metrics["val"] > 0.9


def test_a_training_graph_that_is_validated_on_too_gives_a_warning(tmp_path: Path) -> None:
    """A copy of the file, or the same graph in memory: the validation score is that of training labels."""
    with pytest.warns(AdarWarning, match=r"b\.npz, which is validated on, is also a training graph"):
        prepare(write(tmp_path, a=day(0), b=day(0)), validate_on=1)


def test_links_are_not_drawn_in_a_graph_to_validate_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs graphs with their own pairs"):
        prepare(write(tmp_path, a=day(0), b=day(1)), "edge", validate_on=1)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (replace(day(1), features=np.ones((90, 4))), r"b\.npz has 4 features and .*a\.npz has 5"),
        (replace(day(1), class_names=None), r"only one of .*b\.npz and .*a\.npz names its classes"),
        (replace(day(1), class_names=("x", "x", "y")), r"b\.npz has several classes with the name x"),
        (replace(day(1), labels=np.full((90, 2), 0.5)), "different tasks"),
    ],
    ids=["feature widths", "names in one", "a name twice", "regression"],
)
def test_graphs_that_cannot_share_a_model_are_refused(second: Graph, message: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=message):
        prepare(write(tmp_path, a=day(0), b=second))


def test_regression_targets_must_be_equal(tmp_path: Path) -> None:
    numbers = [replace(day(0), labels=np.full((90, columns), 0.5), class_names=None) for columns in (1, 2)]
    with pytest.raises(GraphError, match="2 regression targets"):
        prepare(write(tmp_path, a=numbers[0], b=numbers[1]))


@pytest.mark.skipif(not all(file.is_file() for file in TWITCH), reason=f"no real data in {SHARED_DATA}")
def test_two_countries_train_a_model_that_is_validated_on_a_third() -> None:
    graphs = prepare([*map(str, TWITCH)], validate_on=1)
    config = TrainConfig(epochs=2, train_steps=2, select_budgets=(2,), exit_budgets=(2,), evaluate_every=1)
    fitted = fit(graphs, model_config(graphs, hidden=8, proxies=2), config)
    assert [sorted(one) for one in fitted.metrics["graphs"]] == [
        ["test", "train"],
        ["test", "train"],
        ["val"],
    ]


def test_labels_that_begin_at_1_get_a_warning() -> None:
    graph = replace(random_graph(20, 40), target_features=None)
    from_one = replace(graph, labels=np.arange(20) % 3 + 1)
    with pytest.warns(AdarWarning, match=r"labels begin at 1, .* subtract 1 from y .* class_names") as warned:
        prepare(["a"], read=lambda _: [from_one])
    assert len(warned) == 1
    for quiet in (
        replace(from_one, class_names=("none", "a", "b", "c")),
        replace(graph, labels=np.arange(20) % 3 - 1),
    ):
        prepare(["a"], read=lambda _, graph=quiet: [graph])  # a warning would be an error
    prepare(
        ["a", "b"], read=lambda name: [from_one if name == "a" else replace(graph, labels=np.arange(20) % 4)]
    )
