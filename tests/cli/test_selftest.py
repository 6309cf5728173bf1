"""`adar-deploy selftest`: on the CPU here, and on a simulated GPU."""

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from adar_deploy.commands import selftest
from adar_export import selftest_bundle
from adar_runtime import Final, Result, StopReason, load
from adar_runtime.backends.tensorrt import backend as tensorrt
from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.backends.tensorrt.recurrence import TensorRtRecurrence
from adar_runtime.benchmarking.graphs import graph_for, near_edges
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.selftest import accuracy, packaged, run
from adar_runtime.selftest.findings import Finding, Findings, Status
from adar_runtime.selftest.run import SelftestOptions, run_selftest

SMALL = ("--nodes", 60, "--runs", 3)
FEWER = (1, 16, 17, 70)  # steps: the default ones take longer


def test_the_bundles_in_the_package_are_those_of_the_maker() -> None:
    """`make selftest-bundle` writes them again. A new field with its default changes nothing."""
    found, made = packaged.contents(), dict(selftest_bundle.files())
    assert found.keys() == made.keys()
    for name, content in found.items():
        if name.endswith(".json"):
            assert Manifest.from_json(content.decode()) == Manifest.from_json(made[name].decode()), name
        else:
            assert content == made[name], name
    assert packaged.FILE.stat().st_size < 100_000


def test_they_are_known_models_at_every_level(tmp_path: Path) -> None:
    found = packaged.unpack(tmp_path)
    assert list(found) == ["edge fp32", "graph fp32", "node bf16", "node fp16", "node fp32"]
    for path in found.values():
        read_bundle(path)  # refuses unknown models


def test_the_wheel_contains_them() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="make install installs hatchling")
    root = Path(__file__).parents[2]
    names = {file.distribution_path for file in wheel.WheelBuilder(str(root)).recurse_included_files()}
    assert "adar_runtime/selftest/bundles.tar.xz" in names


def check_report(adar, tmp_path: Path, names: list[str], *words: object) -> None:
    """Run on the CPU: these bundles pass, and what needs a GPU is skipped with its reason."""
    code, out, error = adar("selftest", *SMALL, "--output", "found.json", *words)
    assert (code, error) == (0, "")
    found = json.loads((tmp_path / "found.json").read_text())
    checks = {one["what"]: one for one in found["checks"]}
    assert found["failed"] is False
    assert found["environment"]["GPU"]
    assert {one["status"] for one in found["checks"]} == {"PASS", "SKIP"}
    for backend in ("onnxruntime-cuda", "tensorrt"):
        skipped = checks[f"{backend}, {', '.join(names)}"]
        assert skipped["status"] == "SKIP"
        assert "CUDA" in skipped["detail"]
    for name, graph, steps in product(names, ("small", "hub", "large"), accuracy.STEPS):
        if name == "node bf16":
            assert "no bfloat16 products" in checks[f"onnxruntime-cpu, {name}"]["detail"]
        else:
            one = checks[f"onnxruntime-cpu, {name}, {graph} graph, {steps} steps"]
            assert one["figures"]["same_predictions"] == 1.0
    assert checks["onnxruntime-cpu, node fp32, small graph, microseconds a step"]["figures"]["p90"] > 0
    block = out[out.index("### adar-deploy selftest") :]
    assert block.count("```") == 2
    assert "SKIP  tensorrt" in block
    assert block.rstrip().splitlines()[-2] == found["summary"]


no_gpu = pytest.mark.skipif(device_problem() is None, reason="there is a GPU here")


@no_gpu
def test_without_a_gpu_the_cpu_is_checked_and_the_rest_is_skipped(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "STEPS", FEWER)
    check_report(adar, tmp_path, ["node fp32"], "--quick")


@no_gpu
@pytest.mark.torture
def test_all_bundles_of_the_package_pass_on_the_cpu(adar, tmp_path: Path) -> None:
    check_report(adar, tmp_path, ["edge fp32", "graph fp32", "node bf16", "node fp16", "node fp32"])


def test_a_user_s_bundle_is_checked(adar, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "STEPS", (1,))
    code, out, _ = adar("selftest", bundle_folder, *SMALL, "--json")
    assert code == 0
    checks = {one["what"]: one["status"] for one in json.loads(out)["checks"]}
    assert checks["onnxruntime-cpu, node fp32, hub graph, 1 steps"] == "PASS"
    assert not (bundle_folder / "engines").exists()


def test_a_report_does_not_replace_a_manifest(adar, bundle_folder: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(bundle_folder, tmp_path / "bundle"))
    before = (bundle / "manifest.json").read_bytes()
    code, _, err = adar("selftest", bundle, *SMALL, "--quick", "--output", bundle / "manifest.json")
    assert (code, err.count("\n")) == (2, 1)
    assert (bundle / "manifest.json").read_bytes() == before


def test_a_failed_check_is_exit_code_1(adar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "compare_backend", lambda *arguments: _fail(arguments[-1]))
    monkeypatch.setattr(run, "check_stability", lambda *_: None)
    code, out, _ = adar("selftest", "--quick", *SMALL)
    assert code == 1
    assert "FAIL  numbers: they differ" in out


def _fail(findings: Findings) -> None:
    findings.check("numbers", passed=False, detail="they differ")


def test_a_step_is_one_cell_call_whatever_was_proven(bundle_folder: Path) -> None:
    bundle = load(bundle_folder, "onnxruntime-cpu")
    proof = {"solver": "ab2", "calls": 4, "same": 1.0, "same_at_exit": 1.0, "outputs": 1000}
    bundle.manifest = replace(bundle.manifest, convergence={"order": 1.0, "proof": proof})
    graph = graph_for(bundle.manifest, 20, near_edges(20, 2))
    assert bundle.run(graph, 40, Final()).steps == 4
    seen: list[int] = []
    measured = accuracy._measure(bundle, graph, 40, seen.append)
    assert measured.result.steps == 40
    assert seen == [0, 16, 32, 40]
    assert len(measured.times) == 3


@pytest.mark.parametrize(
    ("curvature", "step", "passes"), [(1e-3, 100, True), (1e-7, 103, True), (1e-3, 103, False)]
)
def test_rounding_may_move_the_stop_of_a_flat_peak_only(curvature: float, step: int, passes: bool) -> None:
    findings = Findings()
    curve = 1.0 - curvature * (np.arange(301) - 100.0) ** 2
    theirs = Result(np.zeros((1, 2)), curve.tolist(), [], 300, 100, StopReason.PEAK, "cpu", {})
    ours = Result(np.zeros((1, 2)), (curve + 1e-6).tolist(), [], 300, step, StopReason.PEAK, "gpu", {})
    accuracy._compare_stops("stop", ours, theirs, 100, StopReason.PEAK, findings)
    accuracy._compare_stops("stop", ours, theirs, 100, StopReason.RISING, findings)
    assert [one.status is Status.PASS for one in findings.found] == [passes, False]


@pytest.mark.parametrize(
    ("backend", "precision", "capability", "why"),
    [
        ("onnxruntime-cuda", "bf16", 75, "bfloat16 needs compute capability 8.0, and this GPU has 7.5"),
        ("tensorrt", "fp32", 75, "engines of TensorRT-RTX need compute capability 8.0, and this GPU has 7.5"),
        ("onnxruntime-cuda", "fp16", 75, None),
        ("tensorrt", "bf16", 89, None),
        ("onnxruntime-cpu", "bf16", 89, "ONNX Runtime has no bfloat16 products on the CPU"),
    ],
)
def test_what_the_hardware_cannot_run_is_skipped_not_failed(
    monkeypatch: pytest.MonkeyPatch, backend: str, precision: str, capability: int, why: str | None
) -> None:
    monkeypatch.setattr(run, "compute_capabilities", lambda: (capability,))
    monkeypatch.setattr(run, "load_package", lambda: SimpleNamespace(name="rtx"))
    assert run._unsupported(backend, precision) == why


def test_a_terminal_shows_what_is_running(adar, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(selftest.err, "_force_terminal", True)
    monkeypatch.setattr(
        selftest.Bar, "update", lambda _self, share, what: shown.append(f"{share:.0%} {what}")
    )
    monkeypatch.setattr(accuracy, "STEPS", (1, 20))
    code, out, _ = adar("selftest", "--quick", *SMALL)
    assert code == 0
    assert "0% onnxruntime-cpu, node fp32, large graph, 20 steps: 16" in shown
    assert "0% onnxruntime-cpu, node fp32, large graph, 20 steps, reference: 20" in shown
    assert "PASS  onnxruntime-cpu, node fp32, large graph, 20 steps" in out


# On a simulated GPU


def on_simulated_gpu(monkeypatch: pytest.MonkeyPatch, options: SelftestOptions, *fail: str) -> list[Finding]:
    pytest.importorskip("tensorrt_rtx", reason="needs adar-deploy[rtx]")
    pytest.importorskip("cuda.bindings", reason="needs adar-deploy[rtx]")
    from tests.runtime.simulated_gpu import simulate_gpu

    device = simulate_gpu(monkeypatch, None)
    device.fail.update(fail)
    monkeypatch.setattr(run, "build_engines", tensorrt.build_engines)  # which registers the engines
    seen: list[Finding] = []
    found = run_selftest(options, seen.append)
    assert found.found == seen
    return [one for one in seen if one.what.startswith("tensorrt")]


QUICK = SelftestOptions(nodes=60, runs=3, quick=True)
TENSORRT = {
    "build",
    "load",
    "small graph, 1 steps",
    "hub graph, 17 steps",
    "large graph, 70 steps",
    "hub graph, stop rule",
    "first and second run",
    "shapes A, B, A",
    "two threads",
    "captured",
    "captured and queued runs",
    "device memory",
    "3 runs",
    "large graph, microseconds a step",
}


def test_everything_is_checked_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "STEPS", FEWER)
    found = on_simulated_gpu(monkeypatch, QUICK)
    assert [str(one) for one in found if one.status is not Status.PASS] == []
    assert {one.what.removeprefix("tensorrt, node fp32, ") for one in found} >= TENSORRT
    peak = next(one for one in found if one.what.endswith("hub graph, stop rule"))
    assert 0 < peak.figures["best_step"] < 70  # so the rule is tested, not only the end of the budget


@pytest.mark.torture
def test_every_level_and_precision_is_checked_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_simulated_gpu(monkeypatch, SelftestOptions(nodes=60, runs=3))
    assert [str(one) for one in found if one.status is not Status.PASS] == []
    names = {" ".join(one.what.split(", ")[1:2]) for one in found}
    assert names == {"node fp32", "edge fp32", "graph fp32", "node fp16", "node bf16"}


def test_what_is_wrong_on_a_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that cannot be captured, and queued steps that give other numbers."""
    scores = TensorRtRecurrence.scores

    def other_scores(self, *, kept: bool):
        return scores(self, kept=kept) + (0 if self._session.replays else 1e-3)

    monkeypatch.setattr(TensorRtRecurrence, "scores", other_scores)
    monkeypatch.setattr(run, "compare_backend", lambda *_: None)
    found = on_simulated_gpu(monkeypatch, QUICK, "capture")
    failed = {
        one.what.removeprefix("tensorrt, node fp32, "): one.detail for one in found if one.status == "FAIL"
    }
    assert set(failed) == {"captured", "captured and queued runs"}
    assert failed["captured"].startswith("no: TensorRT says")
