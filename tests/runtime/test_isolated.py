"""Unknown models run in a child process: the same numbers, and a failure there leaves this process alive."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from adar_runtime import Final, Graph, load
from adar_runtime.backends.isolated import backend as isolated
from adar_runtime.backends.isolated.backend import IsolatedBackend, Limits
from adar_runtime.errors import BackendError
from tests.attacks.test_onnx_topology import HOSTILE
from tests.bundles import replace_model
from tests.helpers import random_graph

pytestmark = pytest.mark.skipif(IsolatedBackend.problem() is not None, reason="no limits on this platform")


def with_identity(folder: Path) -> None:
    """A cell that this version does not export, and that computes the same numbers."""
    model = onnx.load(folder / "cell.onnx")
    last = next(node for node in model.graph.node if node.output[0] == "alignment")
    last.output[0] = "real_alignment"
    model.graph.node.append(helper.make_node("Identity", ["real_alignment"], ["alignment"]))
    replace_model(folder, "cell", model.SerializeToString())


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@pytest.mark.parametrize("fixture", ["bundle_folder", "described_bundle"])
def test_the_same_numbers_as_in_this_process(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path, board: Graph
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    graph = board if fixture == "bundle_folder" else random_graph(40, 120)
    copy = shutil.copytree(folder, tmp_path / "bundle")
    with_identity(copy)
    expected = load(folder, "onnxruntime-cpu", threads=1).run(graph, 5)
    bundle = load(copy, threads=1, allow_unknown_model=True)
    assert isinstance(bundle.backend, IsolatedBackend)
    for _ in range(2):  # several graphs, one after another
        found = bundle.run(graph, 5)
        assert np.array_equal(found.scores, expected.scores)
        assert found.alignment == expected.alignment


def test_a_known_model_needs_no_child(bundle_folder: Path) -> None:
    bundle = load(bundle_folder, "onnxruntime-cpu", allow_unknown_model=True)
    assert not isinstance(bundle.backend, IsolatedBackend)


def test_another_backend_is_refused(copy: Path) -> None:
    with_identity(copy)
    with pytest.raises(BackendError, match="onnxruntime-cpu only"):
        load(copy, "onnxruntime-cuda", allow_unknown_model=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("constant folding", "stopped after 3 s|could not run"),
        ("4 GB", "could not run"),
        ("SIGFPE in Div", "SIGFPE"),
        ("SIGFPE in Mod", "SIGFPE"),
    ],
)
def test_a_hostile_cell_ends_in_one_line(
    copy: Path,
    board: Graph,
    name: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = onnx.load(copy / "cell.onnx")
    HOSTILE[name](model)
    replace_model(copy, "cell", model.SerializeToString())
    monkeypatch.setattr(isolated, "LIMITS", Limits(seconds=3))
    started = time.perf_counter()
    with pytest.raises(BackendError, match=message) as error:
        load(copy, threads=1, allow_unknown_model=True).run(board, 3, Final())
    assert time.perf_counter() - started < 20
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_after_a_failure_the_bundle_says_so(copy: Path, board: Graph) -> None:
    with_identity(copy)
    bundle = load(copy, threads=1, allow_unknown_model=True)
    assert isinstance(bundle.backend, IsolatedBackend)
    child = bundle.backend._child._process
    child.kill()
    with pytest.raises(BackendError, match="SIGKILL"):
        bundle.run(board, 3)
    with pytest.raises(BackendError, match="has ended: load the bundle again"):
        bundle.run(board, 3)


def test_the_limit_of_a_graph_holds_before_its_arrays_arrive() -> None:
    """The child still had the limit of the load, so large features ended it."""
    child = isolated.Child(Limits(memory=2**26))
    child.call({"call": "hold", "key": "small"}, {"x": np.zeros(1, np.float32)}, {})
    child.allowed = 2**29
    child.call({"call": "hold", "key": "large"}, {"x": np.zeros(2**26, np.float32)}, {})


def test_no_process_is_left(copy: Path, board: Graph) -> None:
    with_identity(copy)
    bundle = load(copy, threads=1, allow_unknown_model=True)
    assert isinstance(bundle.backend, IsolatedBackend)
    pid = bundle.backend._child._process.pid
    bundle.run(board, 3)
    del bundle
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_output_of_another_shape(copy: Path, board: Graph) -> None:
    model = onnx.load(copy / "head.onnx")
    last = next(node for node in model.graph.node if node.output[0] == "scores")
    last.output[0] = "real_scores"
    model.graph.node.append(helper.make_node("Concat", ["real_scores"] * 2, ["scores"], axis=0))
    replace_model(copy, "head", model.SerializeToString())
    with pytest.raises(BackendError, match=r"scores of shape|could not run"):
        load(copy, threads=1, allow_unknown_model=True).run(board, 3)
