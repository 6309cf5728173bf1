"""The measurement of convergence: order, and cell calls that reproduce the reference."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from adar_deploy.report import bundle_sections
from adar_export import Trial, convergence, export_bundle
from adar_export.convergence import Convergence, _order, measure
from adar_export.writer import _ExportOptions, _write
from adar_runtime import Final, load
from adar_runtime.bundle import manifest
from adar_runtime.errors import UsageError
from adar_runtime.loop.solvers import AdamsBashforth2, Euler, Moves
from adar_train import AdaR, Fitted, ModelConfig, TrainConfig, load_run, save_run
from tests.helpers import awake, random_graph


@dataclass(frozen=True)
class WrongLead:
    """The moves of Adams–Bashforth, but with a lead of the step's size instead of the budget's."""

    inner: AdamsBashforth2

    def moves(self, start: float, end: float, h: float) -> Moves:
        moves = self.inner.moves(start, end, h)
        move = next(moves)
        while True:
            motion = yield move._replace(lead=move.size)
            try:
                move = moves.send(motion)
            except StopIteration:
                return


@pytest.fixture(scope="module")
def measured(described_bundle: Path) -> Convergence:
    return measure(load(described_bundle, "onnxruntime-cpu"), "a graph", random_graph(60, 200))


def test_a_smooth_cell_has_order_1_and_needs_few_calls(measured: Convergence) -> None:
    assert measured.order == pytest.approx(1, abs=0.1)
    calls = measured.calls()
    assert calls["ab2"] < calls["euler"] / 2
    assert calls["adaptive"] < calls["euler"]
    for trial in measured.trials:
        assert trial.enough == (
            trial.calls == calls.get(trial.solver)
        )  # the measurement stops at the first sufficient trial


def test_the_record_is_plain_json(measured: Convergence) -> None:
    kept = measured.to_dict()
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    assert kept["reference"] == 300


def test_a_cell_with_large_velocities_has_a_lower_order(described_run: Path, tmp_path: Path) -> None:
    """With velocities 1000 times as large, halving the steps does not halve the error."""
    run = load_run(described_run)
    with torch.no_grad():
        for name, weight in run.model.named_parameters():
            if name.endswith("out.weight"):
                weight.mul_(1000)
    out = tmp_path / "bundle"
    out.mkdir()
    wild = _write(out, run, run.model, run.graph(), _ExportOptions(17, "fp32", plain=False))
    found = measure(load(out, "onnxruntime-cpu"), "a graph", random_graph(60, 200))
    assert found.order < 0.8
    assert not replace(wild, convergence=found.to_dict()).behaves_like_ode


def test_the_lead_must_be_that_of_the_budget(described_bundle: Path) -> None:
    """With a lead of H instead of h, second order is lost, as `adar_runtime.loop.solvers` explains."""
    bundle, graph = load(described_bundle, "onnxruntime-cpu"), random_graph(60, 200)

    def end(solver) -> np.ndarray:
        *_, last = bundle.loop(graph, 300, Final(), solver)
        return last.state()["nodes"]

    reference = end(Euler())
    errors = [np.abs(end(s) - reference).max() for s in (AdamsBashforth2(16), WrongLead(AdamsBashforth2(16)))]
    assert errors[1] > 3 * errors[0]


def test_unit_steps_are_not_measured(tmp_path: Path) -> None:
    graph = random_graph(20, 60)
    model = awake(ModelConfig(graph.width, None, 8, 4, unit_step=True))
    with torch.no_grad():  # so that 300 steps of length 1 stay finite
        for name, weight in model.named_parameters():
            if name.endswith("out.weight"):
                weight.mul_(0.02)
    save_run(tmp_path / "run", Fitted(model, {"metric": "accuracy"}, []), graph, ["random"], TrainConfig())
    assert export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", steps=(1, 10)).convergence == {}
    with pytest.raises(UsageError, match="use the solver euler"):
        load(tmp_path / "bundle").run(graph, budget=5, solver="ab2")
    with pytest.raises(UsageError, match="use the solver euler"):  # also as an object
        load(tmp_path / "bundle").run(graph, budget=5, solver=AdamsBashforth2(4))


def test_trials_that_diverge_do_not_stop_an_export(tmp_path: Path) -> None:
    """On this stiff cell, 100 steps of Euler's method stay finite and fewer calls of other solvers do not."""
    torch.manual_seed(0)
    graph = random_graph(20, 60)
    model = AdaR(ModelConfig(graph.width, None, 8, 4, variant="zero-shot")).eval().requires_grad_(False)
    model.cell.velocity.rates.copy_(torch.tensor([0.0, 190.0]))  # V = -190 H
    run = tmp_path / "run"
    save_run(run, Fitted(model, {"metric": "accuracy"}, []), graph, ["random"], TrainConfig())
    found = export_bundle(load_run(run), tmp_path / "bundle", steps=(1, 100)).convergence
    assert found["order"] < 0.8
    tried = [trial["calls"] for trial in found["trials"] if trial["solver"] == "ab2"]
    assert 64 not in tried


@pytest.mark.parametrize(
    ("first", "second", "order"), [(2.0, 1.0, 1.0), (4.0, 1.0, 2.0), (1e-7, 1e-9, 1.0), (1.0, 2.0, -1.0)]
)
def test_the_order_of_known_errors(first: float, second: float, order: float) -> None:
    ends = [np.array([x]) for x in (0.0, first, first + second)]
    assert _order(ends, moved=1.0) == pytest.approx(order, abs=1e-6)
    assert _order([ends[0], None, ends[2]], moved=1.0) == 0
    assert np.isfinite(_order([ends[0], ends[1], ends[1]], moved=1.0))


def test_enough_needs_states_and_predictions() -> None:
    near = Trial("ab2", 16, 5e-4, 1.0)
    assert near.enough
    assert not replace(near, change=2e-3).enough
    assert not replace(near, same=0.998).enough
    assert not replace(near, change=float("nan")).enough


def test_the_report_shows_the_limits_of_the_measurement(
    measured: Convergence, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"convergence": measured.to_dict()}
    assert "at most 0.1 % of" in bundle_sections.convergence_section(facts)
    monkeypatch.setattr(bundle_sections, "LARGEST_CHANGE", 0.05)
    monkeypatch.setattr(bundle_sections, "LEAST_SAME", 0.75)
    text = bundle_sections.convergence_section(facts)
    assert "at most 5 % of" in text
    assert "at least 75 % of the predictions" in text
    assert (convergence.LARGEST_CHANGE, convergence.LEAST_SAME) == (
        manifest.LARGEST_CHANGE,
        manifest.LEAST_SAME,
    )
