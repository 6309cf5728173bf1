"""The three ONNX models: equal to PyTorch for any sizes, exact opsets, known names, equal bytes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import OLDEST, check_opset, newest
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.errors import UsageError
from adar_runtime.graph.neighbour_tables import JOINS, LEAVES, Tables
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.loop.schedule import step_code
from adar_train import AdaR, GraphTensors, ModelConfig
from adar_train.initialisation import start
from tests.helpers import awake, random_graph


def run(proto: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def one_step(model: AdaR, graph, opset: int = 17) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """States and alignment after one step from t = 0.25 to 0.375: of PyTorch, and of the ONNX models."""
    with torch.no_grad():
        _, after = model.trajectory(GraphTensors.of(graph), [0.25, 0.375])
        expected = [*(part.numpy() for part in after), model.alignment(after).numpy()]
    onnx_models = build_onnx_models(model, opset)
    feeds = {"features": graph.features}
    if model.config.targets is None:
        feeds["target_features"] = graph.target_features
    neighbours = Neighbours.of(graph.edge_index, graph.nodes)
    states = dict(zip(STATE, run(onnx_models["encoder"], feeds), strict=True))
    structure = Tables.of(neighbours).arrays() | {"share": neighbours.share}
    before = {f"previous_{name}_velocity": np.zeros_like(state) for name, state in states.items()}
    numbers = {"weight": 0.125, "previous_weight": 0.0, "lead": 0.125}
    step = {name: np.array(value, np.float32) for name, value in numbers.items()}
    step |= {"step_code": step_code(0.25, model.config.hidden)}
    after = run(onnx_models["cell"], states | before | structure | step)
    names = [value.name for value in onnx_models["cell"].graph.output]
    got = dict(zip(names, after, strict=True))
    return expected, [*(got[f"next_{name}"] for name in STATE), got["alignment"]]


@settings(max_examples=25, deadline=None)
@given(
    nodes=st.integers(1, 30),
    edges=st.integers(0, 90),
    classes=st.integers(1, 9),
    hidden=st.integers(2, 12),
    proxies=st.integers(1, 7),
    learned=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_step_equals_the_training_cell(nodes, edges, classes, hidden, proxies, learned, seed) -> None:
    graph = random_graph(nodes, edges, classes=classes, seed=seed)
    model = awake(ModelConfig(graph.width, classes if learned else None, hidden, proxies), seed)
    for expected, got in zip(*one_step(model, graph), strict=True):
        assert np.abs(expected - got).max() <= 1e-5 * max(1, np.abs(expected).max())


@pytest.mark.parametrize("trained", [False, True])
def test_a_zero_shot_step_equals_the_training_cell(trained: bool) -> None:
    """With nonlinear parts that are zero, and with trained ones."""
    graph = random_graph(25, 60)
    config = ModelConfig(graph.width, None, 8, 4, variant="zero-shot", alignment="cosine-margin")
    torch.manual_seed(0)
    model = awake(config) if trained else AdaR(config).eval()
    start(model, [graph])
    with torch.no_grad():
        model.cell.parts.copy_(torch.tensor([0.3, -0.2, 1.1]))
        for weight in model.cell.message.parameters() if trained else ():
            weight.normal_(std=0.2)
    for expected, got in zip(*one_step(model, graph), strict=True):
        assert np.abs(expected - got).max() <= 1e-5 * max(1, np.abs(expected).max())
    operators = {node.op_type for node in build_onnx_models(model, 17)["cell"].graph.node}
    assert ("LayerNormalization" in operators) == trained  # zero layers are not exported


@pytest.mark.parametrize("opset", range(OLDEST, newest() + 1))
def test_every_opset_is_exactly_the_requested_one(opset: int) -> None:
    graph = random_graph(12, 30)
    model = awake(ModelConfig(graph.width, None, 8, 4))
    for proto in build_onnx_models(model, opset).values():
        onnx.checker.check_model(proto, full_check=True)
        assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", opset)]
    for expected, got in zip(*one_step(model, graph, opset), strict=True):
        assert np.allclose(expected, got, atol=1e-5)


@pytest.mark.parametrize("opset", [16, 0, -1, newest() + 1])
def test_an_unsupported_opset_is_refused_with_the_range(opset: int) -> None:
    with pytest.raises(UsageError, match=f"{OLDEST} to {newest()}"):
        check_opset(opset)


def test_names_and_dynamic_dimensions() -> None:
    onnx_models = build_onnx_models(awake(ModelConfig(6, None, 8, 4)), 17)
    sides = {
        value.name: [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim]
        for value in [*onnx_models["cell"].graph.input, *onnx_models["cell"].graph.output]
    }
    rows = {"nodes": "n", "targets": "c", "node_proxies": 4, "target_proxies": 4}
    names = ("{}", "previous_{}_velocity", "next_{}", "{}_velocity")
    states = {name.format(part): [side, 8] for name in names for part, side in rows.items()}
    tables = {
        f"{kind}_{i}": [f"{kind}_rows_{i}", f"{kind}_width_{i}"]
        for kind, count in (("leaf", LEAVES), ("join", JOINS))
        for i in range(count)
    }
    scalars: dict[str, list] = {name: [] for name in (*STEP, *SCALARS)}
    assert sides == states | tables | scalars | {
        "place": ["n"],
        "sample": ["s"],
        "share": ["n", 1],
        "step_code": [8],
    }


def test_two_exports_are_the_same_bytes() -> None:
    first, second = (build_onnx_models(awake(ModelConfig(6, 3, 8, 4)), 17) for _ in range(2))
    for name in first:
        assert first[name].SerializeToString(deterministic=True) == second[name].SerializeToString(
            deterministic=True
        )


@pytest.mark.parametrize(("nodes", "columns"), [(30, 384), (5, 128)])
def test_the_input_of_few_nodes_with_many_columns_equals_pytorch(nodes: int, columns: int) -> None:
    """Most directions then have no variance: rounding must not decide the first states of the targets."""
    graph = random_graph(nodes, 40, features=columns)
    model = AdaR(ModelConfig(columns, None, columns, 4, variant="zero-shot")).eval()
    start(model, [graph])
    tensors = GraphTensors.of(graph)
    with torch.no_grad():
        expected = model.encode(tensors.features, tensors.target_features)
    feeds = {"features": graph.features, "target_features": graph.target_features}
    session = ort.InferenceSession(build_onnx_models(model, 17)["encoder"].SerializeToString())
    for name, rows in zip(("nodes", "targets"), expected, strict=False):
        got = session.run([name], feeds)[0]
        assert np.abs(rows.numpy() - got).max() <= 1e-4 * np.abs(got).max(), name
