"""Fixtures that many tests share: a graph, trained runs, and the bundles exported from them."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from adar_export import export_bundle
from adar_runtime import Graph
from adar_runtime.backends.tensorrt import backend as tensorrt
from adar_runtime.graph import GRAPH
from adar_runtime.graph.synthetic import minesweeper
from adar_train import Fitted, ModelConfig, TrainConfig, fit, load_run, save_run
from adar_train.untrained import trial_run
from tests.bundles import forget_proof
from tests.helpers import awake, random_graph


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGINT even if a shell started pytest in the background and made it ignore SIGINT.

    Engines and other state of the tests go to a temporary folder, not to the user's.
    """
    state = TemporaryDirectory(prefix="adar-state-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from looking through what is imported: modules, classes and tests stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU, skip every test that needs one, with the reason."""
    problem = tensorrt.TensorRtBackend.problem()
    for item in items:
        if problem is not None and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"no TensorRT on a GPU: {problem}"))


@pytest.fixture(scope="session")
def board() -> Graph:
    return minesweeper(side=12)


@pytest.fixture(scope="session")
def run_folder(board: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with learned targets, trained for 3 epochs."""
    path = tmp_path_factory.mktemp("runs") / "board"
    training = TrainConfig(epochs=3, train_steps=3, select_budgets=(3,), exit_budgets=(3, 5))
    fitted = fit([board], ModelConfig(board.width, 2, hidden=16, proxies=4), training)
    save_run(path, fitted, board, ["board"], training)
    return path


@pytest.fixture(scope="session")
def bundle_folder(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without a proven solver: "auto", the default, is Euler's method."""
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    export_bundle(load_run(run_folder), path)
    forget_proof(path)
    return path


@pytest.fixture(scope="session")
def described_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with described targets: it takes any number of classes."""
    path = tmp_path_factory.mktemp("runs") / "described"
    graph = random_graph(40, 120)
    model = awake(ModelConfig(graph.width, None, hidden=16, proxies=4))
    save_run(path, Fitted(model, {"metric": "accuracy", "split": 0}, []), graph, ["random"], TrainConfig())
    return path


@pytest.fixture(scope="session")
def described_bundle(described_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle without a proven solver: "auto", the default, is Euler's method."""
    path = tmp_path_factory.mktemp("bundles") / "described"
    export_bundle(load_run(described_run), path)
    forget_proof(path)
    return path


@pytest.fixture(scope="session")
def graph_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that predicts two classes for whole graphs with three features. It is not trained."""
    path = tmp_path_factory.mktemp("graph-level")
    graph = Graph(np.zeros((4, 3), np.float32), np.zeros((2, 0), np.int64), labels=[0], level=GRAPH)
    config = ModelConfig(3, 2, hidden=16, proxies=4, level=GRAPH)
    export_bundle(trial_run(path / "run", graph, config), path / "bundle", steps=(1,))
    forget_proof(path / "bundle")
    return path / "bundle"


@pytest.fixture
def many_graphs(tmp_path: Path) -> Path:
    """A file of ten graphs with 2 to 11 nodes and three features."""
    random, sizes = np.random.default_rng(4), np.arange(2, 12)
    edges = [random.integers(0, size, (2, 3 * size)) for size in sizes]
    path = tmp_path / "many.npz"
    np.savez(
        path,
        node_ptr=np.append(0, np.cumsum(sizes)),
        edge_ptr=np.append(0, np.cumsum(3 * sizes)),
        edge_index=np.concatenate(edges, axis=1),
        x=random.standard_normal((sizes.sum(), 3)).astype(np.float32),
        y=np.arange(10) % 2,
    )
    return path
