"""OpenVINO, the second executor of the same models: it agrees with ONNX Runtime at every level."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node

import adar_deploy
import adar_runtime
from adar_export.writer import open_unmeasured
from adar_runtime import Final, Graph, backends
from adar_runtime.backends import CPU, CUDA, OPENVINO
from adar_runtime.backends.openvino import OpenVinoBackend
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.errors import BackendError
from adar_runtime.selftest.graphs import selftest_graphs
from adar_runtime.selftest.packaged import unpack
from adar_train import AdaR, ModelConfig, TrainConfig
from adar_train.cell import ZERO_SHOT
from adar_train.fit import Fitted
from adar_train.runs import load_run, save_run
from tests.bundles import change_model
from tests.in_context_graphs import block_graph

pytestmark = pytest.mark.skipif(OpenVinoBackend.problem() is not None, reason="needs adar-deploy[openvino]")
STEPS = 10


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return unpack(tmp_path_factory.mktemp("bundles"))


@pytest.mark.parametrize(
    ("name", "error"),
    [("node fp32", 1e-5), ("edge fp32", 1e-5), ("graph fp32", 1e-5), ("node fp16", 1e-3), ("node bf16", 0.1)],
)
def test_two_executors_agree_over_ten_steps(packaged: dict[str, Path], name: str, error: float) -> None:
    """ONNX Runtime does not run bf16: the reference is the same model in fp32."""
    ours = adar_runtime.load(packaged[name], OPENVINO, threads=1)
    reference = adar_runtime.load(packaged[name.replace("bf16", "fp32")], CPU, threads=1)
    for graph_name, graph in selftest_graphs(ours.manifest, 300).items():
        one, other = (each.run(graph, STEPS, Final(), "euler") for each in (ours, reference))
        assert (one.backend, other.backend) == (OPENVINO, CPU)
        largest = np.abs(other.scores).max()
        assert np.abs(one.scores - other.scores).max() < error * largest, graph_name
        assert one.alignment == pytest.approx(other.alignment, rel=error, abs=error)


def test_features_in_blocks_give_the_same_state(packaged: dict[str, Path], monkeypatch) -> None:
    bundle = adar_runtime.load(packaged["node fp32"], OPENVINO)
    graph = selftest_graphs(bundle.manifest, 300)["large"]
    whole = bundle.loop(graph, 1).recurrence.state()
    monkeypatch.setattr(PreparedGraph, "feature_blocks", lambda _self: [(0, 128), (128, 256), (256, 300)])
    blocks = bundle.loop(graph, 1).recurrence.state()
    assert all(np.allclose(whole[name], blocks[name], atol=1e-6) for name in whole)


def test_auto_uses_it_for_bf16_only(bundle_folder: Path, packaged: dict[str, Path]) -> None:
    assert OPENVINO in backends.available()
    assert adar_runtime.load(bundle_folder).backend.name != OPENVINO
    if CUDA not in backends.available():  # which runs bf16 too
        assert adar_runtime.load(packaged["node bf16"]).backend.name == OPENVINO


def test_unknown_models_are_refused(copy: Path) -> None:
    """A parser of OpenVINO never sees a model that an exporter of adar-deploy did not write."""
    change_model(
        copy, copy, "cell", lambda model: model.graph.node.append(make_node("Relu", ["place"], ["new"]))
    )
    with pytest.raises(adar_runtime.AdarError, match="not a model that this version"):
        adar_runtime.load(copy, OPENVINO)
    with pytest.raises(BackendError, match="unknown models run on onnxruntime-cpu only"):
        adar_runtime.load(copy, OPENVINO, allow_unknown_model=True)


def test_a_model_that_openvino_cannot_read_is_one_line(bundle_folder: Path) -> None:
    manifest, models = read_bundle(bundle_folder)
    with pytest.raises(BackendError, match=r"^OpenVINO could not load the bundle: .*$"):
        backends.open_backend(OPENVINO, models | {"cell": b"<?xml version='1.0'?><net/>"}, manifest)


def test_its_import_loads_no_telemetry(packaged: dict[str, Path]) -> None:
    """The import of OpenVINO's converter sends an event. It can still be imported later."""
    code = (
        "import sys, adar_runtime; adar_runtime.load(sys.argv[1], 'openvino'); "
        "assert not any('telemetry' in name for name in sys.modules); "
        "assert 'openvino.tools.ovc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(packaged["node fp32"])], check=True)


def test_several_threads_share_a_bundle(packaged: dict[str, Path]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bundle = adar_runtime.load(packaged["node fp32"], OPENVINO, threads=1)
    graphs: list[Graph] = list(selftest_graphs(bundle.manifest, 60).values()) * 2
    alone = [bundle.run(graph, 5, Final()).scores for graph in graphs]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda graph: bundle.run(graph, 5, Final()).scores, graphs))
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_zero_shot_model_that_ignores_the_time_runs_on_it(tmp_path: Path) -> None:
    """OpenVINO leaves out the time, and the bundle was refused as one with other inputs."""
    graph = block_graph()
    config = ModelConfig(graph.width, None, hidden=graph.width, proxies=4, variant=ZERO_SHOT)
    fitted = Fitted(AdaR(config), {"metric": "accuracy", "split": 0}, [])  # its last layers are zero
    save_run(tmp_path / "run", fitted, graph, ["blocks"], TrainConfig())
    (tmp_path / "bundle").mkdir()
    reference = open_unmeasured(load_run(tmp_path / "run"), tmp_path / "bundle")
    bundle = adar_runtime.load(tmp_path / "bundle", OPENVINO, threads=1)
    one, other = (each.run(graph, STEPS, Final(), "euler") for each in (bundle, reference))
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


def test_the_pretrained_model_runs_on_it() -> None:
    """Its cell takes a number of the step that it does not use, and OpenVINO leaves such an input out."""
    graph = block_graph()
    ours, reference = (adar_deploy.pretrained(backend=name, threads=1) for name in (OPENVINO, CPU))
    one, other = (each.run(graph, STEPS) for each in (ours, reference))
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-3)
