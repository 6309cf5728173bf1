"""One step as an ONNX model arranged for speed: the same function as `adar_train.cell.Cell`, with less work.

Each of these rearrangements is exact up to rounding:

* The messages M = [M_pn ‖ M_cn ‖ H] are never built. M = left @ right with `left` [n, p + c + d] and a small
  `right`, which is multiplied with the weights first.
* The velocity's first layer moves inside the sum over neighbours, which then has d columns.
* The relation H P^(c)ᵀ is multiplied with its weights first too: H (P^(c)ᵀ W), where the factor is [d, d].
* The step encoding is one row, added with the bias.
* 1/√d scales the smaller matrix of each product.
* Neighbours are summed with tables (`adar_runtime.graph.neighbour_tables`), by operators of every backend.

The next state is X + weight · V + previous_weight · V_before with V the velocity. (Δt, 0) is Euler's step;
other solvers (`adar_runtime.loop.solvers`) use other weights.

`cell_parts.py` holds the pieces that all variants share. Parts that differ are emitted through
`emitters.EMITTERS`.
"""

from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps
from adar_export.cell_parts import CellParts
from adar_export.emitters import emitter_for
from adar_export.onnx_ops import root_mean_square
from adar_export.precision import Precision
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_train.alignments import ALIGNMENTS
from adar_train.model import AdaR


class FusedCell(CellParts):
    """The five lines of the appendix's "Velocity Computing", in `builder` when constructed."""

    NAME = "adar_cell"

    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        self.builder = OnnxBuilder(self.NAME, opset, precision.real)
        self._shapes = self._shapes_of(model)
        self._is_weighted = model.config.edge_weights
        for name in STATE:
            self.builder.input(name, self._shapes[name])
        self._before = {
            name: self.builder.input(f"previous_{name}_velocity", self._shapes[name]) for name in STATE
        }
        self._declare_graph()
        self._declare_step(model.config.hidden)
        self._ops = self._make_ops(model, precision)
        self._local_messages = emitter_for(type(model.cell.message))
        self._declare_outputs(model, self._velocities())

    def _declare_graph(self) -> None:
        """Declare the inputs that describe the edges."""
        self._declare_tables("n")
        self._share = self.builder.input("share", ["n", 1])
        self._sample = self.builder.input("sample", ["s"], "int32")

    def _declare_step(self, d: int) -> None:
        """Declare the inputs that change before each call."""
        self._step = self.builder.input("step_code", [d])
        self._weight, self._previous_weight, self._lead = (self.builder.input(name, []) for name in STEP)

    def _make_ops(self, model: AdaR, precision: Precision) -> CellOps:
        return CellOps(model, self.builder, precision, self._step)

    def _velocities(self) -> dict[str, str]:
        """Emit the five lines up to the velocity of each state."""
        h, _, _, pc = STATE
        small = self._small(lambda name, x_sur: self._diffused(name, h, x_sur))

        # Eq. local of M = left @ right
        left = self._left(h, small.pn_led, small.targets_led)  # [n, p + c + d]
        own, sent = self._local_messages(self._ops, left, self._values(small))  # [n, d], [n, d]
        local = self._averaged(self._ops.full(own), self._received(sent))  # [n, d]

        # Eq. gnode, with the relation to the updated target proxies
        v_pc = small.velocities[pc]
        v_h = self._velocity("velocity", h, local, lambda: self._node_relation(h, self._led(pc, v_pc)))
        return {h: v_h} | small.velocities

    def _declare_outputs(self, model: AdaR, velocities: dict[str, str]) -> None:
        """Emit the next states and the scalars, and declare the outputs."""
        builder = self.builder
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        scalars = self._scalars(model, velocities["nodes"], after["nodes"], after["targets"])
        for name, value in after.items():
            builder.output(f"next_{name}", value, self._shapes[name])
        for name, value in velocities.items():
            builder.output(f"{name}_velocity", value, self._shapes[name])
        for name, value in scalars.items():
            builder.output(name, value, self._shapes["nodes"][:-2])  # [], or one per graph of a batch

    def _scalars(self, model: AdaR, velocity: str, nodes: str, targets: str) -> dict[str, str]:
        """Emit the alignment of the next state and the motion of the nodes in this call."""
        builder = self.builder
        alignment = emitter_for(ALIGNMENTS[model.config.alignment])(builder, nodes, targets)
        now, before = (
            builder.op("Gather", v, self._sample, axis=0) for v in (velocity, self._before["nodes"])
        )
        speed = root_mean_square(builder, now)
        turn = root_mean_square(builder, builder.op("Sub", now, before))
        return dict(zip(SCALARS, (alignment, speed, turn), strict=True))

    def _node_relation(self, h: str, proxies: str) -> str:
        """Emit what relation and step add to the nodes' velocity: H times a [d, d] matrix, plus a row."""
        return self._ops.product(h, self._relation_kernel(proxies), self._ops.step_bias("velocity"))
