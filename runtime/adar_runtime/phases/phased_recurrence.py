"""An inference by the phases of a step on one shard, which keeps what new nodes need."""

from adar_runtime.backends import CPU
from adar_runtime.backends.onnxruntime.recurrence import encode
from adar_runtime.backends.onnxruntime.sessions import backend_errors
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle.signature import STATE
from adar_runtime.graph import Floats
from adar_runtime.loop.solvers import Motion, Move
from adar_runtime.phases.in_context_step import state_in_shards
from adar_runtime.phases.kept_calls import KeptCalls
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.sharded_step import Arrays, Shard

H, TARGETS = STATE[:2]


class PhasedRecurrence:
    """The states of one graph; see `adar_runtime.backends.Recurrence`.

    Attributes:
        encoded: The nodes after the encoder, [n, d].
        smoothed: The scaled nodes before each round of smoothing, [n, d] each.
    """

    name = CPU

    def __init__(self, models: PhaseModels, prepared: PreparedGraph, kept: KeptCalls) -> None:
        self._models, self._calls = models, kept
        self.smoothed: list[Floats] = []
        first = dict(
            zip(STATE, encode(models.sessions["encoder"], prepared.without_smoothing()), strict=True)
        )
        self.encoded: Floats = first[H]
        if prepared.smoothing is not None:
            first[H] = prepared.smoothing(first[H], self.smoothed.append)
        self._current = state_in_shards(models, [Shard.whole(prepared.neighbours)], first, prepared.known)
        self._kept: tuple[Arrays, int] | None = None  # the kept state, and the calls that lead to it

    @property
    def alignment(self) -> float:
        return self._current.alignment

    @property
    def motion(self) -> Motion:
        return self._current.motion

    def step(self, code: Floats, move: Move) -> None:
        with backend_errors():
            self._current.step(code, move)
        self._calls.add(self._current, move)

    def keep(self) -> None:
        self._kept = self._current.state, len(self._calls)

    def recall(self) -> None:
        if self._kept is not None:
            state, length = self._kept
            self._calls.cut(length)
            self._current.restart(state)

    def finish(self) -> Floats:
        """Forget the calls after the state that the answers come from, and return its targets."""
        if self._kept is None:
            return self._current.state[TARGETS]
        state, length = self._kept
        self._calls.cut(length)
        return state[TARGETS]

    def scores(self, *, kept: bool) -> Floats:
        state = self._kept[0] if kept and self._kept is not None else self._current.state
        return self._models.run("head", {H: state[H], TARGETS: state[TARGETS]})["scores"]

    def state(self) -> dict[str, Floats]:
        return {name: array.copy() for name, array in self._current.state.items()}
