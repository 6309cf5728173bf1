"""The trained model as three ONNX graphs: encoder, cell and head.

The graphs are written operator by operator instead of traced. So the opset is exactly the one asked
for, two exports of one model are the same bytes, every value has a place one can point at, and the
cell can be arranged for speed. That it is still the same function is what `validate` measures after
every export, and what the tests compare with the training cell.
"""

import numpy as np
import onnx

from adar_export.builder import OnnxBuilder
from adar_export.fused_cell import FusedCell
from adar_export.onnx_ops import alignment, mean_row
from adar_export.placing import placed
from adar_export.precision import PRECISIONS, Precision
from adar_runtime.graph import EDGE, GRAPH, NODE
from adar_train.model import AdaR


def build_onnx_models(
    model: AdaR, opset: int, precision: Precision = PRECISIONS["fp32"]
) -> dict[str, onnx.ModelProto]:
    """The three graphs of a bundle. Encoder and head run once, so only the cell has small numbers."""
    config, real = model.config, precision.real
    graphs = {
        "encoder": _encoder(model, opset, real),
        "cell": FusedCell(model, opset, precision).graph,
        "head": _head(model, opset, real),
    }
    metadata = {
        "adar.hidden": str(config.hidden),
        "adar.proxies": str(config.proxies),
        "adar.by_row": "no" if config.isotropic else "yes",  # whether nodes can be encoded in blocks
    }
    return {name: graph.build(metadata) for name, graph in graphs.items()}


def _encoder(model: AdaR, opset: int, real: str) -> OnnxBuilder:
    """Features -> the four states at t = 0."""
    g, config = OnnxBuilder("adar_encoder", opset, real), model.config
    d, f = config.hidden, config.features
    kernel, bias = (tensor.detach().cpu().numpy() for tensor in model.input_map())
    affine = [g.weight("input.kernel", kernel), g.weight("input.bias", bias)]

    def encoded(name: str, rows: str) -> str:
        return g.op("Gemm", g.input(name, [rows, f]), *affine)

    nodes = encoded("features", "n")
    if model.targets is None:
        targets = encoded("target_features", "c")
    else:
        targets = g.weight("learned_targets", model.targets.detach().cpu().numpy())
    if model.log_length is not None:
        nodes, targets = placed(g, nodes, targets, model.log_length.exp().item(), d)
    g.output("nodes", nodes, ["n", d])
    g.output("targets", targets, [config.targets or "c", d])
    for name, proxies in (("node_proxies", model.node_proxies), ("target_proxies", model.target_proxies)):
        g.output(name, g.weight(f"initial_{name}", proxies.detach().cpu().numpy()), [config.proxies, d])
    return g


def _head(model: AdaR, opset: int, real: str) -> OnnxBuilder:
    """Nodes and targets -> the scores Z Cᵀ before softmax, and the alignment of the state."""
    config = model.config
    g, d, c = OnnxBuilder("adar_head", opset, real), config.hidden, config.targets or "c"
    nodes, targets = g.input("nodes", ["n", d]), g.input("targets", [c, d])
    outputs: dict[str, int | str] = {NODE: "n", EDGE: "k", GRAPH: 1}
    scale = d**-0.5 if config.isotropic else 1.0
    scores = g.op("Gemm", _readout(g, nodes, config.level), targets, transB=1, alpha=scale)
    if config.regression:  # in the labels' own units
        for kind, name in (("Mul", "label_scale"), ("Add", "label_offset")):
            scores = g.op(kind, scores, g.weight(name, model.get_buffer(name).cpu().numpy()))
    g.output("scores", scores, [outputs[config.level], c])
    g.output("alignment", alignment(g, config.alignment, nodes, targets), [])
    return g


def _readout(g: OnnxBuilder, nodes: str, level: str) -> str:
    """Z [k, d]: the nodes, the products of pairs of them, or their mean."""
    if level == EDGE:
        pairs = g.input("pairs", [2, "k"], "int64")
        ends = [g.op("Gather", pairs, g.weight(f"row_{i}", np.array(i)), axis=0) for i in (0, 1)]
        return g.op("Mul", *(g.op("Gather", nodes, end, axis=0) for end in ends))
    if level == GRAPH:
        return g.op("Unsqueeze", mean_row(g, nodes), g.weight("axis_0", np.array([0])))
    return nodes
