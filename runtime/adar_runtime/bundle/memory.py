"""An estimate of the memory that a graph needs, before the memory is allocated."""

from pathlib import Path

import numpy as np

from adar_runtime.backends.prepared_graph import pairs_at_once
from adar_runtime.bundle.manifest import EDGES, Manifest
from adar_runtime.errors import GraphError
from adar_runtime.graph import EDGE, Graph, SparseRows
from adar_runtime.graph.limits import limit_is_given, max_bytes
from adar_runtime.graph.neighbour_tables import largest_leaf
from adar_runtime.in_context import similar_nodes
from adar_runtime.in_context.start import known_labels

FLOAT, INDEX = 4, 8
PADDING = 1.2  # entries of the neighbour tables per edge
GATES = 160  # numbers of a node in the gates of a pretrained model
PROCESS = 250 * 2**20  # Python, numpy, ONNX Runtime and the models
SMALL = 2**24  # bytes: graphs that need less are not compared with the free memory
SPARE = 1.15  # ONNX Runtime's memory arena, measured on graphs of 10,000 to 1,000,000 nodes
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def check(graph: Graph, manifest: Manifest, *, by_row: bool = True, prepared: bool = False) -> None:
    """Refuse a graph that does not fit into the free memory.

    `by_row` says whether the encoder takes the nodes in blocks. Otherwise all sparse features become dense.
    `prepared` says whether a pretrained model has placed the nodes already.
    """
    dense = 0 if by_row or not isinstance(graph.features, SparseRows) else FLOAT * graph.nodes * graph.width
    placing = 0 if prepared else _placing(graph, manifest)
    # The sizes of the tables and the free memory take time to find out, and most graphs need little.
    estimate = max(placing, dense + _bytes(graph, manifest, PADDING * graph.edges))
    if estimate <= SMALL and not limit_is_given():
        return
    limit = limit_bytes()
    if limit is None or estimate <= limit:
        return
    _refuse_above(limit, max(placing, dense + needed_bytes(graph, manifest)), "running this graph")


def check_numbers(numbers: int, what: str) -> None:
    """Refuse work that needs more floating-point numbers than fit into the free memory."""
    needed = int(SPARE * FLOAT * numbers)
    if needed > SMALL or limit_is_given():
        _refuse_above(limit_bytes(), needed, what)


def _refuse_above(limit: int | None, needed: int, what: str) -> None:
    if limit is not None and needed > limit:
        raise GraphError(
            f"{what} would need about {needed:,} bytes, and {limit:,} are free: run it on a "
            "larger machine, or set ADAR_MAX_BYTES to the number of bytes that may be used"
        )


def needed_bytes(graph: Graph, manifest: Manifest) -> int:
    """The estimated memory of a run beside the graph: first to prepare the edges, then to run the cell."""
    targets = np.sort(graph.edge_index[1])
    firsts = np.flatnonzero(np.diff(targets, prepend=-1))
    return _bytes(graph, manifest, largest_leaf(np.diff(firsts, append=len(targets))))


def _bytes(graph: Graph, manifest: Manifest, largest: float) -> int:
    """The estimate if the largest neighbour table has this many entries."""
    n, m, d, p = graph.nodes, graph.edges, manifest.hidden, manifest.proxies
    c = manifest.targets or graph.targets
    weights = 1 if manifest.edge_weights else 0
    tables = FLOAT * ((1 + weights) * PADDING * m + n)
    preparing = INDEX * ((6 + 3 * weights) * m + 6 * n)  # sorted edges and intermediate arrays of the tables
    states = FLOAT * n * d * (3 + 2)  # three sets of states, two of velocities
    left = FLOAT * n * (p + c + d)
    messages = FLOAT * n * 3 * d
    gathered = FLOAT * d * largest  # the neighbours' rows of one table at a time
    if manifest.aggregation == EDGES:  # every edge has a row of 3d numbers, and an index for each number
        gathered = ((3 + weights) * FLOAT + 2 * INDEX) * m * 3 * d
    cell = (
        left + messages + gathered + between_bytes(c, p) + FLOAT * n * 4 * d
    )  # and a few intermediate results [n, d]
    pairs = _pairs(graph, d, c) if manifest.level == EDGE else 0
    edges = INDEX * (m + n) if manifest.smoothing else 0  # kept with the prepared graph
    return int(SPARE * (tables + states + max(preparing, cell))) + pairs + edges


def between_bytes(c: int, p: int) -> int:
    """The memory of attention between c targets or p proxies: logits and softmax."""
    return FLOAT * 2 * max(c, p) ** 2


def _placing(graph: Graph, manifest: Manifest) -> int:
    """The memory of the closed-form start of a pretrained model; 0 for other models.

    Measured with tracemalloc on 100 to 100,000 nodes, 2 to 1,000 classes, up to 300,000 columns and no to all
    labels.
    """
    if not manifest.in_context:
        return 0
    sizes = graph.nodes, graph.targets, graph.width, manifest.hidden
    known = int((known_labels(graph) >= 0).sum())
    return placing_bytes(sizes, known, described=graph.target_features is not None)


def placing_bytes(sizes: tuple[int, int, int, int], known: int, *, described: bool) -> int:
    """The memory of a closed-form start: for n nodes, c classes, f features, d columns and known labels."""
    n, c, f, d = sizes
    ways = 15 if described else 12  # to score the known labels, and their temporaries
    scores = c * max(9 * n, 3 * n + ways * known)  # of all nodes: scores, softmax, known classes
    rows = (27 if known else 20) * n * d + scores  # smoothed features, apart, joined and analysed
    columns = f * (8 * d + (2 * c if described else 0))  # directions; descriptions
    compared = min(n, similar_nodes.LARGEST)
    cosines = min(n, similar_nodes.ROWS) * compared * (2 * FLOAT + INDEX + 1)  # twice, order, mask
    return FLOAT * (rows + columns + compared * (2 * d + c)) + cosines


def _pairs(graph: Graph, d: int, c: int) -> int:
    """The memory of scoring pairs: a copy of the pairs, the rows of a block, scores and predictions."""
    k = graph.outputs
    block = FLOAT * min(k, pairs_at_once(graph)) * (3 * d + c)
    answers = FLOAT * k * c * 4 + INDEX * k  # scores, exponentials, probabilities, predictions
    return 2 * INDEX * k + int(SPARE * block) + answers


def limit_bytes() -> int | None:
    """The value of ADAR_MAX_BYTES; where it is not set, the free memory; None if unknown."""
    if limit_is_given():
        return max_bytes()
    return min((free for free in (_machine(), _container()) if free is not None), default=None)


def _machine() -> int | None:
    """Free memory of this machine, including caches that can be dropped."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None  # not Linux


def _container() -> int | None:
    """Free memory of the container, where the container has a limit (cgroup v2)."""
    try:
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        facts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        cached = int(facts["inactive_file"])  # counted as used, but dropped when memory is needed
    except (OSError, KeyError, ValueError):  # no such file, or "max", which means no limit
        return None
    return max(0, limit - used + cached)
