"""Metrics for Prometheus."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from adar_runtime import Result

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

M = TypeVar("M", Counter, Histogram)


class Metrics:
    """The numbers of one server."""

    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        self._registry, self._labelled = CollectorRegistry(), dict[Any, Any]()
        self._requests = Counter(
            "adar_requests",
            "Requests by protocol, action and status.",
            ["protocol", "action", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "adar_request_seconds",
            "Seconds of a request, from its first byte to the last byte of the response.",
            ["protocol", "action"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._phases = Histogram(
            "adar_phase_seconds",
            "Seconds of the phases of an inference: queue, read, prepare, loop, head.",
            ["phase"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._cell_calls = Counter("adar_cell_calls", "Cell calls.", ["model"], registry=self._registry)
        self._stops = Counter(
            "adar_stops", "Inferences by the reason to stop.", ["model", "reason"], registry=self._registry
        )
        self._drift_score = Gauge(
            "adar_drift_score",
            "Largest population stability index of the last graph that was compared with the training data.",
            ["model"],
            registry=self._registry,
        )
        self._drift_checks = Counter(
            "adar_drift_checks",
            "Graphs that were compared with the training data, at most one per second.",
            ["model"],
            registry=self._registry,
        )
        self._drift_warnings = Counter(
            "adar_drift_warnings",
            "Compared graphs that are unlike the training data.",
            ["model"],
            registry=self._registry,
        )
        for name, (text, value) in gauges.items():
            Gauge(name, text, registry=self._registry).set_function(value)
        ProcessCollector(registry=self._registry)

    def count_request(self, protocol: str, action: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._of(self._requests, protocol, action, status).inc()
        self._of(self._seconds, protocol, action).observe(seconds)

    def count_run(self, model: str, result: Result, queue: float, read: float) -> None:
        """Count one inference."""
        for phase, seconds in {"queue": queue, "read": read, **result.timings}.items():
            self._of(self._phases, phase).observe(seconds)
        self._of(self._cell_calls, model).inc(result.cell_calls)
        self._of(self._stops, model, result.stop_reason.name.lower()).inc()

    def _of(self, metric: M, *labels: str | int) -> M:
        """The metric with these labels. A dictionary finds it faster than the metric itself."""
        key = (metric, *labels)
        found = self._labelled.get(key)
        if found is None:
            found = self._labelled[key] = metric.labels(*labels)
        return found

    def count_drift(self, model: str, score: float, *, unlike: bool) -> None:
        """Count one comparison with the training data."""
        self._drift_checks.labels(model).inc()
        self._drift_warnings.labels(model).inc(unlike)
        self._drift_score.labels(model).set(score)

    def families(self) -> list[dict[str, Any]]:
        """All metrics with their samples, as JSON."""
        return [
            {
                "name": family.name,
                "type": family.type,
                "help": family.documentation,
                "samples": [[sample.name, sample.labels, sample.value] for sample in family.samples],
            }
            for family in self._registry.collect()
        ]


class _Families:
    """Metrics of several processes, as a registry has them."""

    def __init__(self, families: Sequence[dict[str, Any]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            found = Metric(family["name"], family["help"], family["type"])
            for sample in family["samples"]:
                found.add_sample(*sample)
            yield found


def text(families: Sequence[dict[str, Any]]) -> bytes:
    """Metrics in the text format of Prometheus."""
    return generate_latest(cast("CollectorRegistry", _Families(families)))
