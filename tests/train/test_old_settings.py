"""Runs and checkpoints of version 0.2, whose model settings have `isotropic` instead of `variant`."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from adar_deploy.cli import main
from adar_export import export_bundle
from adar_runtime import Graph
from adar_runtime.bundle.run_files import CHECKPOINT, CONFIG, GRAPH, HISTORY
from adar_runtime.errors import RunFolderError
from adar_train import Epoch, ModelConfig, TrainConfig, load_run
from adar_train.checkpoints import CHECKSUM
from adar_train.evaluate import curves
from adar_train.job import Job
from adar_train.tensors import GraphTensors
from tests.helpers import random_graph

VARIANTS = ["standard", "zero-shot"]


def described_graph() -> Graph:
    part = np.arange(40) % 3
    return replace(random_graph(40, 120), train_mask=part == 0, val_mask=part == 1, test_mask=part == 2)


def job(out: Path, variant: str) -> Job:
    training = TrainConfig(epochs=6, train_steps=2, evaluate_every=2, select_budgets=(2,), exit_budgets=(2,))
    config = ModelConfig(6, None, hidden=8, proxies=4, variant=variant)
    return Job(["random"], [described_graph()], config, training, out)


def to_old_form(settings: dict[str, Any]) -> None:
    settings["isotropic"] = settings.pop("variant") == "zero-shot"


def rewrite_config(run: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    config = json.loads((run / CONFIG).read_text())
    to_old_form(config["model"])
    change(config)
    (run / CONFIG).write_text(json.dumps(config))


def rewrite_checkpoint(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        meta, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    progress = json.loads(meta["progress"])
    to_old_form(progress["settings"])
    del meta[CHECKSUM]  # version 0.2 wrote none
    save_file(tensors, path, meta | {"progress": json.dumps(progress)})


def evaluated(run: Path) -> list[dict[str, float]]:
    graph = described_graph()
    (curve,) = curves(load_run(run).model, [graph], [GraphTensors.of(graph)], 5)
    return curve.metrics


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_old_run_is_loaded_evaluated_and_exported(variant: str, tmp_path: Path) -> None:
    job(tmp_path / "run", variant).run("cpu")
    expected = evaluated(tmp_path / "run")
    rewrite_config(tmp_path / "run")
    assert load_run(tmp_path / "run").model.config.variant == variant
    assert evaluated(tmp_path / "run") == expected
    assert export_bundle(load_run(tmp_path / "run"), tmp_path / "bundle", steps=(1, 5)).parity["checks"]


def test_an_old_run_is_evaluated_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    job(run, "zero-shot").run("cpu")
    command = ["adar-deploy", "evaluate", str(run), str(run / GRAPH), "--budgets", "5", "--json"]
    monkeypatch.setattr("sys.argv", command)
    outputs = []
    for change in (rewrite_config, lambda _: None):
        with pytest.raises(SystemExit, match="0"):
            main()
        outputs.append(json.loads(capsys.readouterr().out))
        change(run)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_old_checkpoint_is_resumed_exactly(variant: str, tmp_path: Path) -> None:
    interrupt_after(job(tmp_path / "resumed", variant), epochs=3)
    rewrite_checkpoint(tmp_path / "resumed" / CHECKPOINT)
    job(tmp_path / "resumed", variant).run("cpu", resume=True)
    job(tmp_path / "whole", variant).run("cpu")
    histories = [json.loads((tmp_path / name / HISTORY).read_text()) for name in ("resumed", "whole")]
    assert histories[0] == histories[1]
    weights = [load_run(tmp_path / name).model.state_dict() for name in ("resumed", "whole")]
    assert all(torch.equal(weights[0][name], weight) for name, weight in weights[1].items())


def test_an_old_checkpoint_of_another_variant_is_refused(tmp_path: Path) -> None:
    interrupt_after(job(tmp_path / "run", "standard"), epochs=3)
    rewrite_checkpoint(tmp_path / "run" / CHECKPOINT)
    with pytest.raises(RunFolderError, match="different variant:"):
        job(tmp_path / "run", "zero-shot").run("cpu", resume=True)


def test_a_zero_shot_run_of_format_1_is_refused(tmp_path: Path) -> None:
    """Its input transformation was another one, so its weights have another meaning."""
    job(tmp_path / "run", "zero-shot").run("cpu")
    rewrite_config(tmp_path / "run", lambda config: config.update(format=1))
    with pytest.raises(RunFolderError, match="zero-shot model of an older version: train it again"):
        load_run(tmp_path / "run")


def interrupt_after(unfinished: Job, epochs: int) -> None:
    def stop(epoch: Epoch) -> None:
        if epoch.number == epochs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unfinished.run("cpu", stop)
