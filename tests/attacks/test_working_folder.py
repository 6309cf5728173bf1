"""Python files in the working folder or in a model's folder are never imported."""

import json
from pathlib import Path

import pytest

from adar_deploy.doctor.probes import probe
from adar_deploy.text_embedding import Embedder
from adar_runtime.benchmarking.race import Worker
from adar_runtime.errors import UsageError
from tests.attacks.payload import MARK, assert_no_code_ran
from tests.runtime.test_race import holding
from tests.texts import tiny_model

HOSTILE = f"open({MARK!r}, 'w').close()\nraise SystemExit('taken over')\n"


def test_the_doctor_imports_installed_packages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    assert probe("provider", "CPUExecutionProvider") == {"ran": "CPUExecutionProvider"}
    assert_no_code_ran(tmp_path)


def test_a_benchmark_worker_imports_installed_packages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    worker = Worker(holding, 10)
    try:
        assert worker.turn()[0] == 1.0
    finally:
        worker.end()
    assert_no_code_ran(tmp_path)


def test_a_text_model_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model(tmp_path / "model")
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["type"] = "hostile.Module"
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "hostile.py").write_text(HOSTILE)
    with pytest.raises(UsageError, match="does not contain a readable sentence-transformers model"):
        Embedder(str(model))
    assert_no_code_ran(tmp_path)
