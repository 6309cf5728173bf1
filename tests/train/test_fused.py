"""Each fused pass compared with the expression in its docstring: values and gradients."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import layer_norm, leaky_relu

from adar_runtime.graph.neighbours import Neighbours
from adar_train import fused_autograd as fused
from adar_train.sparse import SparseMatrix

N, P, C, D = 9, 4, 3, 6  # nodes, proxies, targets, columns


class Pass(NamedTuple):
    fused: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    shapes: list[tuple[int, ...]]

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        random = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in self.shapes]


def diffuse() -> Pass:
    def plain(x_sur, x_in, weight, bias):
        return (x_sur @ x_in.T / D**0.5).softmax(1) @ leaky_relu(x_in @ weight.T + bias)

    return Pass(fused.diffuse, plain, [(P, D), (N, D), (D, D), (D,)])


def local_messages(edges: int, targets: int, *, weighted: bool = False) -> Pass:
    random = np.random.default_rng(0)
    edge_index, weights = random.integers(0, N, (2, edges)), random.uniform(0.1, 3, edges).astype(np.float32)
    neighbours = Neighbours.of(edge_index, N, weights if weighted else None)
    matrix, share = SparseMatrix(neighbours), torch.from_numpy(neighbours.share).double()
    adjacency = torch.zeros(N, N, dtype=torch.float64)
    values = 1.0 if neighbours.weights is None else torch.from_numpy(neighbours.weights).double()
    adjacency[neighbours.targets, neighbours.sources] = values

    def ours(h, p, c, kernel, own, bias, project):
        return fused.local_messages(h, (p, c), (kernel, own), bias, project, matrix, share.to(h.dtype))

    def plain(h, p, c, kernel, own, bias, project):
        left = torch.cat([(h @ p.T / D**0.5).softmax(1), h, (h @ c.T / D**0.5).softmax(1)], dim=1)
        sent = leaky_relu(left @ kernel + bias) @ project.T
        return (left @ own + adjacency.to(h.dtype) @ sent) * share.to(h.dtype)

    width = P + D + targets
    shapes = [(N, D), (P, D), (targets, D), (width, 3 * D), (width, D), (3 * D,), (D, 3 * D)]
    return Pass(ours, plain, shapes)


def bounded(*, dropped: bool) -> Pass:
    random = torch.Generator().manual_seed(1)
    mask = (torch.rand(N, D, generator=random) > 0.3).double() / 0.7 if dropped else None

    def ours(x, relation, weight, bias, scale, shift, out):
        own = None if mask is None else mask.to(x.dtype)
        return fused.bounded((x, relation, weight, bias), (scale, shift, 1e-5), own, out)

    def plain(x, relation, weight, bias, scale, shift, out):
        hidden = leaky_relu(layer_norm(x + relation @ weight.T + bias, (D,), scale, shift))
        return (hidden if mask is None else hidden * mask.to(x.dtype)) @ out.T

    return Pass(ours, plain, [(N, D), (N, P), (D, P), (D,), (D,), (D,), (D, D)])


PASSES = {
    "diffuse": diffuse(),
    "local messages": local_messages(30, C),
    "local messages, no edge, one target": local_messages(0, 1),
    "local messages, weighted": local_messages(30, C, weighted=True),
    "bounded": bounded(dropped=False),
    "bounded, dropped": bounded(dropped=True),
}


@pytest.fixture(params=PASSES.values(), ids=PASSES.keys())
def one(request: pytest.FixtureRequest) -> Pass:
    return request.param


def gradients(y: Tensor, inputs: list[Tensor], **options: bool) -> tuple[Tensor, ...]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return torch.autograd.grad(y, inputs, upstream.to(y.dtype), **options)


def test_values_and_gradients_equal_the_plain_expression(one: Pass) -> None:
    inputs = one.inputs()
    ours, plain = one.fused(*inputs), one.plain(*inputs)
    assert torch.allclose(ours, plain, rtol=0, atol=1e-12)
    for a, b in zip(gradients(ours, inputs), gradients(plain, inputs), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-11)


def test_gradients_equal_finite_differences(one: Pass) -> None:
    assert gradcheck(one.fused, one.inputs())


def test_a_second_backward_gives_the_same_gradients(one: Pass) -> None:
    """The backward pass must not overwrite the tensors that it reads."""
    inputs = one.inputs()
    y = one.fused(*inputs)
    first, second = gradients(y, inputs, retain_graph=True), gradients(y, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_second_derivative_is_refused(one: Pass) -> None:
    inputs = one.inputs()
    first = torch.autograd.grad(one.fused(*inputs).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()


def test_inputs_are_not_changed(one: Pass) -> None:
    inputs = one.inputs()
    before = [x.detach().clone() for x in inputs]
    gradients(one.fused(*inputs), inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_the_error_under_autocast_is_that_of_autocast(one: Pass) -> None:
    """The backward pass runs under autocast too, as in the trainer. Gradients are float32."""
    inputs = one.inputs(torch.float32)
    exact = gradients(one.plain(*inputs), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        ours, plain = (gradients(of(*inputs), inputs) for of in (one.fused, one.plain))
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - c).norm() <= 2 * (b - c).norm() + 1e-2 * c.norm()
