"""One step in phases, as ONNX models: the function of `FusedCell` when the nodes are split into shards.

| phase | runs | computes |
|---|---|---|
| absorb | on each shard | what proxies and targets collect from the nodes, and the alignment of the state |
| small | once | next proxies and targets, and the small matrices for messages and velocities |
| message | on each shard | what each node adds to its own sum, and what it sends to its neighbours |
| receive | on each shard | the sum of what the neighbours sent |
| update | on each shard | velocities and next states of the nodes |

A softmax over all nodes is combined from the shards: each shard returns the largest logit of a row, the sum
of exponentials relative to it, and the mean of its values with its own shares as weights.

Everything that passes from one phase to another is in full precision.
"""

import numpy as np
import onnx
from numpy.typing import NDArray

from adar_export.builder import OnnxBuilder
from adar_export.cell_ops import CellOps, Factor
from adar_export.cell_parts import CellParts
from adar_export.emitters import emitter_for
from adar_export.precision import Precision
from adar_runtime.bundle.manifest import PHASES
from adar_runtime.bundle.signature import COLLECTING, STATE, STEP
from adar_train.alignments import ALIGNMENTS
from adar_train.model import AdaR

H, SMALL_STATE = STATE[0], STATE[1:]
ABSTRACTIONS = {"targets": "target_update", "node_proxies": "node_abstraction"}
"""The part of the cell in which each state collects from the nodes."""

Request = tuple[str, NDArray[np.float32], NDArray[np.float32]]
"""Name, layer and parts of a factor that `message` takes from `small`."""


def build_phases(
    model: AdaR, opset: int, precision: Precision, metadata: dict[str, str]
) -> dict[str, onnx.ModelProto]:
    """Build the models of all phases."""
    message = _Message(model, opset, precision)
    phases = (
        _Absorb(model, opset, precision),
        _SmallPhase(model, opset, precision, message.requests),
        message,
        _Receive(model, opset, precision),
        _Update(model, opset, precision),
    )
    return {name: phase.builder.build(metadata) for name, phase in zip(PHASES, phases, strict=True)}


class _Phase(CellParts):
    """A model with some of the pieces of a step."""

    def __init__(self, name: str, model: AdaR, opset: int, precision: Precision) -> None:
        self.builder = OnnxBuilder(f"adar_{name}", opset, precision.real)
        self._shapes = self._shapes_of(model)
        self._d = model.config.hidden
        self._ops = CellOps(model, self.builder, precision, "step_code")

    def _state(self, *names: str) -> None:
        for name in names:
            self.builder.input(name, self._shapes[name])

    def _previous(self, *names: str) -> None:
        self._before = {
            name: self.builder.input(f"previous_{name}_velocity", self._shapes[name]) for name in names
        }

    def _outputs(self, **values: tuple[str, list[int | str]]) -> None:
        """Declare outputs in full precision, after the last operator."""
        full = {name: (self._ops.full(value), shape) for name, (value, shape) in values.items()}
        for name, (value, shape) in full.items():
            self.builder.output(name, value, shape)


class _Absorb(_Phase):
    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        super().__init__("absorb", model, opset, precision)
        builder, ops = self.builder, self._ops
        self._state(H, *COLLECTING)
        one = builder.weight("one", np.array(1.0))
        found: dict[str, tuple[str, list[int | str]]] = {}
        for name in COLLECTING:
            side, d = self._shapes[name]
            logits = ops.logits(name, H)
            shares = builder.op("Softmax", logits, axis=1)
            # The largest share is 1 / Σ exp(logit - largest logit).
            largest = builder.reduce("ReduceMax", shares, 1, keepdims=True)
            found |= {
                f"{name}_diffused": (self._collected(ABSTRACTIONS[name], shares, H), [side, d]),
                f"{name}_maximum": (builder.reduce("ReduceMax", logits, 1, keepdims=True), [side, 1]),
                f"{name}_total": (builder.op("Div", one, largest), [side, 1]),
            }
        alignment = emitter_for(ALIGNMENTS[model.config.alignment])(builder, H, COLLECTING[0])
        self._outputs(**found, alignment=(alignment, []))


class _SmallPhase(_Phase):
    def __init__(self, model: AdaR, opset: int, precision: Precision, requests: list[Request]) -> None:
        super().__init__("small", model, opset, precision)
        builder, ops, d = self.builder, self._ops, self._d
        self._state(*SMALL_STATE)
        self._previous(*SMALL_STATE)
        diffused = {
            ABSTRACTIONS[name]: builder.input(f"{name}_diffused", self._shapes[name]) for name in COLLECTING
        }
        builder.input("step_code", [d])
        self._weight, self._previous_weight, self._lead = (builder.input(name, []) for name in STEP)
        small = self._small(lambda name, _: diffused[name])
        values = self._values(small)
        factors = [ops.message_factor(name, layer, values, parts) for name, layer, parts in requests]
        after = {name: self._advanced(name, velocity) for name, velocity in small.velocities.items()}
        proxies_led = self._led("target_proxies", small.velocities["target_proxies"])
        self._outputs(
            **{f"next_{name}": (value, self._shapes[name]) for name, value in after.items()},
            **{f"{name}_velocity": (value, self._shapes[name]) for name, value in small.velocities.items()},
            led_targets=(small.targets_led, self._shapes["targets"]),
            led_node_proxies=(small.pn_led, self._shapes["node_proxies"]),
            factors=(self._stacked(factors), ["factors", "columns", d]),
            relation_kernel=(self._relation_kernel(proxies_led), [d, d]),
            relation_row=(ops.step_bias("velocity"), [d]),
        )

    def _stacked(self, factors: list[Factor]) -> str:
        """Emit all factors as one value [factors, p + c + d, d]: all variants have the same ports."""
        builder, axis = self.builder, self.builder.weight("axis_0", np.array([0]))
        blocks = [builder.op("Unsqueeze", self._ops.full(str(factor)), axis) for factor in factors]
        return builder.op("Concat", *blocks, axis=0)


class _Message(_Phase):
    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        super().__init__("message", model, opset, precision)
        builder = self.builder
        self._state(H)
        targets_led, pn_led = (builder.input(f"led_{name}", self._shapes[name]) for name in COLLECTING)
        factors = builder.input("factors", ["factors", "columns", self._d])
        self._ops = ops = _MessageOps(model, builder, precision, factors)
        left = self._left(H, pn_led, targets_led)
        own, sent = emitter_for(type(model.cell.message))(ops, left, ("", ""))
        if sent == own:  # a variant without layers; a model has two names for one value through an operator
            sent = builder.op("Identity", own)
        self.requests = ops.requests
        self._outputs(own=(own, self._shapes[H]), sent=(sent, self._shapes[H]))


class _MessageOps(CellOps):
    """Takes the small factors of the messages from an input, and records which ones are used."""

    def __init__(self, model: AdaR, builder: OnnxBuilder, precision: Precision, factors: str) -> None:
        super().__init__(model, builder, precision, "")
        self._factors = factors
        self.requests: list[Request] = []

    def message_factor(
        self,
        name: str,
        layer: NDArray[np.float32],
        values: tuple[str, str],  # noqa: ARG002
        parts: NDArray[np.float32],
    ) -> Factor:
        """Read the next factor."""
        index = self.builder.weight(f"factor_{len(self.requests)}", np.array(len(self.requests)))
        self.requests.append((name, layer, parts))
        return self.builder.op("Gather", self.low(self._factors), index, axis=0)


class _Receive(_Phase):
    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        super().__init__("receive", model, opset, precision)
        sent = self.builder.input("sent", ["r", self._d])
        self._declare_tables("n")
        self._outputs(received=(self._received(self._ops.low(sent)), self._shapes[H]))


class _Update(_Phase):
    def __init__(self, model: AdaR, opset: int, precision: Precision) -> None:
        super().__init__("update", model, opset, precision)
        builder, d = self.builder, self._d
        self._state(H)
        self._previous(H)
        own, received = (builder.input(name, self._shapes[H]) for name in ("own", "received"))
        self._share = builder.input("share", ["n", 1])
        kernel, row = builder.input("relation_kernel", [d, d]), builder.input("relation_row", [d])
        self._weight, self._previous_weight = (builder.input(name, []) for name in STEP[:2])
        local = self._averaged(own, received)
        velocity = self._velocity("velocity", H, local, lambda: self._ops.product(H, kernel, row))
        self._outputs(
            next_nodes=(self._advanced(H, velocity), self._shapes[H]),
            nodes_velocity=(velocity, self._shapes[H]),
        )
