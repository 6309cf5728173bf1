"""The exported cell equals the training cell and the plain cell: any size, weights, graph, variant."""

from copy import deepcopy
from itertools import pairwise

import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adar_export.onnx_models import build_onnx_models
from adar_export.precision import EXACT
from adar_train import AdaR, ModelConfig
from adar_train.alignments import ALIGNMENTS
from adar_train.variants import VARIANTS
from tests.export.cells import (
    assert_close,
    by_onnxruntime,
    by_plain_cell,
    by_reference,
    by_training_cell,
    distance,
    random_call,
)


def randomised(config: ModelConfig, seed: int) -> AdaR:
    """A model in float64 with noise on every trained weight."""
    torch.manual_seed(seed)
    model = AdaR(config).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight), alpha=0.3)
    return model


def edges_of(kind: str, nodes: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    everyone, nobody = np.arange(nodes), np.zeros((2, 0), np.int64)
    return {
        "none": nobody,
        "directed": random.integers(0, nodes, (2, 3 * nodes)),
        "most isolated": random.integers(0, max(1, nodes // 4), (2, nodes)),
        "all twice": np.repeat(random.integers(0, nodes, (2, nodes)), 2, axis=1),
        "loops": np.stack([everyone, everyone]),
        "hub": np.stack([everyone, np.zeros_like(everyone)]),
        "hub and all": np.concatenate(
            [np.stack([everyone, everyone * 0]), random.integers(0, nodes, (2, nodes))], axis=1
        ),
    }[kind]


KINDS = ("none", "directed", "most isolated", "all twice", "loops", "hub", "hub and all")
numbers = st.floats(-2, 2, allow_subnormal=False)


@st.composite
def cases(draw: st.DrawFn):
    """A model and a call of its cell."""
    nodes, classes, seed = draw(st.integers(1, 60)), draw(st.integers(1, 6)), draw(st.integers(0, 999))
    targets = draw(st.sampled_from([classes, None]))
    variants = [name for name, one in VARIANTS.items() if targets is None or one.learned_targets]
    config = ModelConfig(
        features=3,
        targets=targets,
        hidden=draw(st.integers(2, 10)),
        proxies=draw(st.integers(1, 6)),
        alignment=draw(st.sampled_from(sorted(ALIGNMENTS))),
        variant=draw(st.sampled_from(sorted(variants))),
        step_info=draw(st.booleans()),
        relation=draw(st.booleans()),
        edge_weights=draw(st.booleans()),
    )
    edges = edges_of(draw(st.sampled_from(KINDS)), nodes, seed)
    moves = (draw(numbers), draw(numbers), draw(st.floats(0, 1, allow_subnormal=False)))
    model = randomised(config, seed)
    return model, random_call(model, edges, nodes, classes, seed, moves)


@settings(max_examples=25, deadline=None)
@given(cases())
def test_any_step_equals_the_plain_cell_to_ten_digits(case) -> None:
    model, call = case
    cell = build_onnx_models(model, 17, EXACT)["cell"]
    assert_close(by_plain_cell(model, call), by_reference(cell, call.feeds()), 1e-10)


@settings(max_examples=15, deadline=None)
@given(cases())
def test_an_euler_step_equals_the_training_cell_to_ten_digits(case) -> None:
    model, call = case
    call.weight, call.previous_weight = call.lead, 0.0
    cell = build_onnx_models(model, 17, EXACT)["cell"]
    assert_close(by_training_cell(model, call), by_reference(cell, call.feeds()), 1e-10)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases())
def test_any_step_equals_the_plain_cell_in_float32(case) -> None:
    """Cases that float32 cannot resolve are left out: a layer norm of nearly equal columns is rounding."""
    model, call = case
    expected = by_plain_cell(model, call)
    assume(distance(expected, by_plain_cell(deepcopy(model).float(), call.in_float32())) <= 2e-6)
    cell = build_onnx_models(model, 17)["cell"]
    assert_close(expected, by_onnxruntime(cell, call.feeds(np.float32)), 1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_graph_equals_the_training_cell(kind: str, weighted: bool) -> None:
    model = randomised(ModelConfig(3, 4, 8, 5, edge_weights=weighted), 1)
    call = random_call(model, edges_of(kind, 300, 2), 300, 4, 3, (0.125, 0.0, 0.125))
    got = by_onnxruntime(build_onnx_models(model, 17)["cell"], call.feeds(np.float32))
    assert_close(by_training_cell(model, call), got, 1e-5)


def test_an_untrained_zero_shot_cell_leaves_out_zero_layers() -> None:
    torch.manual_seed(0)
    model = AdaR(ModelConfig(3, None, 8, 4, variant="zero-shot")).double().eval().requires_grad_(False)
    call = random_call(model, edges_of("directed", 20, 0), 20, 3, 0, (0.2, -0.1, 0.05))
    cell = build_onnx_models(model, 17, EXACT)["cell"]
    assert_close(by_plain_cell(model, call), by_reference(cell, call.feeds()), 1e-10)
    assert "LayerNormalization" not in {node.op_type for node in cell.graph.node}


def test_two_threads_give_the_same_bits_every_time() -> None:
    """ONNX Runtime's ScatterND did not: two threads at one node lost updates."""
    model = randomised(ModelConfig(3, 2, 32, 4), 0)
    nodes = 3_000
    edges = edges_of("hub and all", nodes, 0)
    edges = np.concatenate([edges, np.stack([edges[1] * 7 % 5, edges[0]])], axis=1)
    call = random_call(model, edges, nodes, 2, 0, (0.1, 0.0, 0.1))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    content = build_onnx_models(model, 17)["cell"].SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    results = [session.run(["next_nodes"], call.feeds(np.float32))[0].tobytes() for _ in range(50)]
    assert all(one == other for one, other in pairwise(results))
