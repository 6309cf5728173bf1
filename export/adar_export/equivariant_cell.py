"""The equivariant cell (`adar_train.equivariant`) as ONNX models: encoder, cell and head.

The only weights are those of the gates. Everything else is products of the states with each other, so the
cell serves any number of classes, and rotating all columns of a graph changes no prediction.
"""

from typing import ClassVar, Self

import numpy as np
import onnx

from adar_export.builder import OnnxBuilder
from adar_export.emitters import emitter_for
from adar_export.equivariant_parts import C, EquivariantParts, H, OfGraph, OfTargets
from adar_export.onnx_models import build_head
from adar_export.onnx_ops import root_mean_square
from adar_export.precision import PRECISIONS
from adar_runtime.bundle.signature import KNOWN, SCALARS, STATE, STEP
from adar_runtime.errors import UsageError
from adar_train.alignments import ALIGNMENTS
from adar_train.equivariant import EquivariantAdaR, EquivariantCell

EQUIVARIANT_PRECISIONS = ("fp32", "fp16", "bf16")  # int8 stores large kernels as bytes; here are none
PROXIES = 1  # the cell has none; the signature of a bundle needs one row


def build_equivariant_models(
    model: EquivariantAdaR, opset: int, precision: str = "fp32"
) -> dict[str, onnx.ModelProto]:
    """Build encoder, cell and head of a pretrained bundle.

    The cell's messages and its products of [n, d] have the precision. The gates are fp32: they are small.
    """
    config, d = model.config, model.config.hidden
    builders = {
        "encoder": _encoder(d, opset),
        "cell": EquivariantCellModel.of(model, opset, precision).builder,
        "head": build_head(config, opset, "float32", scale=d**-0.5),
    }
    return {name: builder.build(metadata_of(model)) for name, builder in builders.items()}


def metadata_of(model: EquivariantAdaR) -> dict[str, str]:
    """What each ONNX file says about the model."""
    config = model.config
    return {"adar.hidden": str(config.hidden), "adar.proxies": str(config.proxies), "adar.by_row": "yes"}


def product_type(precision: str) -> str:
    """The type of messages and of the operands of large products."""
    if precision not in EQUIVARIANT_PRECISIONS:
        raise UsageError(
            f"the pretrained model has no precision {precision!r}: choose {', '.join(EQUIVARIANT_PRECISIONS)}"
        )
    return PRECISIONS[precision].product


def _encoder(d: int, opset: int) -> OnnxBuilder:
    """Emit the states at t = 0: `adar_runtime.in_context` has placed nodes and targets already."""
    builder = OnnxBuilder("adar_encoder", opset)
    for name, rows, given in (("nodes", "n", "features"), ("targets", "c", "target_features")):
        builder.output(name, builder.op("Identity", builder.input(given, [rows, d])), [rows, d])
    for name in STATE[2:]:
        builder.output(name, builder.weight(f"initial_{name}", np.zeros((PROXIES, d))), [PROXIES, d])
    return builder


class EquivariantCellModel(EquivariantParts):
    """One step, in `builder` when constructed."""

    NAME = "adar_cell"

    def __init__(self, cell: EquivariantCell, alignment: str, opset: int, product: str) -> None:
        self.builder = builder = OnnxBuilder(self.NAME, opset)
        self._low = product  # type of the messages and of the operands of large products
        self._d = d = cell.hidden
        rows: tuple[int | str, ...] = ("n", "c", PROXIES, PROXIES)
        shapes = {name: self._shape(size, d) for name, size in zip(STATE, rows, strict=True)}
        for name in STATE:
            builder.input(name, shapes[name])
        self._before = {name: builder.input(f"previous_{name}_velocity", shapes[name]) for name in STATE}
        self._declare_graph()
        self._declare_step()
        velocities = self._velocities(cell)
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        scalars = self._scalars(alignment, velocities["nodes"], after)
        for name, value in after.items():
            builder.output(f"next_{name}", value, shapes[name])
        for name, value in velocities.items():
            builder.output(f"{name}_velocity", value, shapes[name])
        for name, value in scalars.items():
            builder.output(name, value, self._scalar_shape)

    @classmethod
    def of(cls, model: EquivariantAdaR, opset: int, precision: str) -> Self:
        """The cell of a model."""
        return cls(model.cell, model.config.alignment, opset, product_type(precision))

    def _shape(self, *sides: int | str) -> list[int | str]:
        return [*sides]

    _scalar_shape: ClassVar[list[int | str]] = []

    def _declare_graph(self) -> None:
        builder = self.builder
        self._declare_tables("n")
        self._share = builder.input("share", ["n", 1])
        self._sample = builder.input("sample", ["s"], "int32")
        self._known = builder.input(KNOWN, ["n", "c"])

    def _declare_step(self) -> None:
        self._step = self.builder.input("step_code", [self._d])
        self._weight, self._previous_weight, self._lead = (self.builder.input(name, []) for name in STEP)

    def _scalars(self, alignment: str, velocity: str, after: dict[str, str]) -> dict[str, str]:
        """Emit the alignment of the next state and the motion of the nodes in this call."""
        builder = self.builder
        found = emitter_for(ALIGNMENTS[alignment])(builder, after["nodes"], after["targets"])
        now, before = (
            builder.op("Gather", v, self._sample, axis=0) for v in (velocity, self._before["nodes"])
        )
        motion = (root_mean_square(builder, now), root_mean_square(builder, self._sub(now, before)))
        return dict(zip(SCALARS, (found, *motion), strict=True))

    def _velocities(self, cell: EquivariantCell) -> dict[str, str]:
        """Emit `EquivariantCell.forward`, in its order."""
        known, collected = self._known, self._collected_from
        relation = self._related()
        psi, is_known = relation.psi, relation.is_known
        nearby = self._nearby(self._received(x) for x in (H, psi, is_known))
        ones = self._ones(is_known)  # [n, 1]
        count = self._node_count(H)
        sizes = collected(psi, ones)  # [c, 1]
        sharp, shared = self._mul(psi, psi), self._mul(psi, nearby.psi)  # [n, c]
        sharp_sizes = collected(sharp, ones)
        gathered, confident = (
            self._per_size(collected(weights, H), total)  # [c, d]
            for weights, total in ((psi, sizes), (sharp, sharp_sizes))
        )
        alike = agreement, purity = self._row("ReduceSum", shared), self._row("ReduceSum", sharp)  # [n, 1]
        mean_agreement, mean_purity = (self._mean_node(x) for x in (agreement, purity))  # [1]
        shares = self._div(sizes, count)  # [c, 1]
        chance = self._sum_of_squares(shares)
        trust = self._trust(collected(known, ones))  # [c, 1]
        found = collected(self._dots(known, nearby.psi), ones)  # [1, 1]
        right = self._right(found, collected(is_known, ones))
        mean_trust, classes = self._mean_target(trust), self._one_per_class()  # [1]
        of_graph = OfGraph(mean_agreement, chance, classes, right, mean_trust)
        of_targets = OfTargets(sizes, shares, sharp_sizes, trust, gathered, confident, mean_purity)
        v_h = self._node_velocity(cell, relation, nearby, gathered, of_graph, alike, self._mean_node)
        v_c = self._target_velocity(
            cell, of_targets, of_graph, lambda: collected(shared, ones), lambda: self._mean_node(H)
        )
        return {H: v_h, C: v_c} | self._still()
