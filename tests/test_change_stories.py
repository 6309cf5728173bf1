"""The change stories of CONTRIBUTING: toys that are added through the registries, as a new part would be."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor
from typer.testing import CliRunner, Result

from adar_export import export_bundle, standard_emitters
from adar_export.cell_ops import CellOps
from adar_export.convergence import measure
from adar_export.emitters import EMITTERS
from adar_export.onnx_models import build_onnx_models
from adar_export.plain_cell import PLAIN, PlainVelocity
from adar_runtime import Bundle, Final, Graph, StopReason, load, write_graph
from adar_runtime.backends import BACKENDS, Settings
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import Ports, expected
from adar_runtime.loop.registry import setting
from adar_runtime.loop.solvers import SOLVERS, Attempt, Move, Moves, RegisteredSolver
from adar_runtime.loop.stopping import RULES, Observation, RegisteredRule, Verdict
from adar_train import Fitted, ModelConfig, TrainConfig, fit, load_run, save_run
from adar_train.cell import Velocity
from adar_train.variants import VARIANTS
from tests.bundles import edit
from tests.export.cells import assert_close, by_onnxruntime, by_plain_cell, by_training_cell, random_call
from tests.runtime.toys import Toy


@pytest.fixture
def copy(bundle_folder: Path, tmp_path: Path) -> Path:
    """The small bundle, for a test to change."""
    return shutil.copytree(bundle_folder, tmp_path / "bundle")


@dataclass(frozen=True)
class Leaps(RegisteredSolver):
    """Euler's method with a few long steps, which lead as far as they go."""

    leaps: int = setting(4, "Leaps from t = 0 to t = 1")

    def moves(self, start: float, end: float, h: float) -> Moves:
        size = (end - start) / self.leaps
        for leap in range(self.leaps):
            yield Move(start + leap * size, size, size, 0.0, size)

    @classmethod
    def attempts(cls, budget: int) -> Iterator[Attempt]:
        return (Attempt(budget, cls(leaps)) for leaps in (2, 3))

    @classmethod
    def measured_settings(cls, calls: int | None, trial: Mapping[str, Any]) -> dict[str, Any] | None:  # noqa: ARG003
        return None if calls is None else {"leaps": calls}


def test_a_new_solver(bundle_folder: Path, copy: Path, board: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOLVERS, "leaps", Leaps)
    edit(copy, lambda m: m.update(convergence={"order": 1.0, "calls": {"leaps": 5}}))
    bundle = load(copy, "onnxruntime-cpu")
    assert bundle.run(board, 100, Final(), "leaps").cell_calls == 5  # as the bundle was measured
    assert bundle.run(board, 100, Final(), bundle.solver("leaps", leaps=3)).cell_calls == 3
    found = measure(load(bundle_folder, "onnxruntime-cpu"), "board", board)  # what export does
    tried = [trial.settings for trial in found.trials if trial.solver == "leaps"]
    assert tried[0] == {"leaps": 2}


@dataclass
class AfterSteps(RegisteredRule):
    """Stop after a number of steps."""

    steps: int = setting(3, "Steps before stopping")

    def watch(self, observed: Observation) -> Verdict:
        done = observed.last or round(observed.time * observed.budget) >= self.steps
        return Verdict(keep=done, stop=StopReason.BUDGET if done else None)

    @classmethod
    def complete(cls, settings: Mapping[str, Any], exit_time: object) -> dict[str, Any]:  # noqa: ARG003
        return {"steps": 7} | dict(settings)  # as if calibration had found it


def test_a_new_stop_rule(copy: Path, board: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "after-steps", AfterSteps)
    bundle = load(copy, "onnxruntime-cpu")
    assert bundle.run(board, 20, bundle.stop_rule("after-steps")).steps == 7
    assert bundle.run(board, 20, bundle.stop_rule("after-steps", steps=2)).best_step == 2
    edit(copy, lambda m: m.update(exit={"rule": "after-steps", "steps": 4}))
    assert load(copy, "onnxruntime-cpu").run(board, 20).steps == 4  # as the manifest says


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call `adar-deploy run` as a new process would build it: from the registries as they are now."""

    def call(*words: object) -> Result:
        for name in ("options", "inference_options", "commands.run"):
            monkeypatch.delitem(sys.modules, f"adar_deploy.{name}", raising=False)
        app = typer.Typer()
        app.command()(importlib.import_module("adar_deploy.commands.run").run)
        return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})

    return call


def test_settings_become_options(
    copy: Path, board: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuilt: Callable[..., Result]
) -> None:
    write_graph(tmp_path / "board.npz", board)
    edit(copy, lambda m: m.update(convergence={"order": 1.0}))
    words = [tmp_path / "board.npz", "--bundle", copy, "--max-steps", 20, "--json"]
    assert "No such option: --leaps" in rebuilt(*words, "--leaps", 3).output
    monkeypatch.setitem(SOLVERS, "leaps", Leaps)
    monkeypatch.setitem(RULES, "after-steps", AfterSteps)
    text = " ".join(rebuilt("--help").output.split())
    assert "Leaps from t = 0 to t = 1 (--solver leaps)." in text
    assert "Steps before stopping (--exit after-steps). [default: (the bundle's, or 3)]" in text
    done = rebuilt(*words, "--exit", "final", "--solver", "leaps", "--leaps", 3)
    assert json.loads(done.output)["cell_calls"] == 3
    done = rebuilt(*words, "--exit", "after-steps", "--steps", 2)
    assert json.loads(done.output)["best_step"] == 2
    refused = rebuilt(*words, "--steps", 2)  # the bundle's own rule is another one
    assert str(refused.exception) == (
        "--steps is a setting of the stop rule after-steps: add --exit after-steps"
    )


class ToyBackend:
    """Runs no model at all: its state is one number."""

    name = "toy"

    def __init__(self, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> None:
        self._manifest = manifest

    @staticmethod
    def problem() -> str | None:
        return None

    @property
    def ports(self) -> Mapping[str, Ports]:
        return expected(self._manifest)

    def start(self, prepared: PreparedGraph) -> Toy:
        assert prepared.outputs == prepared.graph.nodes
        assert set(prepared.structure) >= {"leaf_0", "place", "share"}
        return Toy()


def test_a_new_backend(bundle_folder: Path, board: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "toy", f"{__name__}:ToyBackend")
    result = load(bundle_folder, "toy").run(board, 300, Final())
    assert result.backend == "toy"
    assert np.isclose(result.scores[0, 0], Toy.exact(1.0), atol=1e-2)


class TanhVelocity(Velocity):
    """The standard velocity, with every entry between -1 and 1."""

    def forward(self, projected: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:
        return super().forward(projected, relation, step, current).tanh()


def emit_tanh_velocity(
    ops: CellOps, name: str, current: str, projected: str, related: Callable[[], str]
) -> str:
    return ops.builder.op("Tanh", standard_emitters.velocity(ops, name, current, projected, related))


class PlainTanhVelocity(PlainVelocity):
    def forward(self, representation: Tensor, relation: Tensor, step: Tensor, current: Tensor) -> Tensor:
        return super().forward(representation, relation, step, current).tanh()


@pytest.fixture
def tanh_variant(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a variant that was added with one entry in each of three tables."""
    monkeypatch.setitem(VARIANTS, "tanh", replace(VARIANTS["standard"], velocity=TanhVelocity))
    monkeypatch.setitem(EMITTERS, TanhVelocity, emit_tanh_velocity)
    monkeypatch.setitem(PLAIN, TanhVelocity, PlainTanhVelocity)
    return "tanh"


@pytest.fixture
def tanh_fitted(tanh_variant: str, board: Graph) -> Fitted:
    """A model of the toy variant, trained for a few epochs at a high rate, so that velocities are large."""
    config = ModelConfig(board.width, 2, hidden=8, proxies=4, variant=tanh_variant)
    short = TrainConfig(epochs=5, lr=0.1, train_steps=3, select_budgets=(3,), exit_budgets=(3,))
    return fit([board], config, short)


def test_a_new_cell_variant_equals_its_training_cell(tanh_fitted: Fitted, board: Graph) -> None:
    model = tanh_fitted.model.double().eval()
    call = random_call(model, board.edge_index, board.nodes, 2, 0, (0.125, 0.0, 0.125))
    cell = build_onnx_models(model, 17)["cell"]
    got = by_onnxruntime(cell, call.feeds(np.float32))
    assert_close(by_training_cell(model, call), got, 1e-5)
    assert_close(by_plain_cell(model, call), got, 1e-5)

    with torch.no_grad():  # large velocities show that tanh is applied
        for name, weight in model.cell.named_parameters():
            if name.endswith("out.weight"):
                weight.mul_(100)
    got = by_onnxruntime(build_onnx_models(model, 17)["cell"], call.feeds(np.float32))
    largest = np.abs(got["nodes_velocity"]).max()
    assert 0.99 < largest <= 1 + np.finfo(np.float32).eps  # tanh of ONNX Runtime rounds up on some processors
    assert_close(by_training_cell(model, call), got, 1e-4)


def test_a_new_cell_variant_is_saved_exported_and_run(
    tanh_fitted: Fitted, board: Graph, tmp_path: Path
) -> None:
    save_run(tmp_path / "run", tanh_fitted, board, ["board"], TrainConfig())
    run = load_run(tmp_path / "run")
    assert isinstance(run.model.cell.velocity, TanhVelocity)
    manifest = export_bundle(run, tmp_path / "bundle", steps=(1, 20))  # compares with PyTorch
    assert manifest.parity["needed"] < 1e-4
    bundle = Bundle(tmp_path / "bundle", "onnxruntime-cpu", made_here=True)  # no fingerprint is listed
    assert np.isfinite(bundle.run(board, 20, Final()).scores).all()
