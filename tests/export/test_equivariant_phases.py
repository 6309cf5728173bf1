"""The step of the pretrained model in phases equals its cell: any task, split, solver and precision."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_export import pretrained
from adar_export.phase_proof import compare_phases
from adar_export.pretrained import small_samples
from adar_runtime import Bundle, Graph
from adar_runtime.bundle.signature import ABSORBED, STATE
from adar_runtime.errors import ExportError
from adar_runtime.loop.schedule import shared_step_code
from adar_runtime.loop.solvers import AdamsBashforth2
from adar_runtime.phases import in_context_step
from adar_runtime.phases.in_context_step import InContextState
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.sharded_step import shards_of
from tests.in_context_graphs import block_graph, with_random_gates

GRAPHS: dict[str, Callable[[], Graph]] = {
    "both": block_graph,
    "labels": lambda: replace(block_graph(seed=1), target_features=None),
    "descriptions": lambda: replace(block_graph(seed=2), train_mask=None),
    "no edges": lambda: replace(block_graph(seed=3), edge_index=np.zeros((2, 0), np.int64)),
    "directed": lambda: replace(block_graph(seed=4), edge_index=block_graph(seed=4).edge_index[:, :700]),
}


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def bundle(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    pretrained._write(folder, with_random_gates(), {"data": ["generated"]}, request.param)
    return Bundle(folder, threads=1)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("shards", [1, 5])
def test_steps_over_shards_equal_those_of_the_cell(bundle: Bundle, graph: str, shards: int) -> None:
    prepared = bundle.prepare(GRAPHS[graph]())
    cell = bundle.backend.start(prepared)
    first, split = cell.state(), np.random.default_rng(0).integers(0, shards, prepared.graph.nodes)
    models = PhaseModels(bundle.path, bundle.manifest, 1, known=False)
    phases = InContextState(models, shards_of(prepared.neighbours, split), cell.state(), prepared.known)
    for move in AdamsBashforth2(calls=4).moves(0.0, 1.0, 0.25):
        code = shared_step_code(move.time, bundle.manifest.hidden)
        cell.step(code, move)
        phases.step(code, move)
        np.testing.assert_allclose(phases.alignment, cell.alignment, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(phases.motion, cell.motion, rtol=1e-3)
    moved = 0.0
    tolerance = 1e-4 if bundle.manifest.precision == "fp32" else 2e-3
    for name in STATE:
        expected = cell.state()[name]
        moved = max(moved, float(np.abs(expected - first[name]).max()))
        difference = np.abs(phases.state[name] - expected).max()
        assert difference <= tolerance * max(1.0, float(np.abs(expected).max()))
    assert moved > 0.1


def test_a_wrong_sum_over_shards_is_not_exported(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare_phases(bundle, small_samples()[3:5])
    assert found is not None
    assert 0 < found < 1e-4
    monkeypatch.setattr(in_context_step, "added", lambda found: {name: found[0][name] for name in ABSORBED})
    with pytest.raises(ExportError, match="the phases of a step and the cell disagree"):
        compare_phases(bundle, small_samples()[3:5])


def test_the_packaged_bundle_has_phases_that_were_compared_with_its_cell() -> None:
    folder = pretrained.OUT
    manifest = json.loads((folder / "manifest.json").read_text())
    assert 0 < manifest["parity"]["phases"] < 1e-4
    assert sum(path.stat().st_size for path in Path(folder).iterdir()) < 10**6
