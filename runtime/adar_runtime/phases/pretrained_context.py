"""New and changed nodes in a graph that a pretrained model answered."""

from collections.abc import Iterator

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import KNOWN
from adar_runtime.graph import Floats, Graph
from adar_runtime.in_context.placement import Placement
from adar_runtime.phases.context import Asked, Context, Kept
from adar_runtime.phases.in_context_step import received_by
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.sharded_step import Arrays


class PretrainedContext(Context):
    """A kept inference of a pretrained model.

    New nodes are placed along the directions of the kept graph, with the kept smoothed rows of their
    neighbours and the kept classes of similar nodes. They have no known class. Directions, class scores,
    targets and the result of the label check stay as they were.
    """

    @property
    def _placement(self) -> Placement:
        assert self.kept.placement is not None
        return self.kept.placement

    @property
    def _width(self) -> int:
        return len(self._placement.basis)

    def _of_nodes(self, asked: Asked) -> Arrays:
        return {KNOWN: self._placement.known(asked.numbers)}

    def _received(self, rows: Floats, own: Floats) -> Arrays:
        return received_by(rows, own.shape[1])

    def _encoded(self, graph: Graph) -> Floats:
        return self._placement.encoded(graph)

    def _placed(self, rounds: Iterator[Floats], asked: Asked) -> Floats:
        return self._placement.nodes(rounds, asked.numbers)


def context_of(models: PhaseModels, manifest: Manifest, kept: Kept) -> Context:
    """The context of a kept inference."""
    return (Context if kept.placement is None else PretrainedContext)(models, manifest, kept)
