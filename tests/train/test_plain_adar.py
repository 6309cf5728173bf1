"""The side that benchmarks compare with is the same function, and the benchmark runs."""

from copy import deepcopy

import pytest
import torch

from adar_export.plain_cell import PlainAdaR, PlainVelocity
from adar_runtime.loop.schedule import times
from adar_train import GraphTensors, ModelConfig
from adar_train.losses import full_loss, step_loss, task_loss
from benchmarks import train_speed
from tests.helpers import awake, random_graph


@pytest.mark.parametrize("per_edge", [False, True])
@pytest.mark.parametrize("edges", [0, 40])
@pytest.mark.parametrize("settings", [{"dropout": 0.0}, {"dropout": 0.4}, {"variant": "zero-shot"}])
def test_states_and_gradients_agree(per_edge: bool, edges: int, settings: dict) -> None:
    graph = random_graph(11, edges)
    tensors, chosen = GraphTensors.of(graph), torch.arange(5)
    ours = awake(ModelConfig(graph.width, None, hidden=8, proxies=4, **settings)).train()
    plain = PlainAdaR(deepcopy(ours), per_edge=per_edge)
    for model in (ours, plain):
        torch.manual_seed(0)  # the same nodes are dropped
        states = list(model.trajectory(tensors, times(3)))
        terms = task_loss(model, states[-1], tensors, chosen), step_loss(model, states, tensors, chosen)
        (sum(terms) + full_loss(model, states, tensors, chosen)).backward()
        model.end = states[-1]
    for name, a, b in zip(ours.end._fields, ours.end, plain.end, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5), name
    theirs = gradients_by_our_names(plain)
    for name, weight in ours.named_parameters():
        assert torch.allclose(weight.grad, theirs[name], rtol=1e-3, atol=1e-5), name


def gradients_by_our_names(plain: PlainAdaR) -> dict[str, torch.Tensor]:
    """The plain side has our layers, but for the first of each velocity, which is one over all its inputs."""
    found = {name: weight.grad for name, weight in plain.start.named_parameters()}
    for name, module in plain.named_modules():
        if isinstance(module, PlainVelocity):
            velocity = plain.start.get_submodule(name)
            parts = {part: getattr(velocity, part) for part in ("representation", "relation", "step")}
            widths = [layer.in_features for layer in parts.values()]
            for part, gradient in zip(parts, module.mix.weight.grad.split(widths, dim=1), strict=True):
                found[f"{name}.{part}.weight"] = gradient
            found[f"{name}.step.bias"] = module.mix.bias.grad
    return found


def test_the_benchmark_prints_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--side", "6", "--steps", "2", "--hidden", "8", "--repeats", "2", "--threads", "1"]

    def memory_of(side: str) -> float:
        """What the child process does, but in this one, which has torch loaded already."""
        monkeypatch.setattr("sys.argv", ["train_speed", *command, "--memory-of", side])
        train_speed.main()
        return float(capsys.readouterr().out)

    monkeypatch.setattr("sys.argv", ["train_speed", *command])
    monkeypatch.setattr(train_speed, "memory_of", memory_of)
    train_speed.main()
    printed = capsys.readouterr().out
    assert f"python -m benchmarks.train_speed {' '.join(command)}\n" in printed
    assert "| plain / ours |" in printed
