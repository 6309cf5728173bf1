"""Inputs and outputs of a bundle's models: those that this runtime binds, so every bundle must have them."""

from collections.abc import Mapping
from typing import NamedTuple

from adar_runtime.bundle.manifest import BATCHED_CELL, EDGES, PHASES, TABLES, Manifest, Port
from adar_runtime.errors import BundleError, short
from adar_runtime.graph import EDGE, GRAPH, NODE
from adar_runtime.graph.neighbour_tables import JOINS, LEAVES

STATE = ("nodes", "targets", "node_proxies", "target_proxies")
STEP = ("weight", "previous_weight", "lead")  # the numbers of a Move that a cell takes
SCALARS = ("alignment", "speed", "turn")  # a cell's outputs about the next state and the motion of the nodes
COLLECTING = ("targets", "node_proxies")  # the states that collect from all nodes, in the phase absorb
KNOWN = "known"  # the input of an in-context cell for the known classes of the nodes
COUNTS = ("sizes", "sharp_sizes", "shared_sizes", "labels", "found")  # sums of each class, in absorb
ABSORBED = ("gathered_sum", "confident_sum", "counts", "total", "squares")  # sums of an in-context absorb
RECEIVED = ("received_nodes", "received_relation", "received_known")  # of an in-context cell's neighbours
OF_GRAPH = 7  # numbers of the whole graph that the nodes of an in-context cell read
BATCH = ("absent", "present")  # a batched cell's inputs that distinguish nodes from padding
IN_CONTEXT_BATCH = ("is_node", "is_target")  # the same of an in-context cell, whose classes are padded too
Side = int | str


class Ports(NamedTuple):
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def expected(manifest: Manifest) -> dict[str, Ports]:
    """The ports of every model, for the dimensions in the manifest.

    Dynamic dimensions: n nodes, m edges, s sampled nodes, k outputs, the neighbour tables and, where graphs
    describe their targets, c targets. In a batched cell: b graphs, and all their rows together.
    """
    f, d, p = manifest.features, manifest.hidden, manifest.proxies
    c: Side = manifest.targets or "c"
    rows: tuple[Side, ...] = ("n", c, p, p)
    states = [_floats(name, side, d) for name, side in zip(STATE, rows, strict=True)]
    after = [_floats(f"next_{name}", side, d) for name, side in zip(STATE, rows, strict=True)]
    described = [] if manifest.targets else [_floats("target_features", "c", f)]
    before = [_floats(f"previous_{port.name}_velocity", *port.shape) for port in states]
    velocities = [_floats(f"{port.name}_velocity", *port.shape) for port in states]
    structure = structure_ports(manifest.aggregation, edge_weights=manifest.edge_weights)
    known = [_floats(KNOWN, "n", "c")] if manifest.in_context else []
    step = [_floats("step_code", d), *map(_floats, STEP)]
    pairs = [_integers("pairs", 2, "k")] if manifest.level == EDGE else []
    outputs: dict[str, Side] = {NODE: "n", EDGE: "k", GRAPH: 1}
    alignment = _floats("alignment")
    return {
        "encoder": Ports((_floats("features", "n", f), *described), tuple(states)),
        "cell": Ports(
            (*states, *before, *structure, *known, *step), (*after, *velocities, *map(_floats, SCALARS))
        ),
        "head": Ports((*states[:2], *pairs), (_floats("scores", outputs[manifest.level], c), alignment)),
        BATCHED_CELL: Ports(
            (
                *map(_batched, (*states, *before)),
                *(_IN_CONTEXT_BATCHED_STRUCTURE if manifest.in_context else _BATCHED_STRUCTURE),
                *(WEIGHTS[TABLES] if manifest.edge_weights else ()),
                *_BATCHED_STEP,
                _floats("step_code", "b", 1, d),
            ),
            (*map(_batched, (*after, *velocities)), *(_floats(name, "b") for name in SCALARS)),
        ),
        **(_in_context_phases if manifest.in_context else _phases)(d, dict(zip(STATE, rows, strict=True))),
    }


def _phases(d: int, rows: Mapping[str, Side]) -> dict[str, Ports]:
    """The ports of every phase of a step: r rows that were sent, and small matrices of `columns` rows."""

    def state(form: str, *names: str) -> list[Port]:
        return [_floats(form.format(name), rows[name], d) for name in names]

    nodes, small = STATE[0], STATE[1:]
    diffused = state("{}_diffused", *COLLECTING)
    sums = [_floats(f"{name}_{part}", rows[name], 1) for name in COLLECTING for part in ("maximum", "total")]
    led, factors = state("led_{}", *COLLECTING), _floats("factors", "factors", "columns", d)
    relation = [_floats("relation_kernel", d, d), _floats("relation_row", d)]
    messages, received = [_floats("own", "n", d), _floats("sent", "n", d)], _floats("received", "n", d)
    step = list(map(_floats, STEP))
    before, after = state("previous_{}_velocity", *small), state("next_{}", *small)
    ports: tuple[tuple[list[Port], list[Port]], ...] = (
        (state("{}", nodes, *COLLECTING), [*diffused, *sums, _floats("alignment")]),
        (
            [*state("{}", *small), *before, *diffused, _floats("step_code", d), *step],
            [*after, *state("{}_velocity", *small), *led, factors, *relation],
        ),
        ([*state("{}", nodes), *led, factors], messages),
        ([_floats("sent", "r", d), *_TABLES, Port("place", "int32", ("n",))], [received]),
        (
            [
                *state("{}", nodes),
                *state("previous_{}_velocity", nodes),
                messages[0],
                received,
                _floats("share", "n", 1),
                *relation,
                *step[:2],
            ],
            [*state("next_{}", nodes), *state("{}_velocity", nodes)],
        ),
    )
    return {
        name: Ports(tuple(inputs), tuple(outputs))
        for name, (inputs, outputs) in zip(PHASES, ports, strict=True)
    }


def _in_context_phases(d: int, rows: Mapping[str, Side]) -> dict[str, Ports]:
    """The same for an in-context cell. Rows have the node, its classes, and whether these are known."""

    def state(form: str, *names: str) -> tuple[Port, ...]:
        return tuple(_floats(form.format(name), rows[name], d) for name in names)

    h, small = STATE[0], STATE[1:]
    of_nodes = (*state("{}", h, small[0]), _floats(KNOWN, "n", "c"))
    own, share = _floats("own", "n", "c"), _floats("share", "n", 1)
    shapes: tuple[tuple[Side, ...], ...] = (("c", d), ("c", d), ("c", len(COUNTS)), (1, d), (1, 1))
    sums = tuple(_floats(name, *shape) for name, shape in zip(ABSORBED, shapes, strict=True))
    widths: tuple[Side, ...] = (d, "c", 1)
    received = tuple(_floats(name, "n", width) for name, width in zip(RECEIVED, widths, strict=True))
    step = (_floats("step_code", d), *map(_floats, STEP[:2]))
    for_update = (_floats("gathered", "c", d), _floats("of_graph", 1, OF_GRAPH))
    moved = (*state("next_{}", *small), *state("{}_velocity", *small))
    return {
        "absorb": Ports((*of_nodes, own, received[1], share), (*sums, _floats("alignment"))),
        "small": Ports(
            (*state("{}", *small), *state("previous_{}_velocity", *small), *sums, _floats("count"), *step),
            (*moved, *for_update),
        ),
        "message": Ports(of_nodes, (own, _floats("sent", "n", "columns"))),
        "receive": Ports(
            (_floats("sent", "r", "columns"), *_TABLES, Port("place", "int32", ("n",))),
            (_floats("received", "n", "columns"),),
        ),
        "update": Ports(
            (*of_nodes, *state("previous_{}_velocity", h), own, *received, share, *for_update, *step),
            (*state("next_{}", h), *state("{}_velocity", h)),
        ),
    }


def check(manifest: Manifest, real: Mapping[str, Ports]) -> None:
    """Refuse a bundle whose manifest or models do not have the ports that this runtime binds."""
    found = problems(manifest, real)
    if found:
        raise BundleError(found[0])


def problems(manifest: Manifest, real: Mapping[str, Ports]) -> list[str]:
    """Every input or output, in the manifest or in these models, that differs from the expected one."""
    found = []
    ports_of = expected(manifest)
    for name, has_really in real.items():
        ports, file = ports_of[name], manifest.onnx_file(name)
        declared = Ports(file.inputs, file.outputs)
        for whose, has in (("the manifest's", declared), ("the actual", has_really)):
            found += _differences(f"{whose} inputs of {short(file.file)}", ports.inputs, has.inputs)
            found += _differences(f"{whose} outputs of {short(file.file)}", ports.outputs, has.outputs)
    return found


def _differences(what: str, wanted: tuple[Port, ...], found: tuple[Port, ...]) -> list[str]:
    """The problem, unless both are the same ports in any order."""
    wrong = set(map(_describe, wanted)) ^ set(map(_describe, found))
    if not wrong and len(wanted) == len(found):
        return []
    differing = short(", ".join(sorted(wrong)) or "duplicate names")
    return [f"{what} do not match the bundle's dimensions: {differing}"]


def _describe(port: Port) -> str:
    return f"{port.name} {port.type}[{', '.join(map(str, port.shape))}]"


def _batched(port: Port) -> Port:
    return Port(port.name, port.type, ("b", *port.shape))


def _floats(name: str, *shape: Side) -> Port:
    return Port(name, "float32", shape)


def _integers(name: str, *shape: Side) -> Port:
    return Port(name, "int64", shape)


def _table(kind: str, index: int) -> Port:
    return Port(f"{kind}_{index}", "int32", (f"{kind}_rows_{index}", f"{kind}_width_{index}"))


_TABLES = (
    *(_table("leaf", index) for index in range(LEAVES)),
    *(_table("join", index) for index in range(JOINS)),
)
_BATCHED_EDGES = (*_TABLES, Port("place", "int32", ("rows",)), _floats("share", "b", "n", 1))
_BATCHED_STRUCTURE = (
    *_BATCHED_EDGES,
    _floats(BATCH[0], "b", 1, "n"),
    _floats(BATCH[1], "b", "n", 1),
)
_IN_CONTEXT_BATCHED_STRUCTURE = (
    *_BATCHED_EDGES,
    _floats(KNOWN, "b", "n", "c"),
    _floats(IN_CONTEXT_BATCH[0], "b", "n", 1),
    _floats(IN_CONTEXT_BATCH[1], "b", 1, "c"),
)
_BATCHED_STEP = tuple(_floats(name, "b", 1, 1) for name in STEP)
STRUCTURES: dict[str, tuple[Port, ...]] = {
    TABLES: (
        *_TABLES,
        Port("place", "int32", ("n",)),
        Port("sample", "int32", ("s",)),
        _floats("share", "n", 1),
    ),
    EDGES: (_integers("edge_source", "m"), _integers("edge_target", "m")),
}
"""The inputs of a cell that describe the edges, by the name of its aggregation."""

WEIGHTS: dict[str, tuple[Port, ...]] = {
    TABLES: tuple(
        _floats(f"leaf_weight_{index}", f"leaf_rows_{index}", 1, f"leaf_width_{index}")
        for index in range(LEAVES)
    ),
    EDGES: (_floats("edge_weight", "m"),),
}
"""The inputs of a cell for the weights of the edges, by the name of its aggregation."""


def structure_ports(aggregation: str, *, edge_weights: bool) -> tuple[Port, ...]:
    """The inputs of a cell that describe the edges."""
    return STRUCTURES[aggregation] + (WEIGHTS[aggregation] if edge_weights else ())
