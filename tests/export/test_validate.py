"""The comparison with PyTorch: what it measures, and that it finds differences."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_export.samples import part_of, shapes_for
from adar_export.validate import DRIFT, STEPS, Check, Report, _distance, check_ports, compare, refuse
from adar_runtime import Graph, SparseRows, load
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import ExportError, GraphError
from adar_train import ModelConfig, load_run
from adar_train.cell import State
from tests.bundles import change_model, edit
from tests.helpers import random_graph

CHECK = Check("a star", "onnxruntime-cpu", 300, 1e-6, 1e-6, 0, 3, 3, None, None)


def test_several_shapes_and_steps_are_compared(bundle_folder: Path) -> None:
    parity = read_manifest(bundle_folder).parity
    assert parity["reference"] == "PyTorch"
    graphs = ["the run's graph", "a random graph", "a star", "one node"]
    assert [(c["graph"], c["steps"]) for c in parity["checks"]] == [(g, s) for g in graphs for s in STEPS]
    for check in parity["checks"]:
        last = check["steps"] == max(STEPS)
        assert [*map(int, check["drift"])] == ([*DRIFT, max(STEPS)] if last else [check["steps"]])
        assert check["drift"][str(check["steps"])] <= check["relative"] <= parity["needed"] < 1e-4
        assert check["predictions"] == 0
        assert 0 <= check["stop"] == check["reference_stop"] <= check["steps"]
    assert parity["checks"][0]["metric"] == pytest.approx(parity["checks"][0]["reference_metric"], abs=1e-6)
    assert parity["checks"][-1]["metric"] is None  # no labels


def test_metrics_need_labels_of_the_models_classes(
    run_folder: Path, bundle_folder: Path, board: Graph
) -> None:
    assert (board.class_names, board.labels is None) == (("safe", "mine"), False)
    graphs = {
        "board": board,
        "swapped": replace(board, labels=1 - board.labels, class_names=("mine", "safe")),
        "others": replace(board, class_names=("cat", "dog")),
        "numbers": replace(board, labels=np.ones((board.nodes, 3), np.float32)),
    }
    report = compare(load_run(run_folder).model, load(bundle_folder), graphs, [1])
    same, swapped, *none = [check.metric for check in report.checks]
    assert same == swapped is not None
    assert none == [None, None]


def test_the_error_lists_all_disagreements_and_the_largest() -> None:
    far = [replace(CHECK, relative=relative, steps=steps) for relative, steps in ((2e-2, 10), (5e-2, 100))]
    report = Report(1e-3, [CHECK, *far])
    assert report.needed == 5e-2
    with pytest.raises(ExportError) as error:
        refuse(Report(1e-3, [CHECK]), report)
    message = str(error.value)
    assert "disagree (allowed difference 1e-03, largest difference 5.0e-02)" in message
    assert "2.0e-02 on a star after 10 steps" in message
    assert "5.0e-02 on a star after 100 steps" in message
    assert "300" not in message
    refuse(Report(1e-3, [CHECK]))


def test_changed_predictions_are_a_disagreement() -> None:
    """Even if the values agree: rounding can decide ties, but not for this many of so few outputs."""
    report = Report(1e-3, [CHECK, replace(CHECK, predictions=3, outputs=60)])
    with pytest.raises(ExportError, match=r"predict different classes.*3 of 60 predictions differ on a star"):
        refuse(report)
    refuse(replace(report, precision="bf16"))  # one prediction in twenty may differ
    refuse(Report(1e-3, [replace(CHECK, predictions=3, outputs=5_000)]))


def test_a_changed_head_is_found(described_run: Path, described_bundle: Path, tmp_path: Path) -> None:
    """The states are equal, but the scores differ."""
    bundle = change_model(described_bundle, tmp_path / "bundle", "head", _negate_scores)
    opened = load(bundle, "onnxruntime-cpu", allow_unknown_model=True)
    report = compare(load_run(described_run).model, opened, {"g": random_graph(20, 50)}, (5,))
    (check,) = report.checks
    assert check.drift[5] < 1e-4 < report.tolerance < check.relative
    assert check.predictions > 0
    assert len(report.problems()) == 2


def _negate_scores(model) -> None:
    for node in model.graph.node:
        node.output[:] = ["right" if name == "scores" else name for name in node.output]
    model.graph.node.add(op_type="Neg", input=["right"], output=["scores"])


def test_a_nan_in_any_state_is_a_disagreement() -> None:
    """Python's max(0.0, nan) is 0.0."""
    state = State(*(torch.ones(2, 3) for _ in range(4)))
    for name in State._fields:
        got = {part: np.ones((2, 3), np.float32) for part in State._fields}
        got[name][1, 1] = np.nan
        absolute, relative = _distance(state, got)
        assert np.isnan(absolute)
        assert np.isnan(relative)
    report = Report(1e-3, [CHECK, replace(CHECK, relative=float("nan")), CHECK])
    assert np.isnan(report.needed)
    with pytest.raises(ExportError, match=r"largest difference nan.*nan on a star"):
        refuse(report)


def test_a_changed_weight_is_found(described_run: Path, described_bundle: Path) -> None:
    model = load_run(described_run).model
    with torch.no_grad():
        model.cell.target_abstraction.value.linear.bias.add_(0.05)
    graphs = {"a graph": random_graph(20, 50)}
    report = compare(model, load(described_bundle, "onnxruntime-cpu"), graphs, (1, 5))
    assert len(report.problems()) == 2
    assert report.needed > report.tolerance


def test_a_graph_that_does_not_fit_is_refused(described_run: Path, described_bundle: Path) -> None:
    model, bundle = load_run(described_run).model, load(described_bundle, "onnxruntime-cpu")
    with pytest.raises(GraphError, match="9 features"):
        compare(model, bundle, {"wide": random_graph(20, 50, features=9)}, (1,))


@pytest.mark.parametrize("kind", ["edge", "graph"])
def test_a_graph_of_another_level_is_compared_as_the_bundle_reads_it(
    run_folder: Path, bundle_folder: Path, board: Graph, kind: str
) -> None:
    """A graph without labels has the level "node": models of whole graphs seemed to differ from PyTorch."""
    bare = replace(board, labels=None, train_mask=None, val_mask=None, test_mask=None, class_names=None)
    other = {
        "edge": {"pairs": [[0, 1], [2, 3]], "labels": [0, 1]},
        "graph": {"level": "graph", "labels": [1]},
    }
    report = compare(
        load_run(run_folder).model, load(bundle_folder), {kind: replace(bare, **other[kind])}, [1]
    )
    assert report.problems() == []
    assert [(check.outputs, check.metric) for check in report.checks] == [(board.nodes, None)]


def test_the_error_lists_every_wrong_name_and_shape(described_bundle: Path, tmp_path: Path) -> None:
    """Not only those of the first model with an error."""
    bundle = change_model(described_bundle, tmp_path / "bundle", "head", _rename("scores", "marks"))
    bundle = change_model(bundle, bundle, "encoder", _rename("features", "x"))
    edit(bundle, lambda m: m["graphs"]["cell"]["inputs"][0].update(shape=["n", 99]))
    with pytest.raises(ExportError) as error:
        check_ports(bundle)
    for part in ("marks", "features", "nodes float32[n, 99]", "encoder.onnx", "cell.onnx", "head.onnx"):
        assert part in str(error.value)
    check_ports(described_bundle)


def _rename(old: str, new: str):
    def change(model) -> None:
        for value in [*model.graph.input, *model.graph.output]:
            value.name = new if value.name == old else value.name
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]

    return change


@pytest.mark.parametrize("level", ["node", "edge", "graph"])
def test_a_part_of_a_graph_is_a_valid_graph(level: str) -> None:
    whole = random_graph(3_000, 9_000, level=level)
    part = part_of(whole, 100)
    assert part.nodes == 100
    assert part.level == level
    assert part.outputs == {"node": 100, "edge": part.outputs, "graph": 1}[level] > 0
    assert part.labels is not None
    assert len(part.labels) == part.outputs
    assert part_of(part, 100) is part


def test_a_part_keeps_edges_features_and_labels_together() -> None:
    nodes = np.arange(500)
    ring = np.stack([nodes, (nodes + 1) % 500])
    whole = Graph(nodes[:, None].astype(np.float32), ring, labels=nodes, train_mask=nodes % 2 == 0)
    part = part_of(whole, 50)
    numbers = part.features[:, 0].astype(int)
    assert np.array_equal(part.labels, numbers)
    assert np.array_equal(part.train_mask[0], numbers % 2 == 0)
    source, target = numbers[part.edge_index]
    assert np.array_equal(target, (source + 1) % 500)
    assert part.edges == 49  # one connected piece: the search goes both ways along the ring


def test_a_part_of_sparse_features_stays_sparse() -> None:
    rows = SparseRows(np.arange(301), np.arange(300), np.arange(300) + 1.0, (300, 300))
    part = part_of(Graph(rows, np.zeros((2, 0), np.int64)), 40)
    assert isinstance(part.features, SparseRows)
    assert np.array_equal(part.rows(0, 40), np.diag(np.arange(300) + 1.0)[:40])


@pytest.mark.parametrize("level", ["node", "edge", "graph"])
@pytest.mark.parametrize("targets", [3, None])
def test_sample_graphs_fit_every_kind_of_model(level: str, targets: int | None) -> None:
    for graph in shapes_for(ModelConfig(5, targets, level=level)).values():
        assert (graph.width, graph.level) == (5, level)
        assert (graph.target_features is None) == (targets is not None)
