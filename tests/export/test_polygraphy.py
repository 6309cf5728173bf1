"""NVIDIA's Polygraphy finds no errors in the ONNX models that engines are built from."""

import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("polygraphy", reason="needs polygraphy")

from adar_export.bf16_emulation import emulate
from adar_export.onnx_models import build_onnx_models
from adar_export.precision import precision_of
from adar_runtime.backends.tensorrt.engines.clock import clock_model
from adar_train import AdaR, ModelConfig
from tests.helpers import awake


@pytest.fixture(scope="module")
def model() -> AdaR:
    return awake(ModelConfig(10, 2))


@pytest.fixture
def polygraphy(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Run `polygraphy …` and return its exit code and output."""
    from polygraphy.tools import main

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["polygraphy", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            sys.exit(main())
        return int(stop.value.code or 0), "".join(capfd.readouterr())

    return run


def files(model: AdaR, folder: Path, precision: str) -> dict[str, Path]:
    protos = build_onnx_models(model, 17, precision_of(precision))
    paths = {name: folder / f"{name}-{precision}.onnx" for name in protos}
    for name, proto in protos.items():
        onnx.save(proto, paths[name])
    return paths


MODELS = [(precision, name) for precision in ("fp32", "fp16", "bf16") for name in ("encoder", "cell", "head")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("precision", "name"), MODELS)
def test_models_can_be_inspected(polygraphy, model: AdaR, tmp_path: Path, precision: str, name: str) -> None:
    code, out = polygraphy("inspect", "model", files(model, tmp_path, precision)[name])
    assert code == 0
    assert f"Name: adar_{name} | ONNX Opset: 17" in out
    assert "[E]" not in out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("precision", "name"), MODELS)
def test_models_pass_lint(polygraphy, model: AdaR, tmp_path: Path, precision: str, name: str) -> None:
    """Lint runs the model in ONNX Runtime, which has no bfloat16 products on the CPU.

    So lint fails for the bf16 cell, for this reason only. The bf16 emulation passes.
    """
    path = files(model, tmp_path, precision)[name]
    code, out = polygraphy("check", "lint", path)
    errors = [line for line in out.splitlines() if "[E] LINT" in line]
    if (precision, name) == ("bf16", "cell"):
        assert code != 0  # if this passes, ONNX Runtime has bfloat16 products: remove the exception
        assert errors
        assert all("bfloat16" in line for line in errors)
        onnx.save(emulate(onnx.load(path)), path)
        code, out = polygraphy("check", "lint", path)
    assert code == 0
    assert "PASSED" in out
    assert "[E]" not in out


@pytest.mark.filterwarnings("ignore")
def test_the_clock_model_passes(polygraphy, tmp_path: Path) -> None:
    (tmp_path / "clock.onnx").write_bytes(clock_model(64))
    for command in (("inspect", "model"), ("check", "lint")):
        code, out = polygraphy(*command, tmp_path / "clock.onnx")
        assert code == 0
        assert "[E]" not in out
