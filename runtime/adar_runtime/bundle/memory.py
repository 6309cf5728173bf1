"""How much memory a graph will take, told before any of it is asked for."""

from pathlib import Path

from adar_runtime.backends.prepared_graph import pairs_at_once
from adar_runtime.bundle.manifest import EDGES, Manifest
from adar_runtime.errors import GraphError
from adar_runtime.graph import EDGE, Graph
from adar_runtime.graph.limits import limit_is_given, max_bytes

FLOAT, INDEX = 4, 8
PADDING = 1.2  # entries of the tables of neighbours, an edge
SPARE = 1.1  # what ONNX Runtime holds back for later, measured on graphs of 10,000 to 200,000 nodes
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def check(graph: Graph, manifest: Manifest) -> None:
    """Refuse a graph that this machine has no room for."""
    needed, limit = needed_bytes(graph, manifest), limit_bytes()
    if limit is not None and needed > limit:
        raise GraphError(
            f"running this graph would need about {needed:,} bytes, and {limit:,} are free: run it on a "
            "larger machine or, if you know better, set ADAR_MAX_BYTES to what may be used"
        )


def needed_bytes(graph: Graph, manifest: Manifest) -> int:
    """About what a run adds to the graph itself: laying out its edges comes first, running the cell then."""
    n, m, d, p = graph.nodes, graph.edges, manifest.hidden, manifest.proxies
    c = manifest.targets or graph.targets
    tables = FLOAT * (PADDING * m + n)
    lay_out = INDEX * (6 * m + 6 * n)  # sorted edges and what is made of them, on the way to the tables
    states = FLOAT * n * d * (3 + 2)  # three sets of states, two of velocities
    left = FLOAT * n * (p + c + d)
    messages = FLOAT * n * 3 * d
    gathered = FLOAT * d * PADDING * m  # the neighbours' rows
    if manifest.aggregation == EDGES:  # every edge has rows of 3d numbers, and an index for each of them
        gathered = (3 * FLOAT + 2 * INDEX) * m * 3 * d
    between = FLOAT * 2 * c * c  # how much each target takes from every other, and softmax of it
    cell = left + messages + gathered + between + FLOAT * n * 4 * d  # and a few results [n, d] on their way
    links = _links(graph, d, c) if manifest.level == EDGE else 0
    return int(SPARE * (tables + states + max(lay_out, cell))) + links


def _links(graph: Graph, d: int, c: int) -> int:
    """What judging links takes: a copy of them, the rows of a block, and what is made of the scores."""
    k = graph.outputs
    block = FLOAT * min(k, pairs_at_once(graph)) * (3 * d + c)
    answers = FLOAT * k * c * 4 + INDEX * k  # scores, their powers on the way to probabilities, predictions
    return 2 * INDEX * k + int(SPARE * block) + answers


def limit_bytes() -> int | None:
    """What the environment's ADAR_MAX_BYTES allows or, where it is not set, what is free; None if unknown."""
    if limit_is_given():
        return max_bytes()
    return min((free for free in (_machine(), _container()) if free is not None), default=None)


def _machine() -> int | None:
    """Free memory of this machine, caches that can be dropped included."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None  # not Linux


def _container() -> int | None:
    """What the container that this runs in has left, where it has a limit of its own (cgroup v2)."""
    try:
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        facts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        cached = int(facts["inactive_file"])  # counted as used, and dropped when it is needed
    except (OSError, KeyError, ValueError):  # no such file, or "max": there is no limit
        return None
    return max(0, limit - used + cached)
