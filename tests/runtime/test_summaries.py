"""`repr` is one line, and the table of a notebook escapes what comes from files."""

from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Graph, Result, StopReason, load
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import MissingPackageError, UsageError
from adar_runtime.formatting import exit_rule
from adar_runtime.prediction_files import OUTPUT_FORMATS, prediction_writer
from tests.helpers import random_graph

HOSTILE = ("<script>alert(1)</script>", "a\x1b[31m\n& b")


def result(**changes: object) -> Result:
    settings = {
        "scores": np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 1.0]], np.float32),
        "alignment": [0.1, 0.3, 0.2],
        "times": [0.0, 0.5, 1.0],
        "budget": 2,
        "best_step": 1,
        "stop_reason": StopReason.PEAK,
        "backend": "onnxruntime-cpu",
        "timings": {"prepare": 0.25, "loop": 0.5},
        "class_names": ("ham", "spam"),
    }
    return Result(**settings | changes)


def test_a_graph_in_one_line() -> None:
    graph = Graph([[1.0], [2.0], [3.0]], [[0, 1], [1, 2]], [0, 1, -1], train_mask=[True, False, False])
    assert repr(graph) == "Graph(3 nodes, 2 edges, 1 feature, 2 classes for each node, 1 train)"
    bare = Graph([[1.0]], np.zeros((2, 0), int))
    assert repr(bare) == "Graph(1 node, 0 edges, 1 feature, no labels)"


def test_a_stop_rule_in_words() -> None:
    assert exit_rule({"rule": "time", "t": 0.6912}) == "time, t = 0.691"
    assert (
        exit_rule({"rule": "peak", "patience": 10, "fallback": 1.0})
        == "peak, patience 10, t = 1 without a peak"
    )
    assert exit_rule({"rule": "final"}) == "final, t = 1"
    assert exit_rule({"rule": "other", "{0}": 3}) == "other, {0} 3"


def test_a_result_in_one_line() -> None:
    assert repr(result()) == (
        "Result(3 predictions, 2 classes, from t = 0.50 (call 1), the alignment passed its peak, "
        "2 cell calls, budget 2, 0.75 s on onnxruntime-cpu)"
    )
    assert "<th style='text-align:left'>predicted</th><td style='text-align:left'>ham: 2, spam: 1</td>" in (
        result()._repr_html_()
    )
    assert "2 numbers" in repr(result(regression=True, class_names=None))


def test_a_bundle_shows_its_metric_exit_and_parity(bundle_folder: Path) -> None:
    bundle, manifest = load(bundle_folder), read_manifest(bundle_folder)
    shown = repr(bundle)
    assert "\n" not in shown
    for part in (
        repr(str(bundle_folder)),
        "2 classes for each node",
        "test ROC-AUC",
        "stop rule",
        "PyTorch by",
    ):
        assert part in shown
    assert f"differs from PyTorch by {manifest.parity['needed']:.1e}" in manifest._repr_html_()
    assert repr(manifest).startswith("Manifest(2 classes for each node, ")
    assert f"{100 * manifest.training['test']:.2f} %" in bundle._repr_html_()


@pytest.mark.parametrize("shown", [
    Graph([[1.0], [2.0]], np.zeros((2, 0), int), [0, 1], class_names=HOSTILE),
    result(class_names=HOSTILE),
], ids=["graph", "result"])  # fmt: skip
def test_names_are_escaped_and_on_one_line(shown: Graph | Result) -> None:
    table = shown._repr_html_()
    assert "&lt;script&gt;" in table
    assert "<script>" not in table
    assert "\x1b" not in table + repr(shown)
    assert "\n" not in table + repr(shown)


def test_many_names_are_cut() -> None:
    names = tuple(f"{'long' * 30} {number}" for number in range(500))
    graph = Graph(np.ones((500, 1)), np.zeros((2, 0), int), np.arange(500), class_names=names)
    assert len(graph._repr_html_()) < 1500


def test_predictions_as_a_data_frame_and_as_a_table() -> None:
    frame, table = result().to_pandas(), result().to_arrow()
    assert (
        list(frame.columns)
        == table.column_names
        == ["output", "prediction", "class", "probability_0", "probability_1"]
    )
    assert frame["class"].tolist() == table["class"].to_pylist() == ["ham", "spam", "ham"]
    assert frame["probability_1"].tolist() == pytest.approx(result().probabilities[:, 1].tolist())
    numbers = result(regression=True, class_names=None).to_pandas()
    assert list(numbers.columns) == ["output", "prediction_0", "prediction_1"]


@pytest.mark.parametrize("suffix", OUTPUT_FORMATS)
def test_save_writes_every_format_of_run(suffix: str, tmp_path: Path) -> None:
    one = result()
    one.save(str(tmp_path / f"a{suffix}"))
    content = (tmp_path / f"a{suffix}").read_bytes()
    expected = prediction_writer(tmp_path / f"a{suffix}")(one)
    assert content == expected or suffix == ".npz"  # a zip archive has the time of writing
    assert content[:2] == expected[:2]


def test_save_and_plot_refuse_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"predictions are written as .npz"):
        result().save(tmp_path / "a.xls")
    with pytest.raises(UsageError, match=r"a plot is a .png or .svg file"):
        result().plot(tmp_path / "a.gif")


def test_plot_returns_a_figure_that_a_notebook_shows(tmp_path: Path) -> None:
    figure = result().plot(str(tmp_path / "a.svg"))
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="to_pandas needs pandas: pip install pandas"):
        result().to_pandas()


def test_a_bundle_predicts_and_is_scored(bundle_folder: Path, board: Graph) -> None:
    bundle = load(str(bundle_folder))
    expected = bundle.run(board, 5)
    assert np.array_equal(bundle.predict(board, 5).scores, expected.scores)
    for one in bundle.predict([board, board], 5):  # in a batch
        np.testing.assert_allclose(one.scores, expected.scores, rtol=1e-4, atol=1e-5)
    assert bundle.predict(board, 5, stop="final").best_step == 5
    scores = bundle.evaluate(board, [3, 5])
    assert [row["budget"] for row in scores.budgets()] == [3, 5]
    assert repr(scores).startswith("Evaluation(Graph, ROC-AUC on ")
    assert "<th style='text-align:left'>at budget 5</th>" in scores._repr_html_()
    assert len(bundle.evaluate([board], [3])) == 1
    with pytest.raises(UsageError, match="a graph is needed, not int"):
        bundle.run(3)


def test_described_classes_are_shown(described_bundle: Path) -> None:
    assert "classes for each node" in repr(load(described_bundle))
    assert "3 classes" in repr(load(described_bundle).predict(random_graph(20, 40), 2))
