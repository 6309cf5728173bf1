"""The trained model as ONNX models: encoder, cell and head, and the cell for batches and in phases.

The ONNX models are written operator by operator instead of traced. So the opset is exactly the requested one,
two exports of one model are the same bytes, every value has a known name, and the cell can be arranged for
speed. `validate` compares the result with PyTorch after every export.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from adar_export.batched_cell import BatchedCell
from adar_export.builder import OnnxBuilder
from adar_export.emitters import emitter_for
from adar_export.fused_cell import FusedCell
from adar_export.onnx_ops import mean_row
from adar_export.phases import build_phases
from adar_export.precision import PRECISIONS, Precision
from adar_export.standard_emitters import LAYER_NORM_EPSILON
from adar_runtime.graph import EDGE, GRAPH, NODE
from adar_train.alignments import ALIGNMENTS
from adar_train.cell import ModelConfig
from adar_train.model import AdaR

NO_UNITS: Mapping[str, NDArray[Any]] = MappingProxyType({})


def build_onnx_models(
    model: AdaR, opset: int, precision: Precision = PRECISIONS["fp32"]
) -> dict[str, onnx.ModelProto]:
    """Build the ONNX models that every bundle has: encoder, cell and head.

    Encoder and head run once, so only the cell uses the precision of the products.
    """
    real = precision.real
    builders = {
        "encoder": _encoder(model, opset, real),
        "cell": FusedCell(model, opset, precision).builder,
        "head": _head(model, opset, real),
    }
    return {name: builder.build(_metadata(model)) for name, builder in builders.items()}


def build_batched_cell(model: AdaR, opset: int, precision: Precision = PRECISIONS["fp32"]) -> onnx.ModelProto:
    """Build the cell for batches of small graphs."""
    return BatchedCell(model, opset, precision).builder.build(_metadata(model))


def build_phase_models(
    model: AdaR, opset: int, precision: Precision = PRECISIONS["fp32"]
) -> dict[str, onnx.ModelProto]:
    """Build the step in phases."""
    return build_phases(model, opset, precision, _metadata(model))


def _metadata(model: AdaR) -> dict[str, str]:
    return {
        "adar.hidden": str(model.config.hidden),
        "adar.proxies": str(model.config.proxies),
        "adar.by_row": "yes" if model.input.by_row else "no",  # whether nodes can be encoded in blocks
    }


def _encoder(model: AdaR, opset: int, real: str) -> OnnxBuilder:
    """Emit features → the four states at t = 0."""
    builder, config = OnnxBuilder("adar_encoder", opset, real), model.config
    d, f = config.hidden, config.features
    kernel, bias = (tensor.detach().cpu().numpy() for tensor in model.input_map())
    affine = [builder.weight("input.kernel", kernel), builder.weight("input.bias", bias)]

    def encoded(name: str, size: str) -> str:
        rows = builder.op("Gemm", builder.input(name, [size, f]), *affine)
        if not config.input_norm:
            return rows
        scale = builder.weight("input.norm", np.ones(d, np.float32))
        return builder.op("LayerNormalization", rows, scale, epsilon=LAYER_NORM_EPSILON)

    nodes = encoded("features", "n")
    if model.targets is None:
        place = emitter_for(type(model.input))
        nodes, targets = place(builder, model, nodes, encoded("target_features", "c"))
    else:
        targets = builder.weight("learned_targets", model.targets.detach().cpu().numpy())
    builder.output("nodes", nodes, ["n", d])
    builder.output("targets", targets, [config.targets or "c", d])
    for name, proxies in (("node_proxies", model.node_proxies), ("target_proxies", model.target_proxies)):
        value = builder.weight(f"initial_{name}", proxies.detach().cpu().numpy())
        builder.output(name, value, [config.proxies, d])
    return builder


def _head(model: AdaR, opset: int, real: str) -> OnnxBuilder:
    config = model.config
    scale = config.hidden**-0.5 if model.variant.scaled_scores else 1.0
    names = ("label_scale", "label_offset") if config.regression else ()
    units = {name: model.get_buffer(name).cpu().numpy() for name in names}
    return build_head(config, opset, real, scale, units)


def build_head(
    config: ModelConfig, opset: int, real: str, scale: float, units: Mapping[str, NDArray[Any]] = NO_UNITS
) -> OnnxBuilder:
    """Emit nodes and targets → the scores Z Cᵀ before softmax, and the alignment of the state.

    For regression, `units` has the scale and the offset of the labels.
    """
    builder, d, c = OnnxBuilder("adar_head", opset, real), config.hidden, config.targets or "c"
    nodes, targets = builder.input("nodes", ["n", d]), builder.input("targets", [c, d])
    outputs: dict[str, int | str] = {NODE: "n", EDGE: "k", GRAPH: 1}
    scores = builder.op("Gemm", _readout(builder, nodes, config.level), targets, transB=1, alpha=scale)
    if units:
        for kind, name in (("Mul", "label_scale"), ("Add", "label_offset")):
            scores = builder.op(kind, scores, builder.weight(name, units[name]))
    builder.output("scores", scores, [outputs[config.level], c])
    alignment = emitter_for(ALIGNMENTS[config.alignment])
    builder.output("alignment", alignment(builder, nodes, targets), [])
    return builder


def _readout(builder: OnnxBuilder, nodes: str, level: str) -> str:
    """Emit Z [k, d]: the nodes, the products of pairs of nodes, or the mean of all nodes."""
    if level == EDGE:
        pairs = builder.input("pairs", [2, "k"], "int64")
        ends = [builder.op("Gather", pairs, builder.weight(f"row_{i}", np.array(i)), axis=0) for i in (0, 1)]
        return builder.op("Mul", *(builder.op("Gather", nodes, end, axis=0) for end in ends))
    if level == GRAPH:
        return builder.op("Unsqueeze", mean_row(builder, nodes), builder.weight("axis_0", np.array([0])))
    return nodes
