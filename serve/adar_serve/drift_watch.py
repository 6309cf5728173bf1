"""Compare requests with the training data of their model, now and then."""

import threading
import time

from adar_runtime import Result
from adar_runtime.errors import BundleError
from adar_serve.metrics import Metrics

SECONDS = 1.0  # between two comparisons of a model: one of a large graph takes milliseconds


class DriftWatch:
    """Counts graphs that are unlike the training data. Threads can share it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def look(self, model: str, result: Result) -> list[str] | None:
        """Compare the graph of a result, unless the last comparison was just now. Return the warnings."""
        with self._lock:
            now = time.monotonic()
            if now - self._last.get(model, -SECONDS) < SECONDS:
                return None
            self._last[model] = now
        try:
            drift = result.drift
        except BundleError:  # damaged statistics: the answer is still good
            return None
        if drift is None:
            return None
        self._metrics.count_drift(model, drift.score, unlike=drift.is_unlike())
        return drift.warnings() or None
