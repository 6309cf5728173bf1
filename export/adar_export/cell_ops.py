"""The operations that the emitters of a cell are written with: its weights, products in its precision, ψ."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from adar_export.builder import OnnxBuilder
from adar_export.precision import Precision
from adar_train.model import AdaR

LEAKY_SLOPE = 0.01  # PyTorch's default

Factor = str | tuple[str, ...]
"""A factor of M = left @ right: one value, or the values of its blocks."""


class CellOps:
    """Operations on values of one cell's ONNX model. Values and weights are referred to by name."""

    def __init__(self, model: AdaR, builder: OnnxBuilder, precision: Precision, step: str) -> None:
        self.builder = builder
        self.d = model.config.hidden
        self.small = precision.product
        self.weights = {
            name: tensor.detach().cpu().numpy() for name, tensor in model.cell.state_dict().items()
        }
        self._cell = model.cell
        self._precision = precision
        self._step = step

    def module(self, name: str) -> nn.Module:
        """Return the training module of this name in the cell."""
        return self._cell.get_submodule(name)

    def layer(self, x: str, name: str, *bias: str, **attributes: Any) -> str:
        """Multiply x with a linear layer of the model, from the right: its kernel is [in, out]."""
        return self.product(x, self.kernel(f"{name}.T", self.weights[name].T), *bias, **attributes)

    def kernel(self, name: str, kernel: NDArray[np.float32]) -> str:
        """Add a constant factor of a product, in the precision of the weights."""
        if self._precision.weights is None:
            return self.builder.weight(name, kernel, self.small)
        scale = np.maximum(np.abs(kernel).max(axis=0), 1e-12) / 127  # one per column
        levels = self.builder.weight(f"{name}.int8", np.rint(kernel / scale).astype(np.int8))
        scales = self.builder.weight(f"{name}.scale", scale)
        return self.builder.op("DequantizeLinear", levels, scales, axis=1, type=self.builder.real)

    def parameter(self, name: str) -> str:
        """Add a weight of the cell in the precision of the products."""
        return self.builder.weight(name, self.weights[name], self.small)

    def product(self, a: str, b: str, *bias: str, **attributes: Any) -> str:
        """Compute a @ b + bias in the precision of the products."""
        return self.low(self.builder.op("Gemm", *map(self.low, (a, b, *bias)), **attributes))

    def left_factor(self, *blocks: str) -> Factor:
        """Join the blocks of the left factor of M, [n, p + c + d]."""
        return self.builder.op("Concat", *blocks, axis=1)

    def right_factor(self, *blocks: str) -> Factor:
        """Join the blocks of the right factor of M, multiplied with a layer: [p + c + d, out]."""
        return self.builder.op("Concat", *blocks, axis=0)

    def message_factor(
        self, name: str, layer: NDArray[np.float32], values: tuple[str, str], parts: NDArray[np.float32]
    ) -> Factor:
        """Compute right @ layerᵀ [p + c + d, out] for right = diag(parts) · diag(V_pn, V_cn, 1)."""
        d, weight = self.d, layer.T
        pn, cn, own = (
            self.kernel(f"{name}.{part}", parts[i] * weight[i * d : (i + 1) * d])
            for i, part in enumerate(("pn", "cn", "h"))
        )
        return self.right_factor(self.product(values[0], pn), self.product(values[1], cn), own)

    def factored(self, left: Factor, right: Factor, *bias: str) -> str:
        """Compute left @ right + bias."""
        assert isinstance(left, str)
        assert isinstance(right, str)
        return self.product(left, right, *bias)

    def leaky(self, x: str) -> str:
        """Compute LeakyReLU(x)."""
        kind = self.builder.type_of(x)
        if self._precision.leaky_relu or kind == self.builder.real:
            return self.builder.op("LeakyRelu", x, alpha=LEAKY_SLOPE)
        slope = self.builder.weight("leaky_slope", np.array(LEAKY_SLOPE), kind)
        return self.builder.op("Max", x, self.builder.op("Mul", x, slope))

    def scaled(self, x: str) -> str:
        """Compute x / √d."""
        return self.builder.op("Mul", x, self.builder.weight("inverse_root_d", np.array(self.d**-0.5)))

    def attend(self, a: str, b: str) -> str:
        """Compute ψ(a, b) in full precision."""
        return self.builder.op("Softmax", self.logits(a, b), axis=1)

    def logits(self, a: str, b: str) -> str:
        """Compute a bᵀ / √d, of which ψ is the softmax."""
        # The smaller matrix is scaled: proxies and targets, never the nodes.
        scaled = (a, self.scaled(b)) if a == "nodes" else (self.scaled(a), b)
        return self.full(self.product(*scaled, transB=1))

    def step_bias(self, name: str) -> str:
        """Compute what the step encoding adds to the first layer of a velocity: one row [d]."""
        kernel = self.builder.weight(f"{name}.step.weight.T", self.weights[f"{name}.step.weight"].T)
        bias = self.builder.weight(f"{name}.step.bias", self.weights[f"{name}.step.bias"])
        return self.builder.op("Add", self.builder.op("MatMul", self._step, kernel), bias)

    def low(self, x: str) -> str:
        """Cast x to the precision of the products."""
        return self.builder.cast(x, self.small)

    def full(self, x: str) -> str:
        """Cast x to full precision."""
        return self.builder.cast(x, self.builder.real)
