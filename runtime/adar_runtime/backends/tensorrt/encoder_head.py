"""What is run once, before and after the loop: the encoder and the head, on the buffers of the loop."""

from collections.abc import Iterator, Mapping

from adar_runtime.backends.tensorrt.context import Context, Shape
from adar_runtime.backends.tensorrt.cuda import Arena, Array, Cuda, Memory
from adar_runtime.bundle.signature import STATE
from adar_runtime.graph import Floats, Graph


class Encoder:
    """Features -> the first state, block by block of nodes."""

    def __init__(self, cuda: Cuda, context: Context) -> None:
        self._cuda = cuda
        self._context = context

    def run(self, profile: int, graph: Graph, rows: int, to: Arena) -> None:
        """Write the first state; the velocity before it is zero."""
        self._cuda.clear(to.memory)
        shapes: dict[str, Shape] = {"features": (min(graph.nodes, 2 * rows), graph.width)}
        if graph.target_features is not None:
            shapes["target_features"] = graph.target_features.shape
        inputs = Arena(self._cuda, shapes)
        if graph.target_features is not None:
            self._cuda.upload(inputs.addresses["target_features"], graph.target_features)
        for start, stop in spans(graph.nodes, rows):
            self._cuda.upload(inputs.addresses["features"], graph.rows(start, stop))
            shapes["features"] = (stop - start, graph.width)
            scratch = self._cuda.allocate(self._context.fit(profile, shapes))
            addresses = {name: to.addresses[name] for name in STATE}
            addresses["nodes"] += start * to.shapes["nodes"][1] * 4
            self._context.bind(inputs.addresses | addresses, scratch)
            self._context.run()
            self._cuda.wait()  # before the next block takes the place of this one


def spans(nodes: int, rows: int) -> Iterator[tuple[int, int]]:
    """Blocks of at least so many nodes, or all of them: the last one has what is left as well."""
    blocks = max(1, nodes // rows)
    for block in range(blocks):
        yield block * rows, nodes if block == blocks - 1 else (block + 1) * rows


class Head:
    """A state -> scores, and the alignment."""

    def __init__(self, cuda: Cuda, context: Context) -> None:
        self._cuda = cuda
        self._context = context

    def fit(self, profile: int, shapes: Mapping[str, Shape], pairs: Array | None, output: Shape) -> None:
        """Be ready for states of these shapes."""
        self._pairs: Memory | None = None
        if pairs is not None:
            self._pairs = self._cuda.allocate(pairs.nbytes)
            self._cuda.upload(self._pairs.address, pairs)
        self._out = Arena(self._cuda, {"scores": output, "alignment": ()})
        self._scratch = self._cuda.allocate(self._context.fit(profile, shapes))

    def run(self, state: Arena) -> float:
        """The alignment of a state; its scores are ready too."""
        addresses = {name: state.addresses[name] for name in ("nodes", "targets")} | self._out.addresses
        if self._pairs is not None:
            addresses["pairs"] = self._pairs.address
        self._context.bind(addresses, self._scratch)
        self._context.run()
        return float(self._cuda.download(self._out.addresses["alignment"], ()))

    def scores(self) -> Floats:
        """Of the state that was run last."""
        return self._cuda.download(self._out.addresses["scores"], self._out.shapes["scores"])
