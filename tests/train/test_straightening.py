"""Straightening: few calls of ab2 give the result of many, at no loss of accuracy, or nothing changes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adar_export import export_bundle
from adar_runtime import AdamsBashforth2, Final, load
from adar_runtime.errors import RunFolderError, UsageError
from adar_runtime.evaluation.training_data import KEY
from adar_train import Fitted, GraphTensors, ModelConfig, Run, TrainConfig, load_run, save_run, straightening
from adar_train.data.splits import with_split
from adar_train.straightening import solve, straighten
from tests.helpers import awake, random_graph

TRAINING = TrainConfig(epochs=1, select_budgets=(8,), exit_budgets=(8, 20))


@pytest.fixture(scope="module")
def bent(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose model needs 20 calls. The labels are the model's own predictions."""
    graph = replace(random_graph(1200, 5000), target_features=None)
    model = awake(ModelConfig(graph.width, 3, hidden=16, proxies=4))
    with torch.no_grad():
        model.cell.velocity.out.weight.mul_(2)
        tensors = GraphTensors.of(graph)
        predictions = model.scores(solve(model, tensors, 64)[1], tensors).argmax(dim=1).numpy()
    graph = with_split(replace(graph, labels=predictions))
    folder = tmp_path_factory.mktemp("runs") / "bent"
    metrics = {"metric": "accuracy", "val": 1.0, "epochs": 50, "split": 0}
    save_run(folder, Fitted(model, metrics, [{"epoch": 1, "loss": 1.0}]), graph, ["random"], TRAINING)
    return load_run(folder)


def weights_of(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in model.parameters()])


def proven_calls(run: Run, folder: Path) -> int:
    proof = export_bundle(run, folder, steps=(1,)).convergence["proof"]
    return int(proof["calls"])


def test_solve_is_the_solver_of_the_runtime(bent: Run, tmp_path: Path) -> None:
    export_bundle(bent, tmp_path / "bundle", steps=(1,))
    graph = bent.graph()
    expected = load(tmp_path / "bundle", "onnxruntime-cpu", threads=1).run(
        graph, 300, stop=Final(), solver=AdamsBashforth2(7)
    )
    tensors = GraphTensors.of(graph)
    found = bent.model.scores(solve(bent.model, tensors, 7)[1], tensors)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.numpy(), expected.scores, rtol=1e-3, atol=1e-3)


def test_a_straightened_run_needs_fewer_calls(
    bent: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straightening, "MOST_LOST", 0.02)
    checks: list[straightening.Check] = []
    done = straighten(bent, 40, checks.append)
    assert done.kept is None
    assert done.before.calls == checks[0].calls == 20
    assert done.after.calls == min(check.calls for check in checks) < 20
    assert done.fitted.metrics["val"] >= 0.98
    assert done.fitted.metrics["straightened"]["calls"] == done.after.calls
    save_run(tmp_path / "straight", done.fitted, bent.graph(), ["random"], TRAINING)
    proven = proven_calls(load_run(tmp_path / "straight"), tmp_path / "after")
    assert proven < proven_calls(bent, tmp_path / "before")


def test_more_calls_than_the_reference_are_shown_as_such() -> None:
    """The reference has 64 calls, so the check cannot say how many more a model needs."""
    shown = [straightening.Check(0, calls, 0.9).shown_calls for calls in (10, 48, straightening.MANY)]
    assert shown == ["10", "48", "64 or more"]


def test_weights_that_lose_accuracy_are_not_kept(bent: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straightening, "MOST_LOST", -0.5)
    done = straighten(bent, 12)
    assert done.kept is not None
    assert "no weights with fewer calls" in done.kept
    assert done.after == done.before
    assert done.fitted.metrics == bent.metrics
    assert torch.equal(weights_of(done.fitted.model), weights_of(bent.model))


def test_the_exit_is_checked_too(bent: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose metric at the exit was better than that at t = 1 cannot be reached."""
    monkeypatch.setattr(straightening, "MOST_LOST", 0.02)
    better = replace(bent, metrics=bent.metrics | {"val": 1.5})
    done = straighten(better, 12)
    assert done.kept is not None
    assert "validation at the exit would fall by" in done.kept
    assert torch.equal(weights_of(done.fitted.model), weights_of(bent.model))


def test_a_run_with_few_calls_is_not_changed(run_folder: Path) -> None:
    run = load_run(run_folder)
    done = straighten(run, 10)
    assert done.kept == f"{done.before.calls} calls are enough already"
    assert torch.equal(weights_of(done.fitted.model), weights_of(run.model))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": None}, "learned classes"),
        ({"regression": True}, "learned classes"),
        ({"unit_step": True}, "total-time"),
        ({"level": "graph"}, "several graphs"),
    ],
)
def test_other_models_are_refused(bent: Run, settings: dict[str, object], message: str) -> None:
    config = replace(bent.model.config, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        straighten(replace(bent, model=awake(config)), 1)


@pytest.mark.parametrize("found", [{"data": ["one", "two"]}, {KEY: {"graphs": [{}, {}]}}])
def test_a_run_of_several_graphs_is_refused(bent: Run, found: dict[str, Any]) -> None:
    """The graphs come from several files, or from one."""
    several = replace(bent, config=bent.config | found)
    with pytest.raises(UsageError, match="several graphs"):
        straighten(several, 1)


def test_a_run_without_validation_is_refused(bent: Run) -> None:
    with pytest.raises(UsageError, match="no validation metric"):
        straighten(replace(bent, metrics={"metric": "accuracy"}), 1)


@pytest.mark.parametrize("damage", ["labels", "metric"])
def test_a_changed_run_without_validation_is_refused(
    bent: Run, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's run may have a metric, and a graph without the labels for it."""
    graph = bent.graph()
    unlabelled = replace(graph, labels=np.full(graph.nodes, -1))
    monkeypatch.setattr(Run, "graph", lambda _: unlabelled if damage == "labels" else graph)
    metrics = bent.metrics | ({"val": "high"} if damage == "metric" else {})
    with pytest.raises(UsageError, match="no validation metric"):
        straighten(replace(bent, metrics=metrics), 1)


@pytest.mark.parametrize("history", [{}, [{"epoch": [], "loss": 1.0}], [{"epoch": 1}]])
def test_a_history_that_is_no_list_of_epochs(bent: Run, tmp_path: Path, history: object) -> None:
    run = shutil.copytree(bent.path, tmp_path / "run")
    (run / "history.json").write_text(json.dumps(history))
    with pytest.raises(RunFolderError, match="it is not a list of epochs"):
        straighten(replace(bent, path=run, config=bent.config | {"files": {}}), 1)


@pytest.mark.parametrize("split", ["0", -1, 0.5])
def test_a_split_that_is_no_number(bent: Run, split: object) -> None:
    config = bent.config | {"training": bent.config["training"] | {"split": split}}
    with pytest.raises(RunFolderError, match="has a split that is not a number"):
        straighten(replace(bent, config=config), 1)
