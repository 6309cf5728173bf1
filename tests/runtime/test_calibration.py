"""The exit is chosen by what validation labels can tell, not by their noise."""

import json

import numpy as np
import pytest

from adar_runtime import Graph
from adar_runtime.evaluation.calibration import Exit, calibrate
from adar_runtime.evaluation.curves import Curve, Moment, measure, measure_together
from adar_runtime.evaluation.output_sample import MOST, OutputSample
from adar_runtime.loop.stopping import Peak

STEPS, PEAK = 40, 30


def calibrated(
    quality: np.ndarray, alignment: np.ndarray, kind: str, seed: int = 0, count: int = 400
) -> Exit:
    """Calibrate two budgets of a model with this expected quality at every step."""
    random = np.random.default_rng(seed)
    classes = {"accuracy": 4, "roc_auc": 2, "r2": 1}[kind]
    labels = random.integers(0, max(2, classes), count)
    truth = np.eye(classes)[labels % classes] if kind != "r2" else random.normal(size=(count, 1))
    graph = Graph(
        features=np.ones((count, 1)),
        edge_index=np.zeros((2, 0), np.int64),
        labels=truth.astype(np.float32) if kind == "r2" else labels,
        val_mask=np.ones(count, bool),
    )
    noise = random.normal(size=(count, classes))

    def curve(every: int) -> Curve:
        drift, moments = noise, []
        for step in range(0, STEPS + 1, every):  # the noise changes slowly, as along a trajectory
            drift = 0.9 * drift + np.sqrt(1 - 0.9**2) * random.normal(size=(count, classes))
            spread = 0.3 if kind == "r2" else 1.0
            scores = (quality[step] * truth + spread * drift).astype(np.float32)
            moments.append(Moment(step / STEPS, float(alignment[step]), scores))
        return measure(moments, graph, STEPS // every, sample="val")

    return calibrate([[curve(1)], [curve(2)]])


steps = np.arange(STEPS + 1)
RISING, PEAKED = steps.astype(float), -abs(steps - PEAK).astype(float)
EARLY = -abs(steps - 8).astype(float)  # a peak that misleads
KINDS = pytest.mark.parametrize("kind", ["accuracy", "roc_auc", "r2"])


@KINDS
def test_equally_good_times_are_rarely_calibrated(kind: str) -> None:
    """All times from 0.25 on are equally good: whichever is best on these outputs is noise.

    By chance, a cross-validated gain exceeds one standard error in about 16 % of all cases; a gain on the
    outputs that the time was chosen by does so in more than half of them.
    """
    quality = np.minimum(steps, 10) / 10
    found = [calibrated(quality, PEAKED, kind, seed) for seed in range(40)]
    fitted = [one.regret["peak"] - one.regret["time"] > one.error["peak"] for one in found]
    kept = [one for one in found if one.rule["rule"] == "peak"]
    assert np.mean(fitted) > 0.4
    assert len(kept) / len(found) > 0.7
    assert all(one.rule["fallback"] == one.time for one in kept)
    assert any("peak: within one standard error (" in one.reason for one in kept)


@KINDS
def test_a_rising_alignment_is_said_to_rise(kind: str) -> None:
    found = calibrated(np.minimum(steps, 10) / 10, RISING, kind)
    assert found.rule["rule"] == "peak"
    assert "the alignment only rises" in found.reason


@KINDS
def test_a_misleading_peak_gives_the_end(kind: str) -> None:
    found = calibrated(np.minimum(steps, 35) / 35, EARLY, kind)
    assert (found.rule, found.time) == ({"rule": "final"}, 1.0)
    assert found.gain["peak"] > found.error["peak"]
    assert "stopping at the peak costs" in found.reason


@KINDS
def test_a_real_gain_is_taken(kind: str) -> None:
    """The model is good at t = 0.5 only, and the alignment does not show it."""
    found = calibrated(1 - abs(steps - 20) / 20, EARLY, kind)
    assert found.rule["rule"] == "time"
    assert 0.35 <= found.rule["t"] == found.time <= 0.65
    assert found.gain["final"] > found.error["final"] > 0
    assert "better than t = 1 by" in found.reason


@KINDS
def test_graphs_are_calibrated_where_each_one_stops(kind: str) -> None:
    """The mean alignment only rises, but the own peak of every second graph is before it is answered."""
    random = np.random.default_rng(0)
    classes, count = {"accuracy": 4, "roc_auc": 2, "r2": 1}[kind], 80
    labels = np.arange(count) // 2 % max(2, classes)
    graphs, runs = [], []
    for graph, label in enumerate(labels):
        truth = np.eye(classes)[[label]] if kind != "r2" else np.array([[label - 0.5]])
        first = random.normal(size=(1, classes))
        way = [first + (truth - first) * step / STEPS for step in steps]
        alignment = 0.1 * EARLY if graph % 2 else RISING
        graphs.append(
            Graph(
                features=np.ones((2, 1)),
                edge_index=np.zeros((2, 0), np.int64),
                labels=truth.astype(np.float32) if kind == "r2" else [label],
                val_mask=[True],
                level="graph",
            )
        )
        found = zip(steps, alignment, way, strict=True)
        runs.append([Moment(step / STEPS, float(a), scores.astype(np.float32)) for step, a, scores in found])
    curve = measure_together(runs, graphs, STEPS, sample="val")
    found = calibrate([[curve]])
    lost = curve.metric("val")[-1] - curve.at_exit(Peak()).metrics["val"]
    assert lost > 0.05
    assert found.regret["peak"] == pytest.approx(lost)
    assert found.error["peak"] > 0
    assert found.rule == {"rule": "final"}
    assert "rises" not in found.reason


def test_a_larger_part_is_more_certain_than_its_sample() -> None:
    graph = Graph(
        features=np.ones((4 * MOST, 1)),
        edge_index=np.zeros((2, 0), np.int64),
        labels=np.zeros(4 * MOST, np.int64),
        val_mask=np.ones(4 * MOST, bool),
    )
    sample = OutputSample.of([graph], "val", 0)
    assert sample is not None
    sample.add([np.zeros((4 * MOST, 3), np.float32)])
    differences = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], MOST)
    assert len(sample.labels) == MOST
    assert sample.error(differences) == pytest.approx(np.std(differences) / (2 * np.sqrt(MOST)), rel=1e-3)


def test_the_record_is_json_even_where_an_error_is_unknown() -> None:
    found = calibrated(np.minimum(steps, 10) / 10, EARLY, "roc_auc", seed=1, count=3)
    assert any(error == np.inf for error in found.error.values())
    assert "Infinity" not in json.dumps(found.to_dict())
    assert found.rule["rule"] == "peak"
