import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import adar_runtime
from adar_export import export_bundle
from adar_runtime import AdamsBashforth2, Adaptive, AtTime, Final, Graph, Peak, StopReason
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import BackendError, BundleError, DivergedError, GraphError, UsageError
from adar_runtime.loop.schedule import times
from adar_runtime.loop.stopping import Observation, Verdict
from adar_train import Fitted, GraphTensors, ModelConfig, TrainConfig, load_run, save_run
from adar_train.alignments import ALIGNMENTS
from tests.bundles import change_model, edit
from tests.helpers import awake, random_graph


def test_a_result_has_the_names_of_its_classes(
    bundle_folder: Path, described_bundle: Path, board: Graph
) -> None:
    """The model's own, whatever the graph calls its classes, unless the graph describes them."""
    learned, described = map(adar_runtime.load, (bundle_folder, described_bundle))
    assert learned.run(replace(board, class_names=("a", "b")), 1).class_names == ("safe", "mine")
    graph = random_graph(9, 9)
    assert described.run(graph, 1).class_names is None
    assert described.run(replace(graph, class_names=("x", "y")), 1).class_names == ("x", "y", "2")


def test_the_model_says_what_is_answered(bundle_folder: Path, board: Graph) -> None:
    """A graph whose own labels are of pairs or of the whole is answered for its nodes by a model of nodes."""
    bundle = adar_runtime.load(bundle_folder)
    others = [
        Graph(board.features, board.edge_index, level="graph"),
        Graph(board.features, board.edge_index, pairs=np.zeros((2, 5), np.int64)),
    ]
    for graph in others:
        assert np.array_equal(bundle.run(graph, 2).scores, bundle.run(board, 2).scores)


def test_a_run_says_how_it_went(bundle_folder: Path, board: Graph) -> None:
    result = adar_runtime.load(bundle_folder).run(board, budget=20, stop=Final())
    assert result.scores.shape == (board.nodes, 2)
    assert result.steps == result.cell_calls == result.best_step == 20
    assert len(result.alignment) == 21
    assert result.stop_reason is StopReason.BUDGET
    assert result.backend.startswith("onnxruntime-")
    assert np.allclose(result.probabilities.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(result.predictions, result.probabilities.argmax(axis=1))


class KeepStep:
    """Answers from one given step, whatever comes after."""

    def __init__(self, step: int) -> None:
        self.step = step

    def end(self, budget: int) -> float:
        return 1.0

    def watch(self, observed: Observation) -> Verdict:
        chosen = round(observed.time * observed.budget) == self.step
        return Verdict(chosen, StopReason.BUDGET if observed.last else None)


def test_a_kept_state_is_not_overwritten(bundle_folder: Path, board: Graph) -> None:
    bundle = adar_runtime.load(bundle_folder)
    for kept in (0, 1, 2, 6):
        result = bundle.run(board, budget=12, stop=KeepStep(kept))
        loop = bundle.loop(board, budget=12, stop=Final())
        steps = iter(loop)
        for _ in range(kept + 1):
            next(steps)
        by_hand = loop.result()
        assert result.best_step == by_hand.best_step == kept
        assert np.array_equal(result.scores, by_hand.scores)
        assert by_hand.stop_reason is StopReason.CANCELLED


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_the_alignment_is_the_one_that_the_bundle_names(alignment: str, tmp_path: Path) -> None:
    graph = random_graph(30, 90)
    model = awake(ModelConfig(graph.width, None, 16, 4, alignment=alignment))
    save_run(tmp_path / "run", Fitted(model, {"metric": "accuracy"}, []), graph, ["random"], TrainConfig())
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle")
    bundle = adar_runtime.load(tmp_path / "bundle")
    assert bundle.manifest.alignment == alignment
    with torch.no_grad():
        states = list(model.trajectory(GraphTensors.of(graph), times(5)))
    for step, state in zip(bundle.loop(graph, budget=5, stop=Final()), states, strict=True):
        assert step.alignment == pytest.approx(float(model.alignment(state)), rel=1e-4, abs=1e-5)


def ode(convergence: object) -> Callable[[dict], object]:
    return lambda m: m.update(convergence=convergence)


@pytest.mark.parametrize("order", [0.3, float("inf"), float("nan"), None, True, "1", [], {}])
@pytest.mark.parametrize("name", ["ab2", "adaptive"])
def test_a_cell_that_is_not_like_an_ode_is_run_with_euler(
    copy: Path, board: Graph, name: str, order: object
) -> None:
    edit(copy, ode({"order": order, "calls": {"ab2": 8}}))
    bundle = adar_runtime.load(copy)
    with pytest.raises(UsageError, match="use the solver euler"):
        bundle.run(board, 10, solver=name)
    assert bundle.run(board, 2, Final(), "euler").steps == 2


@pytest.mark.parametrize(
    "calls", [None, [], "x", {}, {"ab2": 0}, {"ab2": True}, {"ab2": 1.5}, {"ab2": 10**200}, {"ab2": {}}]
)
def test_calls_that_cannot_be_are_not_believed(copy: Path, calls: object) -> None:
    edit(copy, ode({"order": 1, "calls": calls}))
    bundle = adar_runtime.load(copy)
    with pytest.raises(UsageError, match="no measured settings"):
        bundle.solver("ab2")
    assert bundle.solver("ab2", calls=9) == AdamsBashforth2(9)


TRIAL = {"solver": "adaptive", "calls": 34, "tolerance": 5e-4}


@pytest.mark.parametrize(
    "trials",
    [None, {}, [], [7], [TRIAL | {"calls": 24}], [TRIAL | {"tolerance": "x"}], [TRIAL | {"tolerance": 2.0}]],
)
def test_the_tolerance_is_the_one_that_was_measured_to_be_enough(copy: Path, trials: object) -> None:
    edit(copy, ode({"order": 1, "calls": {"adaptive": 34}, "trials": [TRIAL]}))
    assert adar_runtime.load(copy).solver("adaptive") == Adaptive(5e-4)
    edit(copy, ode({"order": 1, "calls": {"adaptive": 34}, "trials": trials}))
    with pytest.raises(UsageError, match="no measured settings"):
        adar_runtime.load(copy).solver("adaptive")


def test_as_many_calls_as_were_measured_to_be_enough(copy: Path) -> None:
    edit(copy, ode({"order": 1.02, "calls": {"ab2": 19}}))
    bundle = adar_runtime.load(copy)
    assert bundle.solver("ab2") == AdamsBashforth2(19)
    assert bundle.solver("ab2", calls=7) == AdamsBashforth2(7)
    assert bundle.solver("adaptive", tolerance=0.01) == Adaptive(0.01)


def test_a_peak_rule_knows_the_calibrated_time(copy: Path) -> None:
    edit(copy, lambda m: m["training"].update(exit_time=0.75) or m.update(exit={"rule": "final"}))
    assert adar_runtime.load(copy).stop_rule("peak", patience=3) == Peak(patience=3, fallback=0.75)
    assert adar_runtime.load(copy).stop_rule("time") == AtTime(0.75)
    for wrong in (None, "late", float("nan"), -1, True, []):
        edit(copy, lambda m, wrong=wrong: m["training"].update(exit_time=wrong))
        assert adar_runtime.load(copy).stop_rule("peak") == Peak()


@pytest.mark.parametrize("nodes", [2, 500, 50_000])
@pytest.mark.parametrize("classes", [2, 60])
def test_one_bundle_serves_any_graph_and_number_of_classes(
    described_bundle: Path, nodes: int, classes: int
) -> None:
    graph = random_graph(nodes, 4 * nodes, classes=classes)
    result = adar_runtime.load(described_bundle).run(graph, budget=2)
    assert result.scores.shape == (nodes, classes)
    assert np.isfinite(result.scores).all()


def test_sparse_features_give_what_dense_ones_do(described_bundle: Path) -> None:
    dense = random_graph(50, 100)
    x = np.where(dense.features > 0.5, dense.features, 0)
    rows, columns = np.nonzero(x)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=50))])
    sparse = adar_runtime.SparseRows(starts, columns, x[rows, columns], x.shape)
    graphs = [Graph(f, dense.edge_index, target_features=dense.target_features) for f in (x, sparse)]
    bundle = adar_runtime.load(described_bundle)
    assert np.array_equal(*(bundle.run(graph, 3).scores for graph in graphs))


def test_a_graph_that_does_not_fit(bundle_folder: Path, described_bundle: Path, board: Graph) -> None:
    with pytest.raises(GraphError, match="6 features and the bundle takes 10"):
        adar_runtime.load(bundle_folder).run(random_graph(5, 5))
    bare = Graph(np.ones((3, 6)), np.zeros((2, 0), np.int64))
    with pytest.raises(GraphError, match="no target_x"):
        adar_runtime.load(described_bundle).run(bare)
    with pytest.raises(UsageError, match="at least 1"):
        adar_runtime.load(bundle_folder).run(board, budget=0)


def test_a_state_that_is_not_finite_is_an_error(described_bundle: Path) -> None:
    graph = random_graph(5, 5)
    wild = Graph(np.full_like(graph.features, 3e38), graph.edge_index, target_features=graph.target_features)
    with pytest.raises(DivergedError, match="cell call 0"):
        adar_runtime.load(described_bundle).run(wild)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("schema"), "no 'schema'"),
        (lambda m: m.update(schema=99), "schema 99"),
        (lambda m: m.update(hidden="64"), "'hidden' as str"),
        (lambda m: m.update(hidden=True), "'hidden' as bool"),
        (lambda m: m.update(proxies=-1), "positive"),
        (lambda m: m["graphs"].pop("cell"), "no 'cell'"),
        (lambda m: m["graphs"]["cell"].update(file="../cell.onnx"), "outside the bundle"),
        (lambda m: m["graphs"]["cell"].update(file="/etc/passwd"), "outside the bundle"),
        (lambda m: m["graphs"]["cell"].update(file="other.onnx"), "no such file"),
        (lambda m: m["graphs"]["cell"].update(sha256="0" * 64), "changed after it was exported"),
        (lambda m: m["graphs"]["cell"].update(bytes=1), "where the manifest says 1"),
        (lambda m: m["graphs"]["cell"].update(inputs=[{}]), "no 'name'"),
    ],
)
def test_a_manifest_that_lies_is_refused(copy: Path, change: Callable[[dict], object], message: str) -> None:
    edit(copy, change)
    with pytest.raises(BundleError) as error:
        adar_runtime.load(copy)
    assert message in str(error.value)


def test_an_exit_time_that_was_touched_is_seen(copy: Path) -> None:
    edit(copy, lambda m: m.update(exit={"rule": "time", "t": 0.5}))
    assert adar_runtime.load(copy).manifest.exit["t"] == 0.5
    edit(copy, lambda m: m["exit"].update(t=0.75), seal=False)
    with pytest.raises(
        BundleError, match=r"manifest\.json was changed after it was exported: .* copy the bundle"
    ):
        adar_runtime.load(copy)


def test_how_a_manifest_is_laid_out_is_not_sealed(copy: Path) -> None:
    file = copy / "manifest.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps(dict(reversed(fields.items())), indent=7, ensure_ascii=False), newline="\r\n")
    assert adar_runtime.load(copy).manifest.to_dict() == fields


def test_steps_that_are_keys_are_sealed_as_the_text_that_they_become(bundle_folder: Path) -> None:
    manifest = replace(read_manifest(bundle_folder), parity={"drift": {2: 0.1, 10: 0.2}})
    assert Manifest.from_json(manifest.to_json()).parity == {"drift": {"2": 0.1, "10": 0.2}}


def test_a_manifest_without_a_checksum_is_of_an_older_export(copy: Path, bundle_folder: Path) -> None:
    edit(copy, lambda m: m.pop("checksum"), seal=False)
    older = adar_runtime.load(copy).manifest
    assert older == replace(read_manifest(bundle_folder), sealed=False)
    assert older.to_dict() == json.loads((copy / "manifest.json").read_text())


def test_folders_that_are_no_bundle(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(BundleError, match="adar-deploy export"):
        adar_runtime.load(tmp_path)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="not JSON"):
        adar_runtime.load(copy)


def test_a_changed_graph_is_refused(copy: Path) -> None:
    content = bytearray((copy / "cell.onnx").read_bytes())
    content[-100] ^= 1
    (copy / "cell.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="changed after"):
        adar_runtime.load(copy)


def external_data(model: onnx.ModelProto) -> None:
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")


def custom_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Evil", ["nodes"], ["evil"], domain="com.evil"))


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Unheard"


def function(model: onnx.ModelProto) -> None:
    model.functions.add(name="Own", domain="own")


def nested_external_data(model: onnx.ModelProto) -> None:
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    external_data(inner)
    branch = helper.make_node("If", ["nodes"], ["x"], then_branch=inner.graph, else_branch=inner.graph)
    model.graph.node.append(branch)


def constant_external_data(model: onnx.ModelProto) -> None:
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    external_data(inner)
    model.graph.node.append(helper.make_node("Constant", [], ["x"], value=inner.graph.initializer[0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (external_data, "another file"),
        (nested_external_data, "a nested graph"),
        (constant_external_data, "another file"),
        (custom_operator, "com.evil"),
        (function, "custom operators"),
        (unknown_operator, "not a model that this version of adar-deploy exports"),
    ],
)
def test_onnx_that_is_more_than_a_plain_graph_is_refused(copy: Path, change, message: str) -> None:
    """Even where the manifest vouches for it: a stranger writes both."""
    change_model(copy, copy, "cell", change)
    with pytest.raises((BundleError, BackendError)) as error:
        adar_runtime.load(copy)
    assert message in str(error.value)


def test_a_link_in_place_of_a_graph_is_refused(copy: Path, bundle_folder: Path) -> None:
    (copy / "cell.onnx").unlink()
    (copy / "cell.onnx").symlink_to(bundle_folder / "cell.onnx")
    with pytest.raises(BundleError, match="is a link"):
        adar_runtime.load(copy)


@pytest.mark.parametrize("given", [5, None, ["bundle"], b"bundle"])
def test_load_takes_a_path(given: object) -> None:
    with pytest.raises(UsageError, match=r"named by a path, not by \w+: give its folder"):
        adar_runtime.load(given)
