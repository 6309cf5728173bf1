"""Modules that lie in the folder one happens to be in, or in that of a model: none of them is imported."""

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


def test_the_doctor_tries_packages_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    assert probe("provider", "CPUExecutionProvider") == {"ran": "CPUExecutionProvider"}
    assert_no_code_ran(tmp_path)


def test_a_side_is_measured_in_a_python_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    worker = Worker(holding, 10)
    try:
        assert worker.turn()[0] == 1.0
    finally:
        worker.end()
    assert_no_code_ran(tmp_path)


def test_a_text_model_brings_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model(tmp_path / "model")
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["type"] = "hostile.Module"
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "hostile.py").write_text(HOSTILE)
    with pytest.raises(UsageError, match="holds no sentence-transformers model that can be read"):
        Embedder(str(model))
    assert_no_code_ran(tmp_path)
