"""What the graphs of a bundle take and give: what this runtime binds, hence what a bundle has to have."""

from collections.abc import Mapping
from typing import NamedTuple

from adar_runtime.errors import BundleError, short
from adar_runtime.graph import EDGE, GRAPH, NODE
from adar_runtime.manifest import Manifest, Port

STATE = ("nodes", "targets", "node_proxies", "target_proxies")
Side = int | str


class Ports(NamedTuple):
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def expected(manifest: Manifest) -> dict[str, Ports]:
    """The ports of every graph, for the dimensions that the manifest gives.

    Free sides: n nodes, m edges, k outputs and, where targets are described, c targets.
    """
    f, d, p = manifest.features, manifest.hidden, manifest.proxies
    c: Side = manifest.targets or "c"
    rows: tuple[Side, ...] = ("n", c, p, p)
    states = [_floats(name, side, d) for name, side in zip(STATE, rows, strict=True)]
    after = [_floats(f"next_{name}", side, d) for name, side in zip(STATE, rows, strict=True)]
    described = [] if manifest.targets else [_floats("target_features", "c", f)]
    edges = [_integers("edge_source", "m"), _integers("edge_target", "m"), _floats("share", "n", 1)]
    step = [_floats("step_code", d), _floats("step_size")]
    pairs = [_integers("pairs", 2, "k")] if manifest.level == EDGE else []
    outputs: dict[str, Side] = {NODE: "n", EDGE: "k", GRAPH: 1}
    alignment = _floats("alignment")
    return {
        "encoder": Ports((_floats("features", "n", f), *described), tuple(states)),
        "cell": Ports((*states, *edges, *step), (*after, alignment)),
        "head": Ports((*states[:2], *pairs), (_floats("scores", outputs[manifest.level], c), alignment)),
    }


def check(manifest: Manifest, real: Mapping[str, Ports]) -> None:
    """Refuse a bundle whose manifest or graphs are not what this runtime is going to bind."""
    for name, ports in expected(manifest).items():
        file = manifest.graphs[name]
        said = Ports(file.inputs, file.outputs)
        for whose, found in (("the manifest's", said), ("the real", real[name])):
            _compare(f"{whose} inputs of {short(file.file)}", ports.inputs, found.inputs)
            _compare(f"{whose} outputs of {short(file.file)}", ports.outputs, found.outputs)


def _compare(what: str, wanted: tuple[Port, ...], found: tuple[Port, ...]) -> None:
    """Both are the same ports, in any order."""
    wrong = set(map(_describe, wanted)) ^ set(map(_describe, found))
    if wrong or len(wanted) != len(found):
        differing = short(", ".join(sorted(wrong)) or "names given twice")
        raise BundleError(f"{what} do not fit the bundle's dimensions: {differing}")


def _describe(port: Port) -> str:
    return f"{port.name} {port.type}[{', '.join(map(str, port.shape))}]"


def _floats(name: str, *shape: Side) -> Port:
    return Port(name, "float32", shape)


def _integers(name: str, *shape: Side) -> Port:
    return Port(name, "int64", shape)
