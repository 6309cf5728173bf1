"""Import NetworkX graphs: from memory, and from `.graphml` and `.gml` files. Neither format can run code."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adar_runtime.errors import AdarError, GraphError, MissingExtraError, reason, short
from adar_runtime.graph import MASKS, FeatureEncoding, Floats
from adar_runtime.graph.formats._columns import column_of
from adar_runtime.graph.formats._edge_weights import WEIGHT_COLUMN, read_weights
from adar_runtime.graph.formats._rows import check_width
from adar_runtime.graph.formats._tables import LABEL_COLUMNS, Imported, TableChoice, graph_from_columns
from adar_runtime.graph.labels import listed
from adar_runtime.graph.limits import CELL_BYTES, ByteBudget


def read(path: Path, choice: TableChoice, encoding: FeatureEncoding | None = None) -> Imported:
    """Read a .graphml or .gml file."""
    try:
        import networkx
    except ImportError as error:
        raise MissingExtraError(f"reading {path.suffix}", "convert") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # networkx warns about tags of drawing programs
            graph = _parse(networkx, path)
        return _convert(graph, choice, encoding, ByteBudget(path.stat().st_size), is_file=True)
    except (AdarError, OSError):
        raise
    except Exception as error:  # the parsers of XML, GML and their types raise many types of error
        raise GraphError(f"not a readable {path.suffix} file ({reason(error)})") from error


def _parse(networkx: Any, path: Path) -> Any:
    if path.suffix == ".graphml":
        edges = _check_structure(path)
        graph = networkx.read_graphml(path)
        found = graph.number_of_edges()
        if found != edges:
            raise GraphError(
                f"the file has {edges:,} edges, and {found:,} of them can be told apart: give edges between "
                "the same nodes different ids"
            )
        return graph
    graph = networkx.read_gml(path, label="id")
    names = {node: found.pop("label", node) for node, found in graph.nodes(data=True)}  # GML's names of nodes
    different = len({*map(str, names.values())}) == len(names)
    return networkx.relabel_nodes(graph, names) if different else graph


class _Keys:
    """The keys of a GraphML file, which declare its attributes. networkx takes the last of equal ones."""

    def __init__(self) -> None:
        self._seen = set[tuple[str, str]]()  # what it is, and its id or name
        self._kind = ""  # what the current key is for
        self._values = set[str]()  # keys of the current node or edge

    def check(self, tag: str, given: dict[str, str]) -> None:
        """Refuse keys and values that are there twice, and a default that networkx does not use."""
        if tag == "key":
            self._kind = given.get("for", "all")
            self._once("id", given.get("id", ""))
            for kind in ("node", "edge") if self._kind == "all" else (self._kind,):
                if "attr.name" in given:
                    self._once(kind, given["attr.name"])
        elif tag == "default" and self._kind == "all":
            raise GraphError('the default of a key for all elements is not used: write for="node" or "edge"')
        elif tag == "data":
            key = given.get("key", "")
            if key in self._values:
                raise GraphError(f"a node or edge has two values of the key {short(key)!r}: remove one")
            self._values.add(key)
        elif tag in ("graph", "node", "edge", "port"):
            self._values.clear()

    def _once(self, kind: str, name: str) -> None:
        if (kind, name) in self._seen:
            raise GraphError(
                f"two keys have the {'id' if kind == 'id' else 'name'} {short(name)!r}: rename one"
            )
        self._seen.add((kind, name))


def _check_structure(path: Path) -> int:
    """Refuse what networkx changes without a word: repeated and unknown nodes, several graphs, directions.

    Returns:
        The number of edges.
    """
    from xml.parsers import expat

    nodes, ends, graphs, edges = set[str](), set[str](), 0, 0
    keys = _Keys()

    def on_element(tag: str, given: dict[str, str]) -> None:
        nonlocal graphs, edges
        tag, found = tag.rpartition(":")[2], given.get("id", "")
        keys.check(tag, given)
        if tag == "graph":
            graphs += 1
            _check_word(given, "edgedefault", ("directed", "undirected"))
        elif tag == "node":
            if found in nodes:
                raise GraphError(f"node {short(found)!r} is there twice: give every node an id of its own")
            nodes.add(found)
        elif tag == "edge":
            edges += 1
            _check_word(given, "directed", ("true", "false"))
            ends.update((given.get("source", ""), given.get("target", "")))

    parser = expat.ParserCreate()
    parser.StartElementHandler = on_element
    with path.open("rb") as file:
        parser.ParseFile(file)
    if graphs > 1:
        raise GraphError(
            f"the file has {graphs:,} graphs, some perhaps inside nodes: save one graph per file"
        )
    unknown = next(iter(sorted(ends - nodes)), None)
    if unknown is not None:
        raise GraphError(f"an edge ends at {short(unknown)!r}, which is not a node of the file")
    return edges


def _check_word(given: dict[str, str], name: str, words: tuple[str, str]) -> None:
    """Refuse another word: networkx ignores it."""
    if given.get(name, words[0]) not in words:
        raise GraphError(f"{name} is {short(given[name])!r}, not {words[0]!r} or {words[1]!r}")


def from_networkx(graph: Any, label: str | None = None, kind: str | None = None) -> Imported:
    """Convert a `networkx.Graph`.

    Args:
        graph: The graph. Nodes keep their order. Node attributes become features, labels and split. An
            undirected edge becomes two edges, one in each direction. The edge attribute "weight" becomes the
            edge weights, 1 where it is missing.
        label: Node attribute of the labels. Default: "y", "label", "class" or "target", if one exists.
        kind: "classes" or "numbers" (regression targets). Default: "numbers" if a label has a fraction.

    Returns:
        The graph, and notes on what was converted and how.

    Raises:
        GraphError: The label attribute is missing, or a value cannot be used.
    """
    return _convert(graph, TableChoice(label=label, labels=kind), None, ByteBudget(None), is_file=False)


def _convert(
    graph: Any, choice: TableChoice, encoding: FeatureEncoding | None, budget: ByteBudget, *, is_file: bool
) -> Imported:
    number = {node: position for position, node in enumerate(graph)}
    pairs = [(number[source], number[target]) for source, target in graph.edges()]
    given, weights = np.array(pairs, np.int64).reshape(-1, 2).T, _weights(graph)
    edges = given
    if not graph.is_directed():
        reverse = given[0] != given[1]  # a self-loop has no other direction
        edges = np.concatenate([given, given[::-1, reverse]], axis=1)
        weights = None if weights is None else np.concatenate([weights, weights[reverse]])
    nodes = list(number)
    attributes = _attributes(graph)
    budget.reserve("attributes of nodes", len(nodes) * len(attributes), CELL_BYTES // 4)
    spread = _spread(attributes, nodes, is_file=is_file)
    columns = {name: column_of(one.rows, one.values, len(nodes), one.rest) for name, one in spread.items()}
    imported = graph_from_columns(
        columns,
        given,  # features of degrees count an undirected edge once, as in a table of edges
        [*map(str, nodes)],
        choice,
        encoding,
        locate=lambda node: f"node {short(repr(nodes[node]))}",
        budget=budget,
    )
    converted = replace(imported.graph, edge_index=edges, edge_weight=weights)
    return Imported(converted, _edge_notes(graph) + imported.notes)


def _weights(graph: Any) -> Floats | None:
    """The attribute `weight` of the edges, where missing the file's default or 1; None if no edge has it."""
    edges = list(graph.edges(data=True))
    default = graph.graph.get("edge_default", {}).get(WEIGHT_COLUMN)  # of a .graphml file
    if default is None and not any(WEIGHT_COLUMN in attributes for *_, attributes in edges):
        return None
    missing = 1.0 if default is None else default
    values = [attributes.get(WEIGHT_COLUMN, missing) for *_, attributes in edges]
    return read_weights(values, lambda edge: f"edge {short(repr(edges[edge][:2]))}")


def _edge_notes(graph: Any) -> list[str]:
    """A note on attributes of edges: weights are used, ids are not needed, others are not used."""
    found = {str(name): None for *_, attributes in graph.edges(data=True) for name in attributes}
    found |= dict.fromkeys(map(str, graph.graph.get("edge_default", {})))
    names = [name for name in found if name not in ("id", "key", WEIGHT_COLUMN)]
    notes = [f"edge weights are from the attribute {WEIGHT_COLUMN!r}"] if WEIGHT_COLUMN in found else []
    return notes + ([f"edge features are not used: {listed(names)} was not read"] if names else [])


class _Attribute(NamedTuple):
    """The values of an attribute: those of some nodes, by their positions, and that of all others."""

    rows: Sequence[int]
    values: list[Any]
    rest: Any = None

    def of_nodes(self, count: int) -> list[Any]:
        """The value of each node."""
        given = dict(zip(self.rows, self.values, strict=True))
        return [given.get(row, self.rest) for row in range(count)]


def _attributes(graph: Any) -> dict[str, _Attribute]:
    """The attributes of the nodes by name. A .graphml file may have a default for nodes without one."""
    defaults = graph.graph.get("node_default", {})
    rows, values = dict[Any, list[int]](), dict[Any, list[Any]]()
    for row, (_, given) in enumerate(graph.nodes(data=True)):
        for name, value in given.items():
            rows.setdefault(name, []).append(row)
            values.setdefault(name, []).append(_plain(value))
    names = list(dict.fromkeys([*values, *defaults]))
    _check_different([*map(str, names)])
    return {
        str(name): _Attribute(rows.get(name, []), values.get(name, []), _plain(defaults.get(name)))
        for name in names
    }


def _spread(columns: dict[str, _Attribute], nodes: list[Any], *, is_file: bool) -> dict[str, _Attribute]:
    """The columns with one column per number of a vector, such as the attribute `x` that PyG writes."""
    spread: dict[str, _Attribute] = {}
    found = list[str]()
    for name, one in columns.items():
        values = one.values if len(one.values) == len(nodes) else [*one.values, one.rest]
        if any(isinstance(value, Mapping) for value in values):
            raise GraphError(
                f"the attribute {short(name)!r} holds several named values: remove it from the nodes"
            )
        lengths = {len(value) for value in values if _is_vector(value)}
        if not lengths or name in MASKS:
            spread[name] = one
            found.append(name)
            continue
        if name.lower() in LABEL_COLUMNS:  # its columns would become features
            raise GraphError(
                f"the attribute {short(name)!r} holds lists, and a label is one number or word per node: "
                "give one value per node, or rename the attribute if it holds features"
            )
        length = max(lengths)
        if is_file:  # a short file can repeat a key of GML any number of times
            check_width(len(found) + length)
        vectors = one.of_nodes(len(nodes))
        for node, vector in zip(nodes, vectors, strict=True):
            if not _is_vector(vector) or len(vector) != length:
                raise GraphError(
                    f"node {short(repr(node))}: the attribute {short(name)!r} must be a list of {length} "
                    "numbers, as for another node"
                )
        every = range(len(nodes))
        spread |= {f"{name}_{j}": _Attribute(every, [v[j] for v in vectors]) for j in range(length)}
        found += [f"{name}_{j}" for j in range(length)]
    _check_different(found)
    if is_file:
        check_width(len(found))
    return spread


def _check_different(names: list[str]) -> None:
    """Refuse two attributes, or numbers of vectors, that become the same column."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise GraphError(f"two attributes of nodes become the column {short(twice)!r}: rename one")


def _plain(value: Any) -> Any:
    """A number of numpy or PyTorch as a number of Python; other values unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _is_vector(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__") and hasattr(value, "__getitem__")
