"""`adar-deploy doctor`: this machine as it is, and machines where something is missing or broken."""

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import onnx
import onnxruntime
import pytest

from adar_deploy.doctor import packages, probes
from adar_deploy.doctor.findings import Finding, State, abilities
from adar_deploy.doctor.probes import DOUBLE, probe
from adar_runtime.backends import BACKENDS
from adar_runtime.backends.openvino import OpenVinoBackend


def test_this_machine_end_to_end(adar, bundle_folder: Path) -> None:
    """The real thing: a model trained, a cell exported and run, every provider and TensorRT tried."""
    code, out, err = adar("doctor", bundle_folder, "--json")
    assert err == ""
    told = json.loads(out)
    state = {(one["group"], one["name"]): one["state"] for one in told["findings"]}
    assert state["ONNX Runtime", "CPUExecutionProvider"] == "works"
    assert state["end to end", "training"] == state["end to end", "export and run"] == "works"
    assert state["end to end", str(bundle_folder)] == "works"
    assert state["packages", "one onnxruntime"] == state["extras", "export"] == "works"
    listed = {name for group, name in state if group == "ONNX Runtime"}
    assert listed == set(onnxruntime.get_available_providers())
    assert {name for group, name in state if group == "TensorRT"} == {"tensorrt", "tensorrt_rtx"}
    assert state["OpenVINO", "CPU"] in ("works", "absent")
    assert told["able"]["run"].endswith("onnxruntime-cpu")
    assert told["able"]["export"] == "ONNX"
    assert (code, told["broken"]) == ((0, 0) if "broken" not in state.values() else (2, told["broken"]))


def in_folder(folder: Path, *words: object) -> tuple[int, str]:
    """The command in an interpreter that also finds what is in this folder."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "adar_deploy", *map(str, words)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path, "COLUMNS": "60"}, capture_output=True, text=True
    )
    assert all(line.startswith("doctor  ") for line in done.stderr.splitlines())  # how far it is
    return done.returncode, done.stdout


def test_a_broken_machine_is_told_how_to_mend_it(tmp_path: Path) -> None:
    """A second onnxruntime beside the first, and a PyTorch that cannot be imported."""
    (tmp_path / "onnxruntime-1.22.0.dist-info").mkdir()
    (tmp_path / "onnxruntime-1.22.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.22.0\n"
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open')")
    code, out = in_folder(tmp_path, "doctor", tmp_path / "no-bundle")
    assert code == 2
    flat = " ".join(out.split())
    assert "✗ one onnxruntime onnxruntime and onnxruntime-gpu overwrite" in flat
    assert "→ pip uninstall -y onnxruntime onnxruntime-gpu; pip install 'adar-deploy[gpu]'" in out
    assert "✗ export and run libcudart.so.12: cannot open" in flat
    assert "– train not available" in flat
    assert re.search("✓ run (openvino, )?onnxruntime-cpu", flat)
    assert "not a bundle" in flat
    assert max(len(line) for line in out.splitlines() if not line.startswith("   →")) <= 60


def test_a_probe_that_dies_is_an_error_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert "the process ended with code -6" in probe("tensorrt", "tensorrt")["error"]


@pytest.mark.skipif(OpenVinoBackend.problem() is not None, reason="needs adar-deploy[openvino]")
def test_openvino_runs_a_tiny_model() -> None:
    assert probe("openvino")["version"].startswith(metadata.version("openvino"))


def test_a_provider_that_falls_back_does_not_work() -> None:
    assert probe("provider", "CPUExecutionProvider") == {"ran": "CPUExecutionProvider"}
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and not Path("/dev/nvidia0").exists():
        assert "error" in probe("provider", "CUDAExecutionProvider")


def test_the_tiny_graph_is_sound() -> None:
    model = onnx.load_from_string(DOUBLE)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Add"]


def test_requirements_are_those_of_pyproject() -> None:
    wanted = {(one.name, one.extra): one for one in packages.requirements()}
    assert wanted["numpy", ""].satisfied
    assert wanted["matplotlib", "plot"].minimum == "3.9"
    assert ("torch", "train") in wanted
    assert any(name.startswith("onnxruntime") for name, _ in wanted)
    assert not packages.Requirement("numpy", "99.0", "").satisfied
    assert not packages.Requirement("no-such-package", "0", "").satisfied


def test_what_a_machine_with_a_gpu_can_do() -> None:
    found = [
        Finding("ONNX Runtime", "CUDAExecutionProvider", State.works, ""),
        Finding("ONNX Runtime", "CPUExecutionProvider", State.works, ""),
        Finding("OpenVINO", "CPU", State.works, ""),
        Finding("CUDA", "driver", State.works, ""),
        Finding("TensorRT", "tensorrt", State.works, ""),
        Finding("end to end", "training", State.works, "trained 1 epoch on cuda"),
    ]
    assert abilities(found) == {
        "train": "cuda",
        "export": None,
        "build": "tensorrt",
        "run": ", ".join(BACKENDS),
    }


def test_a_busy_machine_is_not_a_missing_package(adar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "TIMEOUT", 0.01)
    found = json.loads(adar("doctor", "--json")[1])
    (training,) = [one for one in found["findings"] if one["name"] == "training"]
    assert (training["state"], training["fix"]) == ("broken", "")
    assert "is the machine busy?" in training["detail"]
