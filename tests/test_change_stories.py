"""The change stories of CONTRIBUTING: a toy solver, stop rule and backend, added through the registries."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from adar_export.convergence import measure
from adar_runtime import Final, Graph, StopReason, load, write_graph
from adar_runtime.backends import BACKENDS, Settings
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import Ports, expected
from adar_runtime.loop.registry import setting
from adar_runtime.loop.solvers import SOLVERS, Attempt, Move, Moves, RegisteredSolver
from adar_runtime.loop.stopping import RULES, Observation, RegisteredRule, Verdict
from tests.bundles import edit
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
        for name in ("adar_deploy.options", "adar_deploy.commands.run"):
            monkeypatch.delitem(sys.modules, name)
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
