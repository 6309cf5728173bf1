"""Labels are converted to a model's class numbers by class names, if graph and model have names."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from adar_runtime import Graph
from adar_runtime.errors import AdarWarning, LabelsError
from adar_runtime.graph import EncodedColumn, FeatureEncoding
from adar_runtime.graph.labels import align_labels, fill_names

FRUIT = ("apple", "berry", "cherry")
TABLE = FeatureEncoding((EncodedColumn("a", "number"), EncodedColumn("b", "number")))


@dataclass(frozen=True)
class Learned:
    """What a model with learned targets predicts."""

    class_names: tuple[str, ...] | None = FRUIT
    targets: int | None = 3
    level: str = "node"
    regression: bool = False
    feature_encoding: FeatureEncoding | None = None


def labelled(*labels: float, names: tuple[str, ...] | None = None, **more: object) -> Graph:
    return Graph(
        np.ones((len(labels), 2)),
        np.zeros((2, 0), np.int64),
        labels=np.array(labels),
        class_names=names,
        **more,
    )


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (FRUIT, ("berry", "cherry"), [1, 2, -1, 1]),
        (FRUIT, ("cherry", "apple"), [2, 0, -1, 2]),
        (FRUIT, FRUIT, [0, 1, -1, 0]),
        (FRUIT, None, [0, 1, -1, 0]),
        (None, ("cherry", "apple"), [0, 1, -1, 0]),
        (None, ("1", "2"), [1, 2, -1, 1]),  # the graph's names are class numbers of the model
        (None, ("7", "9"), [0, 1, -1, 0]),  # the graph's names are not class numbers of the model
        (("apple", "apple", "cherry"), ("apple", "apple", "cherry"), [0, 1, -1, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore:the graph names its classes")
def test_names_decide_if_both_have_names(model, given, expected: list[int]) -> None:
    found = align_labels(Learned(model), labelled(0, 1, -1, 0, names=given))
    assert found.labels is not None
    assert found.labels.tolist() == expected


def test_names_that_the_model_does_not_have_are_compared_by_order_with_a_warning() -> None:
    with pytest.warns(AdarWarning, match=r"by their order \(0 is cherry, 1 is apple, 2 is 2\)"):
        align_labels(Learned(None), labelled(0, 1, names=("cherry", "apple")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        align_labels(Learned(None), labelled(0, 1, names=("1", "2")))
        align_labels(Learned(None), labelled(0, 1))


@pytest.mark.parametrize(
    ("model", "graph", "message"),
    [
        (
            Learned(),
            labelled(0, 1, names=("apple", "durian")),
            "labels durian, but the model's classes are",
        ),
        (Learned(), labelled(0, 4), r"labels up to 4, but the model has 3 classes \(0 to 2\)"),
        (Learned(None), labelled(0, 4, names=("a", "b", "c", "d", "e")), "labels up to 4"),
        (
            Learned(),
            labelled(0, 2, names=("cherry", "apple")),
            "labels 2, but",
        ),  # class 2 has no name in the graph
        (
            Learned(("a", "a", "b")),
            labelled(0, 1, names=("b", "a")),
            "several classes of the model have the name a",
        ),
        (Learned(), labelled(0.5, 1.5), "classes of each node"),
        (Learned(level="graph"), labelled(0, 1), "classes of each graph"),
        (Learned(regression=True, targets=2), labelled(0.5, 1.5), "each label has 1 numbers"),
    ],
)
def test_labels_that_the_model_does_not_predict_are_an_error(
    model: Learned, graph: Graph, message: str
) -> None:
    with pytest.raises(LabelsError, match=message):
        align_labels(model, graph)


def test_an_error_names_a_few_of_many_classes() -> None:
    names = tuple(f"class {i}" for i in range(100))
    with pytest.raises(LabelsError, match="class 4 and 95 more, but") as caught:
        align_labels(Learned(), labelled(*range(100), names=names))
    assert len(str(caught.value)) < 300


def test_an_unused_class_may_have_any_name() -> None:
    found = align_labels(Learned(), labelled(0, 0, names=("cherry", "durian")))
    assert found.labels is not None
    assert found.labels.tolist() == [2, 2]


def test_described_classes_keep_the_numbers_of_the_graph() -> None:
    graph = labelled(0, 1, names=("x", "y"), target_features=np.eye(2))
    assert align_labels(Learned(None, targets=None), graph) is graph


def test_every_class_has_a_name() -> None:
    assert fill_names(("a", "b"), 3) == ["a", "b", "2"]
    assert fill_names(("a", "b"), 1) == ["a"]
    assert fill_names(None, 2) == ["0", "1"]


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (None, ("1", "2"), [1, 2, -1, 1]),
        (None, None, [0, 1, -1, 0]),
        (("0", "1", "5"), None, [0, 1, -1, 0]),
        (("false", "other", "true"), ("True", "False"), [2, 0, -1, 2]),  # as in JSON lines and Parquet
    ],
)
def test_labels_of_tables_are_names(model, given, expected: list[int]) -> None:
    graph = labelled(0, 1, -1, 0, names=given, feature_encoding=TABLE)
    found = align_labels(Learned(model, feature_encoding=TABLE), graph)
    assert found.labels is not None
    assert found.labels.tolist() == expected


@pytest.mark.parametrize(
    ("model", "given", "unknown"),
    [
        (None, ("1", "7"), "7"),  # a class that the model does not have moved the numbers of all others
        (None, ("1", "other"), "other"),
        (("1", "2", "3"), None, "0"),  # the labels 0 and 1 of a table are not the classes 1 and 2
        (("0", "2", "5"), None, "1"),
        (FRUIT, None, "0, 1"),
    ],
)
def test_unknown_labels_of_tables_are_an_error(model, given, unknown: str) -> None:
    graph = labelled(0, 1, -1, 0, names=given, feature_encoding=TABLE)
    with pytest.raises(LabelsError, match=f"the graph has labels {unknown}, but the model's classes are"):
        align_labels(Learned(model, feature_encoding=TABLE), graph)
