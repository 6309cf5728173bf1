"""`--solver auto`, the default: the cheapest solver that export proved to give Euler's predictions."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from adar_deploy.cli import app
from adar_export import export_bundle
from adar_export.samples import with_outputs
from adar_runtime import AdamsBashforth2, Bundle, Euler, Final, load, write_graph
from adar_runtime.bundle.proven_solver import auto_solver
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import UsageError
from adar_runtime.graph.neighbours import Neighbours
from adar_train import Fitted, ModelConfig, TrainConfig, load_run, save_run
from tests.bundles import edit
from tests.helpers import awake, random_graph


def export_awake(folder: Path, level: str = "node", **metrics: object) -> Path:
    """A bundle of a model with random velocities."""
    graph = random_graph(60, 300, level=level)
    model = awake(ModelConfig(graph.width, 3, hidden=16, proxies=4, level=level))
    fitted = Fitted(model, {"metric": "accuracy", "split": 0, **metrics}, [])
    save_run(folder / "run", fitted, graph, ["random"], TrainConfig())
    export_bundle(load_run(folder / "run"), folder / "bundle", steps=(1,))
    return folder / "bundle"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_awake(tmp_path_factory.mktemp("proven"))


@pytest.fixture(scope="module")
def proven(folder: Path) -> Bundle:
    return load(folder, "onnxruntime-cpu", threads=1)


LARGER = random_graph(1500, 6000, seed=5)


def share_of_same(one, other) -> float:
    return float((one.predictions == other.predictions).mean())


def test_export_proves_a_solver_on_a_thousand_predictions(proven: Bundle) -> None:
    proof = proven.manifest.proof
    assert proof is not None
    assert proof["solver"] == "ab2"
    assert proof["outputs"] >= 1000
    assert min(proof["same"], proof["same_at_exit"]) >= 0.999
    assert 4 <= proof["calls"] < 150
    assert proof["graph"] == "a graph like the run's graph, drawn from its nodes"


def test_a_number_of_calls_that_succeeds_by_chance_is_not_proven(proven: Bundle) -> None:
    """Of two attempts in a row, the first is proven. Here 12 calls succeed, but 14 do not."""
    trials = [trial for trial in proven.manifest.convergence["trials"] if trial["solver"] == "ab2"]
    right = {trial["calls"]: trial["same"] >= 0.999 for trial in trials}
    assert right[12]
    assert not right[14]
    assert proven.manifest.proof["calls"] == 16


def test_the_default_is_the_proven_solver_and_says_so(proven: Bundle) -> None:
    """On a graph that export has not seen, compared with Euler's method."""
    calls = proven.manifest.proof["calls"]
    ours, reference = proven.run(LARGER, 300, Final()), proven.run(LARGER, 300, Final(), "euler")
    assert (ours.cell_calls, reference.cell_calls) == (calls, 300)
    assert share_of_same(ours, reference) >= 0.998  # another graph than that of the proof
    assert ours.solver == f"ab2, {calls} calls"
    assert f"in the export, {calls} calls gave 100 % of the predictions of 300 Euler steps, on" in ours.proof
    assert reference.solver == "euler"
    assert reference.proof == "the reference: one call for each step"
    other = proven.run(LARGER, 300, Final(), AdamsBashforth2(calls=7))
    assert (other.solver, other.proof) == ("ab2, 7 calls", "not proven for this bundle")


@pytest.mark.parametrize("rule", ["peak", "time", "converged", "final"])
def test_stop_rules_give_the_answers_of_eulers_method(proven: Bundle, rule: str) -> None:
    settings = {"time": {"t": 0.6}, "converged": {"tolerance": 0.2}}.get(rule, {})
    stop = proven.stop_rule(rule, **settings)
    ours, reference = proven.run(LARGER, 300, stop), proven.run(LARGER, 300, stop, "euler")
    assert ours.cell_calls < reference.cell_calls
    # "converged" answers from the first state below the tolerance, which is at most one call later.
    assert share_of_same(ours, reference) >= (0.95 if rule == "converged" else 0.995)
    allowed = 1 / proven.manifest.proof["calls"] if rule == "converged" else 0.02
    assert ours.best_time == pytest.approx(reference.best_time, abs=allowed)


def test_a_budget_of_any_size_has_a_solver(proven: Bundle) -> None:
    """A budget that no float can hold gets the most calls that there are."""
    assert auto_solver(proven.manifest, 10**400) == AdamsBashforth2(calls=1_000_000)


@pytest.mark.parametrize("budget", [5, 120, 300, 500])
def test_other_budgets(proven: Bundle, budget: int) -> None:
    """As many calls as were proven, more in proportion above 300 steps, and never more than steps."""
    calls = proven.manifest.proof["calls"]
    expected = min(budget, calls if budget <= 300 else -(-calls * budget // 300))
    ours = proven.run(LARGER, budget, Final())
    reference = proven.run(LARGER, budget, Final(), "euler")
    assert ours.cell_calls == expected
    assert share_of_same(ours, reference) >= 0.998
    assert (ours.solver == "euler") == (budget <= calls)


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": 999},
        {"same": 0.99},
        {"same_at_exit": 0.9},
        {"same": "all"},
        {"calls": 0},
        {"calls": 10**9},
        {"calls": True},
        {"solver": "adaptive"},
        {"solver": "nonsense"},
        {"solver": 3},
    ],
)
def test_a_proof_that_proves_nothing_is_not_used(proven: Bundle, change: dict) -> None:
    manifest = proven.manifest
    proof = manifest.convergence["proof"] | change
    assert auto_solver(replace(manifest, convergence=manifest.convergence | {"proof": proof}), 300) == Euler()
    low = manifest.convergence | {"order": 0.2}
    assert auto_solver(replace(manifest, convergence=low), 300) == Euler()
    assert auto_solver(manifest, 300) != Euler()


def test_a_bundle_without_a_proof_runs_eulers_method(bundle_folder: Path, board) -> None:
    assert load(bundle_folder, "onnxruntime-cpu").run(board, 30, Final()).cell_calls == 30


def test_one_prediction_per_graph_proves_nothing(tmp_path: Path) -> None:
    manifest = read_manifest(export_awake(tmp_path, "graph"))
    assert manifest.calls_needed("ab2") is not None  # `--solver ab2` still works
    assert manifest.proof is None


def test_pairs_are_added_to_compare_a_thousand() -> None:
    graph = random_graph(60, 300, level="edge")
    more = with_outputs(graph, 1000)
    assert more.outputs == 1000
    assert np.array_equal(more.pairs[:, :15], graph.pairs)


def test_the_command_uses_and_names_the_solver(folder: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "g.npz", replace(LARGER, labels=None))
    common = [tmp_path / "g.npz", "--bundle", folder, "--exit", "final"]
    found = json.loads(run_command("run", *common, "--json").stdout)
    assert found["solver"] == f"ab2, {found['cell_calls']} calls"
    assert "of 300 Euler steps" in found["proof"]
    assert "300 (step budget 300)" in run_command("run", *common, "--solver", "euler").stdout
    wrong = run_command("run", *common, "--calls", 9)
    assert isinstance(wrong.exception, UsageError)
    assert "--calls is a setting of the solver ab2: add --solver ab2" in str(wrong.exception)


def run_command(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})


@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="needs adar-deploy[rtx]")
def test_tensorrt_runs_the_proven_solver(
    folder: Path, proven: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.runtime.simulated_gpu import load_on_simulated_gpu, with_engines

    on_gpu, _ = load_on_simulated_gpu(monkeypatch, with_engines(folder, tmp_path / "engines"))
    ours, expected = on_gpu.run(random_graph(90, 400), 300), proven.run(random_graph(90, 400), 300)
    assert (ours.solver, ours.cell_calls) == (expected.solver, expected.cell_calls)
    assert (ours.predictions == expected.predictions).all()


def test_a_graph_drawn_from_a_small_one() -> None:
    graph = replace(random_graph(40, 160), features=np.arange(40.0)[:, None] * np.ones(6))
    graph = replace(graph, edge_weight=np.arange(1.0, 161.0))
    drawn = with_outputs(graph, 1000)
    assert drawn.outputs == 1000
    node = drawn.features[:, 0].astype(int)
    neighbours = Neighbours.in_graph(graph)
    known = dict(
        zip(zip(neighbours.sources, neighbours.targets, strict=True), neighbours.weights, strict=True)
    )
    for (source, target), weight in zip(drawn.edge_index.T, drawn.edge_weight, strict=True):
        assert known[node[source], node[target]] == weight
    assert drawn.edges == neighbours.counts[node].sum()  # every node was drawn at least once
    assert with_outputs(drawn, 1000) is drawn


def test_a_damaged_proof_is_an_unproven_solver(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bundle")
    edit(tmp_path / "bundle", lambda manifest: manifest["convergence"].update(proof=[1, 2]))
    assert (
        load(tmp_path / "bundle", "onnxruntime-cpu").run(random_graph(30, 60), 20, Final()).cell_calls == 20
    )
