"""The limits of a server, in one table. They are checked before memory is allocated or work begins."""

from dataclasses import dataclass

from adar_runtime.errors import UsageError
from adar_runtime.loop.registry import is_count, setting, settings_of

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What one request, and all requests together, may use.

    Args:
        body: MiB of a request's body, as it is sent.
        unpacked: MiB of a compressed body after decompression, and of the arrays of a `.npz` file.
        json: MiB that the numbers of a request or an answer may take in memory while they are JSON.
        bodies: MiB of the bodies of all requests that are being received or processed.
        nodes: Nodes of a graph.
        edges: Edges of a graph, and pairs of nodes to score.
        classes: Classes that a request describes with `target_x`, and classes of the labels `y`.
        steps: Largest `max_steps` that a request may ask for.
        seconds: Seconds to receive a request, and again to answer it, with the wait in the queue.
        concurrent: Requests that run at the same time.
        queue: Requests that wait. Further requests get the status 429.
        graphs: MiB of the graphs that stay on the server.
        batch: Small graphs that one call answers; 1 answers each one alone.
        batch_wait: Most milliseconds that a small graph waits for others.
        memory: MiB that a child process of `--isolate` may allocate for its requests.

    Raises:
        UsageError: A limit is not a whole number of at least 1; or of at least 0 for `queue`, `graphs` and
            `batch_wait`.

    Examples:
        >>> Limits(nodes=100_000, seconds=10).edges
        10000000
    """

    body: int = setting(64, "MiB of a request's body, as it is sent", "limit-body")
    unpacked: int = setting(256, "MiB of a compressed body or .npz file, unpacked", "limit-unpacked")
    json: int = setting(256, "MiB of the JSON of a request or an answer, in memory", "limit-json")
    bodies: int = setting(1024, "MiB of the bodies of all requests at one time", "limit-bodies")
    nodes: int = setting(1_000_000, "Nodes of a graph", "limit-nodes")
    edges: int = setting(10_000_000, "Edges of a graph, and pairs to score", "limit-edges")
    classes: int = setting(1000, "Classes that a request describes, and of known labels", "limit-classes")
    steps: int = setting(3000, "Largest max_steps of a request", "limit-steps")
    seconds: int = setting(60, "Seconds to receive a request, and again to answer it", "limit-seconds")
    concurrent: int = setting(2, "Requests that run at the same time", "limit-concurrent")
    queue: int = setting(16, "Requests that wait; further ones get the status 429", "limit-queue")
    graphs: int = setting(1024, "MiB of the graphs that stay on the server", "limit-graphs")
    batch: int = setting(32, "Small graphs that one call answers; 1: each one alone", "limit-batch")
    batch_wait: int = setting(5, "Milliseconds that a small graph waits for others", "limit-batch-wait")
    memory: int = setting(4096, "MiB of each child process of --isolate", "limit-memory")

    def __post_init__(self) -> None:
        for one in settings_of(Limits):
            least = 0 if one.name in ("queue", "graphs", "batch_wait") else 1
            if not is_count(getattr(self, one.name), least):
                raise UsageError(f"--{one.option} must be a whole number of at least {least}")
