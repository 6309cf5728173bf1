"""The step in phases equals the fused cell: any size, split, solver, level and variant."""

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from adar_export.onnx_models import build_onnx_models, build_phase_models
from adar_export.phase_proof import compare_phases, phase_samples
from adar_export.precision import EXACT, PRECISIONS, Precision
from adar_export.writer import open_unmeasured
from adar_runtime.bundle.signature import COLLECTING, STATE
from adar_runtime.errors import ExportError
from adar_runtime.graph import LEVELS
from adar_runtime.loop.solvers import Move
from adar_runtime.phases import sharded_step
from adar_runtime.phases.sharded_step import ShardedState, shards_of
from adar_train import AdaR, ModelConfig, load_run
from adar_train.variants import VARIANTS
from tests.export.cells import (
    Arrays,
    Call,
    assert_close,
    by_onnxruntime,
    by_plain_cell,
    by_reference,
    distance,
    random_call,
)
from tests.export.test_fused import KINDS, edges_of, numbers, randomised


class Models:
    """The models of the phases: onnx's slow evaluator in float64, otherwise ONNX Runtime."""

    def __init__(self, model: AdaR, precision: Precision) -> None:
        built = build_phase_models(model, 17, precision)
        self._outputs = {name: [value.name for value in one.graph.output] for name, one in built.items()}
        opened = ReferenceEvaluator if precision is EXACT else _session
        self._opened: dict[str, Any] = {name: opened(one) for name, one in built.items()}

    def run(self, name: str, feeds: Mapping[str, Any]) -> Arrays:
        return dict(zip(self._outputs[name], self._opened[name].run(None, dict(feeds)), strict=True))


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def by_phases(models: Models, call: Call, shard_of_node: np.ndarray) -> Arrays:
    """The outputs of a cell, computed by the phases over shards."""
    sharded = ShardedState(models, shards_of(call.neighbours, shard_of_node), call.states, call.before)
    sharded.step(call.step_code, Move(0.0, 0.0, call.weight, call.previous_weight, call.lead))
    return (
        {f"next_{name}": sharded.state[name] for name in STATE}
        | {f"{name}_velocity": sharded.velocities[name] for name in STATE}
        | {
            "alignment": np.array(sharded.alignment),
            "speed": np.array(sharded.motion.speed),
            "turn": np.array(sharded.motion.turn),
        }
    )


@st.composite
def cases(draw: st.DrawFn):
    """A model, a call of its cell, and a split of the nodes."""
    nodes, classes, seed = draw(st.integers(1, 40)), draw(st.integers(1, 5)), draw(st.integers(0, 999))
    targets = draw(st.sampled_from([classes, None]))
    variants = [name for name, one in VARIANTS.items() if targets is None or one.learned_targets]
    config = ModelConfig(
        features=3,
        targets=targets,
        hidden=draw(st.integers(2, 8)),
        proxies=draw(st.integers(1, 5)),
        alignment=draw(st.sampled_from(["cosine-margin", "mean-inner-product"])),
        variant=draw(st.sampled_from(sorted(variants))),
        level=draw(st.sampled_from(LEVELS)),
    )
    moves = (draw(numbers), draw(numbers), draw(st.floats(0, 1, allow_subnormal=False)))
    model = randomised(config, seed)
    if draw(st.booleans()):
        model.requires_grad_(False)
    call = random_call(
        model, edges_of(draw(st.sampled_from(KINDS)), nodes, seed), nodes, classes, seed, moves
    )
    split = np.random.default_rng(seed).integers(0, draw(st.integers(1, 5)), nodes)
    return model, call, split


@settings(max_examples=8, deadline=None)
@given(cases())
def test_any_step_over_shards_equals_the_plain_cell_and_the_cell_to_ten_digits(case) -> None:
    model, call, split = case
    got = by_phases(Models(model, EXACT), call, split)
    assert_close(by_plain_cell(model, call), got, 1e-10)
    cell = build_onnx_models(model, 17, EXACT)["cell"]
    assert_close(by_reference(cell, call.feeds()), got, 1e-10)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(cases())
def test_any_step_over_shards_equals_the_cell_in_float32(case) -> None:
    model, call, split = case
    expected, rounded = by_plain_cell(model, call), call.in_float32()
    assume(distance(expected, by_plain_cell(deepcopy(model).float(), rounded)) <= 2e-6)
    got = by_phases(Models(model, PRECISIONS["fp32"]), rounded, split)
    assert_close(expected, got, 1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 2e-6), ("fp16", 2e-3), ("int8", 2e-6)])
def test_every_precision_gives_the_numbers_of_the_cell(precision: str, tolerance: float) -> None:
    model = randomised(ModelConfig(3, 4, 16, 5), 1)
    call = random_call(model, edges_of("hub and all", 300, 2), 300, 4, 3, (0.125, -0.05, 0.03)).in_float32()
    cell = build_onnx_models(model, 17, PRECISIONS[precision])["cell"]
    expected, models = by_onnxruntime(cell, call.feeds(np.float32)), Models(model, PRECISIONS[precision])
    assert_close(expected, by_phases(models, call, np.zeros(300, np.int64)), tolerance)
    assert_close(expected, by_phases(models, call, np.arange(300) % 7), 5 * tolerance)


def test_an_untrained_zero_shot_model_sends_what_it_keeps() -> None:
    torch.manual_seed(0)
    model = AdaR(ModelConfig(3, None, 8, 4, variant="zero-shot")).double().eval().requires_grad_(False)
    call = random_call(model, edges_of("directed", 30, 2), 30, 3, 3, (0.125, 0.1, 0.125))
    got = by_phases(Models(model, EXACT), call, np.arange(30) % 4)
    assert_close(by_plain_cell(model, call), got, 1e-10)


def test_export_compares_the_phases_with_the_cell(bundle_folder: Path) -> None:
    found = json.loads((bundle_folder / "manifest.json").read_text())["parity"]["phases"]
    assert 0 <= found < 1e-4  # some processors round both alike; the next test shows that they are compared


def test_phases_that_differ_from_the_cell_are_not_exported(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong sum over shards, as a mistake in a phase would give."""
    monkeypatch.setattr(
        sharded_step,
        "combined",
        lambda found: {f"{name}_diffused": found[0][f"{name}_diffused"] for name in COLLECTING},
    )
    run = load_run(run_folder)
    bundle = open_unmeasured(run, tmp_path)
    with pytest.raises(ExportError, match="the phases of a step and the cell disagree"):
        compare_phases(bundle, phase_samples(run.model.config))
