"""The files of a bundle in a second executor: the reference evaluator of the `onnx` package, over 10 steps.

It takes the neighbour tables with fixed widths, as TensorRT does. ONNX Runtime takes tables chosen for the
graph.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from adar_export import export_bundle
from adar_export.bf16_emulation import opened
from adar_runtime import Final, Graph
from adar_runtime.bundle.signature import SCALARS, STATE
from adar_runtime.graph.neighbour_tables import FIXED
from adar_runtime.loop.schedule import step_code
from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
from tests.helpers import awake, random_graph

STEPS = 10
NAMES = ("encoder", "cell", "head")
TOLERANCES = {"fp32": 1e-5, "int8": 1e-5, "fp16": 2e-3, "bf16": 2e-2}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A hub among low degrees: its neighbours take rows of several tables."""
    plain = random_graph(120, 300)
    hub = np.stack([np.arange(120), np.zeros(120, np.int64)])
    edges = np.concatenate([plain.edge_index, hub], axis=1)
    return Graph(plain.features, edges, plain.labels, target_features=plain.target_features)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_a_second_executor_agrees_over_ten_steps(graph: Graph, precision: str, tmp_path: Path) -> None:
    model = awake(ModelConfig(graph.width, None, hidden=16, proxies=4))
    fitted = Fitted(model, {"metric": "accuracy", "split": 0}, [])
    save_run(tmp_path / "run", fitted, graph, ["random"], TrainConfig())
    opset = 19 if precision == "int8" else 17  # the evaluator has no older DequantizeLinear
    export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", opset, precision, steps=(1,))
    with opened(tmp_path / "bundle") as bundle:
        expected = bundle.run(graph, STEPS, Final())
        structure = bundle.prepare(graph).structure_with(FIXED)
    files = {name: ReferenceEvaluator(onnx.load(tmp_path / "bundle" / f"{name}.onnx")) for name in NAMES}
    features = {"features": np.asarray(graph.rows(0, graph.nodes)), "target_features": graph.target_features}
    state = dict(zip(STATE, files["encoder"].run(list(STATE), features), strict=True))
    velocity = {f"previous_{name}_velocity": np.zeros_like(array) for name, array in state.items()}
    alignment = []
    for step in range(STEPS):
        numbers = {"weight": 1 / STEPS, "previous_weight": 0.0, "lead": 1 / STEPS}
        inputs = {name: np.float32(number) for name, number in numbers.items()}
        inputs |= structure | state | velocity | {"step_code": step_code(step / STEPS, 16)}
        wanted = [f"next_{name}" for name in STATE] + [f"{name}_velocity" for name in STATE] + list(SCALARS)
        outputs = dict(zip(wanted, files["cell"].run(wanted, inputs), strict=True))
        state = {name: outputs[f"next_{name}"] for name in STATE}
        velocity = {f"previous_{name}_velocity": outputs[f"{name}_velocity"] for name in STATE}
        alignment.append(float(outputs["alignment"]))
    (scores,) = files["head"].run(["scores"], {name: state[name] for name in ("nodes", "targets")})
    tolerance = TOLERANCES[precision]
    scale = np.abs(expected.scores).max()
    assert np.abs(scores - expected.scores).max() <= tolerance * scale
    assert np.allclose(alignment, expected.alignment[1:], rtol=tolerance, atol=tolerance)
