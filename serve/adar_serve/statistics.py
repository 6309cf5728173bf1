"""Counts and durations of each model, as the statistics calls of the protocol return them."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from adar_runtime import Result
from adar_serve.models import Model

KINDS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
COMPUTED = KINDS[3:]
Durations = dict[str, dict[str, int]]


class _OfModel:
    def __init__(self) -> None:
        self.last_inference, self.inferences, self.executions = 0, 0, 0
        self.durations = _durations(KINDS)
        self.batches: dict[int, Durations] = defaultdict(lambda: _durations(COMPUTED))


class Statistics:
    """The statistics of all models. Threads can share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[tuple[str, str], _OfModel] = defaultdict(_OfModel)

    def count_success(self, model: Model, seconds: float, queue: float, read: float, result: Result) -> None:
        """Count one answer: its whole time, the time in the queue, the time to read it, and its phases."""
        computed = _computed(result)
        computed["compute_input"] += read
        with self._lock:
            found = self._models[model.name, model.version]
            found.inferences += 1
            found.last_inference = time.time_ns() // 1_000_000
            _add(found.durations, {"success": seconds, "queue": queue, **computed})

    def count_failure(self, model: Model, seconds: float) -> None:
        """Count a request that got an error."""
        with self._lock:
            _add(self._models[model.name, model.version].durations, {"fail": seconds})

    def count_execution(self, model: Model, results: Sequence[Result]) -> None:
        """Count one call that answered these graphs together."""
        with self._lock:
            found = self._models[model.name, model.version]
            found.executions += 1
            for result in results:
                _add(found.batches[len(results)], _computed(result))

    def all(self) -> list[dict[str, Any]]:
        """The statistics of all models that were used, as JSON."""
        with self._lock:
            return [_to_dict(*key, found) for key, found in self._models.items()]


def response(statistics: Sequence[dict[str, Any]], models: Sequence[Model]) -> dict[str, Any]:
    """The response of the statistics calls for these models, from the statistics of all."""
    found = {(each["name"], each["version"]): each for each in statistics}
    keys = [(model.name, model.version) for model in models]
    return {"model_stats": [found.get(key) or _to_dict(*key, _OfModel()) for key in keys]}


def _to_dict(name: str, version: str, found: _OfModel) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "last_inference": found.last_inference,
        "inference_count": found.inferences,
        "execution_count": found.executions,
        "inference_stats": {kind: dict(duration) for kind, duration in found.durations.items()},
        "batch_stats": [
            {"batch_size": size, **{kind: dict(duration) for kind, duration in durations.items()}}
            for size, durations in sorted(found.batches.items())
        ],
    }


def _durations(kinds: Sequence[str]) -> Durations:
    return {kind: {"count": 0, "ns": 0} for kind in kinds}


def _computed(result: Result) -> dict[str, float]:
    """Seconds under the names of the protocol."""
    return dict(zip(COMPUTED, (result.timings[phase] for phase in ("prepare", "loop", "head")), strict=True))


def _add(durations: Durations, seconds: dict[str, float]) -> None:
    for kind, value in seconds.items():
        durations[kind]["count"] += 1
        durations[kind]["ns"] += round(value * 1e9)
