"""The encoder, which runs before the loop, and the head, which runs after it, on the loop's buffers."""

from collections.abc import Mapping

from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.backends.tensorrt.context import Context, Shape
from adar_runtime.backends.tensorrt.cuda import Arena, Array, Cuda, Memory
from adar_runtime.bundle.signature import STATE
from adar_runtime.graph import Floats


class Encoder:
    """Features -> the first state, one block of nodes after the other."""

    def __init__(self, cuda: Cuda, context: Context) -> None:
        self._cuda = cuda
        self._context = context

    def run(self, profile: int, prepared: PreparedGraph, to: Arena) -> None:
        """Write the first state, with a velocity of zero."""
        self._cuda.clear(to.memory)
        graph, targets, blocks = prepared.graph, prepared.target_features, prepared.feature_blocks()
        shapes: dict[str, Shape] = {"features": (max(stop - start for start, stop in blocks), graph.width)}
        if targets is not None:
            shapes["target_features"] = targets.shape
        inputs = Arena(self._cuda, shapes)
        if targets is not None:
            self._cuda.upload(inputs.addresses["target_features"], targets)
        for start, stop in blocks:
            self._cuda.upload(inputs.addresses["features"], graph.rows(start, stop))
            shapes["features"] = (stop - start, graph.width)
            scratch = self._cuda.allocate(self._context.fit(profile, shapes))
            addresses = {name: to.addresses[name] for name in STATE}
            addresses["nodes"] += start * to.shapes["nodes"][1] * 4
            self._context.bind(inputs.addresses | addresses, scratch)
            self._context.run()
            self._cuda.wait()  # before the next block overwrites this one
        if prepared.smoothing is not None:
            encoded = self._cuda.download(to.addresses["nodes"], to.shapes["nodes"])
            self._cuda.upload(to.addresses["nodes"], prepared.first_nodes(encoded))


class Head:
    """A state -> its scores and alignment."""

    def __init__(self, cuda: Cuda, context: Context) -> None:
        self._cuda = cuda
        self._context = context

    def fit(self, profile: int, shapes: Mapping[str, Shape], pairs: Array | None, output: Shape) -> None:
        """Prepare for states of these shapes."""
        self._pairs: Memory | None = None
        if pairs is not None:
            self._pairs = self._cuda.allocate(pairs.nbytes)
            self._cuda.upload(self._pairs.address, pairs)
        self._out = Arena(self._cuda, {"scores": output, "alignment": ()})
        self._scratch = self._cuda.allocate(self._context.fit(profile, shapes))

    @property
    def bytes(self) -> int:
        """Device memory of the pairs, the scores and the scratch memory."""
        return self._out.memory.size + self._scratch.size + (self._pairs.size if self._pairs else 0)

    def run(self, state: Arena) -> float:
        """Compute the scores of a state, and return its alignment."""
        addresses = {name: state.addresses[name] for name in ("nodes", "targets")} | self._out.addresses
        if self._pairs is not None:
            addresses["pairs"] = self._pairs.address
        self._context.bind(addresses, self._scratch)
        self._context.run()
        return float(self._cuda.download(self._out.addresses["alignment"], ()))

    def scores(self) -> Floats:
        """Scores of the state of the last `run`."""
        return self._cuda.download(self._out.addresses["scores"], self._out.shapes["scores"])
