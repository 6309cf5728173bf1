"""`--plain`: PyTorch's ONNX exporter on the paper's formulas gives the same function.

PyTorch's exporter is slow, so these tests export as little as possible.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from adar_export import export_bundle
from adar_export.onnx_models import build_onnx_models
from adar_export.opsets import OLDEST, newest
from adar_export.plain_cell import export_plain_cell
from adar_runtime import Final, load
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import BundleError, UsageError
from adar_train import ModelConfig, load_run
from tests.export.cells import assert_close, by_onnxruntime, random_call
from tests.helpers import awake, random_graph


def test_the_plain_cell_has_the_requested_opset_and_gives_the_same_step() -> None:
    opset = newest()
    ours = awake(ModelConfig(6, 3, 8, 4, edge_weights=True))
    plain = export_plain_cell(ours, opset)
    assert [(entry.domain, entry.version) for entry in plain.opset_import] == [("", opset)]
    call = random_call(ours, random_graph(40, 120).edge_index, 40, 3, 0, (0.2, -0.1, 0.05))
    feeds = call.feeds(np.float32)
    names = {value.name for value in plain.graph.input}
    got = by_onnxruntime(plain, {k: v for k, v in (feeds | call.edges()).items() if k in names})
    assert_close(by_onnxruntime(build_onnx_models(ours, opset)["cell"], feeds), got, 1e-5)
    assert "ScatterElements" in {node.op_type for node in plain.graph.node}


def test_a_plain_bundle_gives_the_same_states(
    described_run: Path, described_bundle: Path, tmp_path: Path
) -> None:
    run, plain = load_run(described_run), tmp_path / "plain"
    export_bundle(run, plain, plain=True, steps=(1, 20))
    assert read_manifest(plain).aggregation == "edges"
    assert read_manifest(described_bundle).aggregation == "tables"
    with pytest.raises(BundleError, match="--allow-unknown-model"):
        load(plain)
    graph = random_graph(90, 500, classes=5, seed=3)
    ends = []
    for path in (plain, described_bundle):
        bundle = load(path, "onnxruntime-cpu", allow_unknown_model=path == plain)
        *_, last = bundle.loop(graph, budget=100, stop=Final(), solver="euler")
        ends.append(last.state())
    for name, state in ends[0].items():
        assert np.abs(state - ends[1][name]).max() <= 1e-4 * np.abs(state).max(), name
    content = (plain / "cell.onnx").read_bytes()
    _check_no_paths(content)
    assert [entry.version for entry in onnx.load_from_string(content).opset_import] == [OLDEST]
    assert export_plain_cell(run.model, OLDEST).SerializeToString(deterministic=True) == content


def _check_no_paths(content: bytes) -> None:
    """No paths of this machine: PyTorch records the source line of every operator."""
    here = [str(Path(__file__).parents[2]), sys.prefix, str(Path.home()), "site-packages", ".py"]
    assert not [path for path in here if path.encode() in content]
    for node in onnx.load_from_string(content).graph.node:
        assert not node.metadata_props
        assert not node.doc_string


def test_a_plain_export_has_no_other_precision(described_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plain export is always fp32"):
        export_bundle(load_run(described_run), tmp_path / "bundle", precision="fp16", plain=True)
    assert not (tmp_path / "bundle").exists()
