"""One step of many small graphs as one ONNX model: the function of `FusedCell` for each graph of a batch.

A small graph takes less time to compute than to call: a batch of b graphs takes one call. The states are
[b, n, d], [b, c, d] and [b, p, d], where n is the number of nodes of the largest graph; the other graphs are
padded. Each graph has its own time and its own weights of the solver, so the graphs of a batch can be at
different steps, and a graph with weights of zero stays where it is.

The neighbour tables are those of all graphs together, over the rows of [b · n, d].
"""

from adar_export.batched_alignments import BATCHED_ALIGNMENTS
from adar_export.batched_ops import BatchedOps
from adar_export.fused_cell import FusedCell
from adar_export.onnx_ops import root_mean_squares
from adar_export.precision import Precision
from adar_runtime.bundle.signature import BATCH, SCALARS, STATE, STEP
from adar_runtime.errors import ExportError
from adar_train.alignments import ALIGNMENTS
from adar_train.model import AdaR


class BatchedCell(FusedCell):
    """The five lines of the appendix's "Velocity Computing" for a batch, in `builder` when constructed."""

    NAME = "adar_batched_cell"

    def _shapes_of(self, model: AdaR) -> dict[str, list[int | str]]:
        return {name: ["b", *shape] for name, shape in super()._shapes_of(model).items()}

    def _declare_graph(self) -> None:
        """Declare the neighbour tables, and what distinguishes nodes from padding."""
        builder = self.builder
        self._declare_tables("rows")
        self._share = builder.input("share", ["b", "n", 1])
        absent, present = BATCH
        self._absent = builder.input(absent, ["b", 1, "n"])
        self._present = builder.input(present, ["b", "n", 1])

    def _declare_step(self, d: int) -> None:
        builder = self.builder
        self._step = builder.input("step_code", ["b", 1, d])
        self._weight, self._previous_weight, self._lead = (builder.input(name, ["b", 1, 1]) for name in STEP)

    def _make_ops(self, model: AdaR, precision: Precision) -> BatchedOps:
        return BatchedOps(model, self.builder, precision, self._step, self._absent)

    def _received(self, sent: str) -> str:
        """Emit the sum over neighbours on the rows of all graphs."""
        builder = self.builder
        summed = super()._received(builder.op("Flatten", sent, axis=2))
        return builder.op("Reshape", summed, builder.op("Shape", STATE[0], type="int64"))

    def _scalars(self, model: AdaR, velocity: str, nodes: str, targets: str) -> dict[str, str]:
        """Emit the scalars of each graph, [b]. Every node is in the sample: the graphs are small."""
        builder, d = self.builder, model.config.hidden
        alignment = ALIGNMENTS[model.config.alignment]
        if alignment not in BATCHED_ALIGNMENTS:
            raise ExportError(
                f"{alignment.__qualname__} cannot be exported for batches: add its emitter to "
                "adar_export.batched_alignments.BATCHED_ALIGNMENTS"
            )
        turn = builder.op("Sub", velocity, self._before[STATE[0]])
        moved = (root_mean_squares(builder, rows, self._present, d) for rows in (velocity, turn))
        found = BATCHED_ALIGNMENTS[alignment](builder, nodes, targets, self._present), *moved
        return dict(zip(SCALARS, found, strict=True))
