"""Values that are not finite: the error names the step, and an export with such weights fails."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from adar_export import export_bundle
from adar_export.writer import _ExportOptions, _write
from adar_runtime import Bundle, Final, Graph, load
from adar_runtime.errors import DivergedError, ExportError
from adar_runtime.evaluation.curves import run_moments
from adar_train import Fitted, TrainConfig, load_run, save_run
from tests.bundles import change_model


def scaled(graph: Graph, factor: float, rows: slice = slice(None)) -> Graph:
    features = graph.rows(0, graph.nodes).copy()
    features[rows] *= factor
    return Graph(features, graph.edge_index, target_features=graph.target_features)


@pytest.fixture(scope="module")
def half(described_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The described run as an fp16 bundle."""
    run, folder = load_run(described_run), tmp_path_factory.mktemp("half")
    _write(folder, run, run.model, run.graph(), _ExportOptions(17, "fp16", plain=False))
    return load(folder, "onnxruntime-cpu", threads=1)


def test_an_fp16_overflow_names_the_step_and_the_fix(half: Bundle, described_run: Path) -> None:
    graph = load_run(described_run).graph()
    assert half.run(graph, 5).steps > 0
    with pytest.raises(DivergedError, match=r"at t = 0.2 .cell call 1.: fp16 ends at 65,504.*--precision"):
        half.run(scaled(graph, 1e6), 5, Final())


@pytest.mark.parametrize("value", [np.float32(3e38)])
def test_one_node_of_thousands_that_overflows_is_found(described_bundle: Path, value: float) -> None:
    """The speed is measured on a sample of the nodes, which does not contain this node."""
    random = np.random.default_rng(0)
    features = random.normal(size=(5_000, 6)).astype(np.float32)
    features[1] = value
    graph = Graph(features, np.zeros((2, 0), int), target_features=features[2:5])
    with pytest.raises(DivergedError, match=r"at t = 0 .cell call 0."):
        load(described_bundle, "onnxruntime-cpu").run(graph, 5)


def test_a_state_that_overflows_later_names_the_step(described_bundle: Path, tmp_path: Path) -> None:
    """Nodes grow by a factor of 10⁷ with every step: finite after five steps, infinite after six."""

    def grow(model) -> None:
        for node in model.graph.node:
            node.output[:] = ["right" if name == "next_nodes" else name for name in node.output]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1e7, np.float32), "growth"))
        model.graph.node.add(op_type="Mul", input=["right", "growth"], output=["next_nodes"])

    changed = change_model(described_bundle, tmp_path / "b", "cell", grow)
    bundle = load(changed, "onnxruntime-cpu", allow_unknown_model=True)
    graph = Graph(np.ones((3, 6)), np.zeros((2, 0), int), target_features=np.eye(6)[:2])
    with pytest.raises(DivergedError, match=r"no longer finite at t = 0\.[2-4]5? \(cell call [5-9]\)"):
        bundle.run(graph, 20, Final())


def test_scores_that_overflow_are_refused(described_bundle: Path, tmp_path: Path) -> None:
    def overflow(model) -> None:
        for node in model.graph.node:
            node.output[:] = ["right" if name == "scores" else name for name in node.output]
        model.graph.node.add(op_type="Exp", input=["right"], output=["large"])
        model.graph.node.add(op_type="Exp", input=["large"], output=["larger"])
        model.graph.node.add(op_type="Exp", input=["larger"], output=["scores"])

    changed = change_model(described_bundle, tmp_path / "b", "head", overflow)
    bundle = load(changed, "onnxruntime-cpu", allow_unknown_model=True)
    graph = Graph(5 * np.ones((3, 6)), np.zeros((2, 0), int), target_features=5 * np.ones((2, 6)))
    with pytest.raises(DivergedError, match=r"the scores at t = 1 \(cell call 3\) are not finite"):
        bundle.run(graph, 3, Final())
    with pytest.raises(DivergedError, match=r"the scores at t = 0 \(cell call 0\) are not finite"):
        next(run_moments(bundle, graph, 3))  # for `evaluate`, which printed a metric


@pytest.mark.parametrize("factor", [1e20, float("nan")])
def test_weights_that_diverge_are_found_at_export(described_run: Path, tmp_path: Path, factor: float) -> None:
    run = load_run(described_run)
    with torch.no_grad():
        run.model.cell.velocity.out.weight.mul_(factor)
    wild = tmp_path / "wild"
    save_run(wild, Fitted(run.model, {"metric": "accuracy"}, []), run.graph(), ["random"], TrainConfig())
    with pytest.raises(ExportError, match=r"diverge .*cell call \d+.*smaller --lr"):
        export_bundle(load_run(wild), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
