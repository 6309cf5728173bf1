"""The three passes of a step over all nodes, each as one autograd operation with a handwritten gradient.

Each function computes the expression in its docstring; tests compare values and gradients with this
expression. This saves time and memory: gradients of H from several terms are summed inside the matrix
products, activations overwrite their inputs, and only tensors that a gradient needs are kept.

Under autocast, each function runs in autocast's precision. PyTorch computes LayerNorm, softmax and sums in
float32 inside, and the states stay float32. The gradients cannot be differentiated again.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from adar_train.sparse import SparseMatrix

LEAKY_SLOPE = 0.01  # PyTorch's default


def diffuse(x_sur: Tensor, x_in: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute softmax(X_sur X_inᵀ / √d) · LeakyReLU(X_in Wᵀ + b) [k, d], for X_sur [k, d] and X_in [n, d]."""
    return _apply(_Diffuse, x_sur, x_in, weight, bias)


def local_messages(
    h: Tensor,
    surrogates: tuple[Tensor, Tensor],
    kernels: tuple[Tensor, Tensor],
    bias: Tensor,
    project: Tensor,
    neighbours: SparseMatrix,
    share: Tensor,
) -> Tensor:
    """Compute (L · own + A · LeakyReLU(L · kernel + b) · projectᵀ) ∘ share [n, d].

    L = [softmax(H Pᵀ / √d) ‖ H ‖ softmax(H Cᵀ / √d)] [n, p + d + c], for surrogates (P, C) and kernels
    (kernel, own).
    """
    return _apply(_LocalMessages, h, *surrogates, *kernels, bias, project, neighbours, share)


def bounded(
    first: tuple[Tensor, Tensor, Tensor, Tensor],
    norm: tuple[Tensor, Tensor, float],
    mask: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Compute (LeakyReLU(LayerNorm(x + r Wᵀ + b)) ∘ mask) · outᵀ [k, d].

    Here first = (x, r, W, b) and norm = (scale, shift, ε).
    """
    return _apply(_Bounded, *first, *norm, mask, out)


def multiplied(x: Tensor) -> Tensor:
    """Cast X to the precision of the matrix products, once for all products that use X."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    """Apply the function; under autocast, with all inputs in autocast's precision."""
    device = inputs[0].device.type
    if not torch.is_autocast_enabled(device):
        return function.apply(*inputs)  # type: ignore[no-untyped-call]
    precision = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        same = [x.to(precision) if isinstance(x, Tensor) else x for x in inputs]
        return function.apply(*same)  # type: ignore[no-untyped-call]


def _once(backward: Callable[..., Any]) -> Any:
    """Make `backward` run in the precision of its forward pass, and refuse to differentiate it again."""

    @wraps(backward)
    def in_one_precision(ctx: Any, gradient: Tensor) -> Any:
        device = gradient.device.type
        if not torch.is_autocast_enabled(device):
            return backward(ctx, gradient)
        with torch.autocast(device, enabled=False):
            return backward(ctx, gradient)

    return once_differentiable(in_one_precision)


def _leaky_backward_(gradient: Tensor, activated: Tensor) -> Tensor:
    """Compute the gradient in place from the activated values, which have the signs of their inputs."""
    operation = torch.ops.aten.leaky_relu_backward.grad_input
    return operation(gradient, activated, LEAKY_SLOPE, True, grad_input=gradient)


def _softmax_backward(gradient: Tensor, shares: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(gradient, shares, 1, shares.dtype)


class _Diffuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_sur: Tensor, x_in: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shares = (x_sur * x_sur.shape[1] ** -0.5 @ x_in.T).softmax(dim=1)  # [k, n]
        values = functional.leaky_relu_(torch.addmm(bias, x_in, weight.T))  # [n, d]
        ctx.save_for_backward(x_sur, x_in, weight, shares, values)
        return shares @ values

    @staticmethod
    @_once
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, ...]:
        x_sur, x_in, weight, shares, values = ctx.saved_tensors
        d_logits = _softmax_backward(d_out @ values.T, shares)  # [k, n]
        d_values = _leaky_backward_(shares.T @ d_out, values)  # [n, d]
        scale = x_sur.shape[1] ** -0.5
        d_in = (d_values @ weight).addmm_(d_logits.T, x_sur, alpha=scale)
        return d_logits @ x_in * scale, d_in, d_values.T @ x_in, d_values.sum(dim=0)


class _LocalMessages(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        p: Tensor,
        c: Tensor,
        kernel: Tensor,
        own: Tensor,
        bias: Tensor,
        project: Tensor,
        neighbours: SparseMatrix,
        share: Tensor,
    ) -> Tensor:
        surrogates = torch.cat([p, c]) * h.shape[1] ** -0.5
        of_p, of_c = (h @ surrogates.T).split([len(p), len(c)], dim=1)
        left = torch.cat([of_p.softmax(dim=1), h, of_c.softmax(dim=1)], dim=1)  # L [n, p + d + c]
        messages = functional.leaky_relu_(torch.addmm(bias, left, kernel))  # [n, 3d]
        ctx.neighbours, ctx.widths = neighbours, (len(p), h.shape[1], len(c))
        ctx.save_for_backward(left, surrogates, kernel, own, project, share, messages)
        return neighbours.times(messages @ project.T).addmm_(left, own).mul_(share)

    @staticmethod
    @_once
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        left, surrogates, kernel, own, project, share, messages = ctx.saved_tensors
        p, d, c = ctx.widths
        d_own = d_out * share  # [n, d]
        d_sent = ctx.neighbours.transposed_times(d_own)  # [n, d]
        d_messages = _leaky_backward_(d_sent @ project, messages)  # [n, 3d]

        # The gradient of L in two products: the first p + d columns and the last c. p + d is usually a
        # multiple of the vector width and c is not. One product over all columns takes a quarter longer.
        d_left, d_rest = (
            (d_messages @ to_messages.T).addmm_(d_own, to_own.T)
            for to_messages, to_own in zip(kernel.split([p + d, c]), own.split([p + d, c]), strict=True)
        )
        d_of_p, d_h = d_left.split([p, d], dim=1)
        of_p, h, of_c = left.split([p, d, c], dim=1)
        d_logits = torch.cat([_softmax_backward(d_of_p, of_p), _softmax_backward(d_rest, of_c)], dim=1)
        d_p, d_c = (d_logits.T @ h * d**-0.5).split([p, c])

        d_h = torch.addmm(d_h, d_logits, surrogates)
        d_kernels = left.T @ d_messages, left.T @ d_own
        return d_h, d_p, d_c, *d_kernels, d_messages.sum(dim=0), d_sent.T @ messages, None, None


class _Bounded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        relation: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor,
        shift: Tensor,
        epsilon: float,
        mask: Tensor | None,
        out: Tensor,
    ) -> Tensor:
        mixed = torch.addmm(x, relation, weight.T).add_(bias)  # [k, d]
        hidden, mean, spread = torch.native_layer_norm(mixed, mixed.shape[1:], scale, shift, epsilon)
        functional.leaky_relu_(hidden)
        if mask is not None:
            hidden *= mask
        ctx.save_for_backward(relation, weight, scale, shift, mask, out, mixed, mean, spread, hidden)
        return hidden @ out.T

    @staticmethod
    @_once
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        relation, weight, scale, shift, mask, out, mixed, mean, spread, hidden = ctx.saved_tensors
        d_hidden = d_out @ out
        if mask is not None:
            d_hidden *= mask
        d_normal = _leaky_backward_(d_hidden, hidden)  # zero where the mask is zero
        d_mixed, d_scale, d_shift = torch.ops.aten.native_layer_norm_backward(
            d_normal, mixed, mixed.shape[1:], mean, spread, scale, shift, [True, True, True]
        )
        d_first = d_mixed, d_mixed @ weight, d_mixed.T @ relation, d_mixed.sum(dim=0)
        return *d_first, d_scale, d_shift, None, None, d_out.T @ hidden
