"""One step of the equivariant cell in phases: the function of `EquivariantCellModel` over nodes in shards.

| phase | runs | computes |
|---|---|---|
| small | once | next targets, and the numbers of the whole graph that the gates of the nodes read |
| update | on each shard | velocities and next states of the nodes |
| message | on each shard | ψ of the nodes, and the rows that neighbours receive |
| receive | on each shard | the sum of the rows of the neighbours |
| absorb | on each shard | sums over the nodes, and the alignment of the state |

The gates read sums over all nodes of what neighbours see. So rows are exchanged before sums are. A step has
two exchanges all the same: it begins with the sums of its state, and ends with the rows and the sums of the
next one. `own` and `received` of a state stay on their shard for the
`update` that follows.

Everything that passes from one phase to another is in full precision.
"""

from abc import ABC, abstractmethod

import onnx

from adar_export.builder import OnnxBuilder
from adar_export.emitters import emitter_for
from adar_export.equivariant_cell import PROXIES, metadata_of, product_type
from adar_export.equivariant_parts import C, EquivariantParts, H, OfGraph, OfTargets, Relation
from adar_runtime.bundle.manifest import PHASES
from adar_runtime.bundle.signature import COUNTS, KNOWN, OF_GRAPH, RECEIVED, STATE, STEP
from adar_train.alignments import ALIGNMENTS
from adar_train.equivariant import EquivariantAdaR

SMALL_STATE = STATE[1:]


def build_equivariant_phases(
    model: EquivariantAdaR, opset: int, precision: str = "fp32"
) -> dict[str, onnx.ModelProto]:
    """Build the models of all phases."""
    phases: tuple[type[_Phase], ...] = (_Absorb, _Small, _Message, _Receive, _Update)
    found = {name: phase(name, model, opset, precision) for name, phase in zip(PHASES, phases, strict=True)}
    return {name: phase.builder.build(metadata_of(model)) for name, phase in found.items()}


class _Phase(EquivariantParts, ABC):
    """A model with some of the pieces of a step."""

    def __init__(self, name: str, model: EquivariantAdaR, opset: int, precision: str) -> None:
        self.builder = OnnxBuilder(f"adar_{name}", opset)
        self._low, self._d = product_type(precision), model.config.hidden
        rows: tuple[int | str, ...] = ("n", "c", PROXIES, PROXIES)
        self._shapes = {name: [size, self._d] for name, size in zip(STATE, rows, strict=True)}
        outputs = self._emit(model)
        for output, (value, shape) in outputs.items():
            self.builder.output(output, value, shape)

    @abstractmethod
    def _emit(self, model: EquivariantAdaR) -> dict[str, tuple[str, list[int | str]]]:
        """Declare the inputs, emit the operators, and return the outputs with their shapes."""

    def _state(self, *names: str) -> None:
        for name in names:
            self.builder.input(name, self._shapes[name])

    def _previous(self, *names: str) -> None:
        self._before = {
            name: self.builder.input(f"previous_{name}_velocity", self._shapes[name]) for name in names
        }

    def _of_nodes(self) -> None:
        self._known = self.builder.input(KNOWN, ["n", "c"])

    def _of_step(self) -> None:
        self._step = self.builder.input("step_code", [self._d])
        self._weight, self._previous_weight = (self.builder.input(name, []) for name in STEP[:2])

    def _total(self, column: str) -> str:
        """Emit the sum of a column [k, 1], as [1, 1]."""
        return self.builder.reduce("ReduceSum", column, 0, keepdims=True)


class _Absorb(_Phase):
    def _emit(self, model: EquivariantAdaR) -> dict[str, tuple[str, list[int | str]]]:
        builder, d, collected = self.builder, self._d, self._collected_from
        self._state(H, C)
        self._of_nodes()
        psi = builder.input("own", ["n", "c"])
        received = builder.input(RECEIVED[1], ["n", "c"])
        self._share = builder.input("share", ["n", 1])
        psi_n = self._mul(received, self._around()[1])
        ones = self._ones(self._share)
        sharp = self._mul(psi, psi)
        columns = (psi, sharp, self._mul(psi, psi_n), self._known, self._mul(self._known, psi_n))
        counts = builder.op("Concat", *(collected(x, ones) for x in columns), axis=1)
        alignment = emitter_for(ALIGNMENTS[model.config.alignment])(builder, H, C)
        return {
            "gathered_sum": (collected(psi, H), ["c", d]),
            "confident_sum": (collected(sharp, H), ["c", d]),
            "counts": (counts, ["c", len(COUNTS)]),
            "total": (collected(ones, H), [1, d]),
            "squares": (collected(self._squares(H), ones), [1, 1]),
            "alignment": (alignment, []),
        }


class _Small(_Phase):
    def _emit(self, model: EquivariantAdaR) -> dict[str, tuple[str, list[int | str]]]:
        builder, d = self.builder, self._d
        self._state(*SMALL_STATE)
        self._previous(*SMALL_STATE)
        sums = [builder.input(f"{name}_sum", ["c", d]) for name in ("gathered", "confident")]
        counts = builder.input("counts", ["c", len(COUNTS)])
        total, squares = builder.input("total", [1, d]), builder.input("squares", [1, 1])
        count = builder.input("count", [])
        self._of_step()
        sizes, sharp_sizes, shared_sizes, labels, found = (
            self._column(counts, number) for number in range(len(COUNTS))
        )
        gathered, confident = (self._per_size(*each) for each in zip(sums, (sizes, sharp_sizes), strict=True))
        agreement, purity = (self._div(self._total(x), count) for x in (shared_sizes, sharp_sizes))  # [1, 1]
        shares, trust = self._div(sizes, count), self._trust(labels)
        right = self._right(self._total(found), self._total(labels))
        of_graph = OfGraph(
            agreement, self._sum_of_squares(shares), self._one_per_class(), right, self._mean_target(trust)
        )
        of_targets = OfTargets(sizes, shares, sharp_sizes, trust, gathered, confident, purity)
        v_c = self._target_velocity(
            model.cell, of_targets, of_graph, lambda: shared_sizes, lambda: self._div(total, count)
        )
        velocities = {C: v_c} | self._still()
        after = {name: self._advanced(name, velocity) for name, velocity in velocities.items()}
        numbers = [*of_graph, self._div(squares, count), self._labelled]
        return {
            **{f"next_{name}": (value, self._shapes[name]) for name, value in after.items()},
            **{f"{name}_velocity": (value, self._shapes[name]) for name, value in velocities.items()},
            "gathered": (gathered, ["c", d]),
            "of_graph": (self._row_of(numbers), [1, OF_GRAPH]),
        }

    def _row_of(self, numbers: list[str]) -> str:
        """Emit numbers of any shape as one row, [1, k]."""
        zero = self._sub(numbers[0], numbers[0])  # [1, 1]
        return self.builder.op("Concat", *(self._add(zero, number) for number in numbers), axis=1)


class _Message(_Phase):
    def _emit(self, _model: EquivariantAdaR) -> dict[str, tuple[str, list[int | str]]]:
        self._state(H, C)
        self._of_nodes()
        relation = self._related()
        sent = self.builder.op("Concat", H, relation.psi, relation.is_known, axis=1)
        return {"own": (relation.psi, ["n", "c"]), "sent": (sent, ["n", "columns"])}


class _Receive(_Phase):
    def _emit(self, _model: EquivariantAdaR) -> dict[str, tuple[str, list[int | str]]]:
        sent = self.builder.input("sent", ["r", "columns"])
        self._declare_tables("n")
        return {"received": (self._received(sent), ["n", "columns"])}


class _Update(_Phase):
    def _emit(self, model: EquivariantAdaR) -> dict[str, tuple[str, list[int | str]]]:
        builder, d = self.builder, self._d
        self._state(H, C)
        self._previous(H)
        self._of_nodes()
        psi = builder.input("own", ["n", "c"])
        widths: tuple[int | str, ...] = (d, "c", 1)
        received = [builder.input(*each) for each in zip(RECEIVED, (["n", k] for k in widths), strict=True)]
        self._share = builder.input("share", ["n", 1])
        gathered = builder.input("gathered", ["c", d])
        of_graph = builder.input("of_graph", [1, OF_GRAPH])
        self._of_step()
        *numbers, mean_square, labelled = (self._column(of_graph, number) for number in range(OF_GRAPH))
        self._choose_task(self._number_of_graph(labelled))
        relation = Relation(self._row("ReduceSum", self._known), self._products(H, C), psi)
        nearby = self._nearby(received)
        shared, sharp = self._mul(psi, nearby.psi), self._mul(psi, psi)
        alike = self._row("ReduceSum", shared), self._row("ReduceSum", sharp)
        velocity = self._node_velocity(
            model.cell, relation, nearby, gathered, OfGraph(*numbers), alike, lambda _: mean_square
        )
        return {
            "next_nodes": (self._advanced(H, velocity), self._shapes[H]),
            "nodes_velocity": (velocity, self._shapes[H]),
        }
