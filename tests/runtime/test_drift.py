"""Drift: no alarms on the training graph, its parts and its like; alarms on graphs that are unlike."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_export.samples import part_of
from adar_runtime import Graph, SparseRows, load
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.errors import BundleError
from adar_runtime.evaluation.drift import THRESHOLD, alignment_curve, compare, stability
from adar_runtime.evaluation.graph_profile import COLUMNS, profile
from adar_runtime.graph.synthetic import blocks, minesweeper
from tests.bundles import edit


def drift_of(trained: Graph | list[Graph], graph: Graph, bundle_folder: Path):
    graphs = trained if isinstance(trained, list) else [trained]
    statistics = json.loads(json.dumps(profile(graphs)))
    return compare(replace(read_manifest(bundle_folder), statistics=statistics), graph)


def words(rows: int, width: int, seed: int, shift: int = 0) -> Graph:
    """A sparse bag of words with a few frequent words."""
    random = np.random.default_rng(seed)
    columns = (random.zipf(1.6, rows * 12).clip(1, width) - 1 + shift) % width
    x = SparseRows(np.arange(rows + 1) * 12, columns, np.ones(rows * 12), (rows, width))
    return Graph(x, random.integers(0, rows, (2, 4 * rows)))


FAMILIES = {
    "one-hot": lambda seed: minesweeper(side=40, seed=seed),
    "numbers": lambda seed: blocks(nodes=900, seed=seed),
    "words": lambda seed: words(800, 3_000, seed),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_alarm_on_the_training_graph_and_its_like(family: str, bundle_folder: Path) -> None:
    trained = FAMILIES[family](0)
    assert drift_of(trained, trained, bundle_folder).score == 0
    for seed in range(1, 6):
        assert not drift_of(trained, FAMILIES[family](seed), bundle_folder).is_unlike()


@pytest.mark.parametrize("nodes", [5, 40, 200])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_alarm_on_connected_parts(family: str, nodes: int, bundle_folder: Path) -> None:
    trained = FAMILIES[family](0)
    for start in range(0, trained.nodes, trained.nodes // 5):
        found = drift_of(trained, part_of(trained, nodes, start), bundle_folder)
        names = {change.name for change in found.changes if change.psi > THRESHOLD}
        assert names <= {"degree"}, found.changes[0]  # edges to the rest of the graph are cut


def test_no_alarm_on_the_held_out_nodes_of_the_split(bundle_folder: Path) -> None:
    """The features of test nodes, with the edges of the whole graph."""
    large = minesweeper(side=60)
    for part in ("train", "val", "test"):
        chosen = np.flatnonzero(large.labelled(part))
        rows = large.rows(0, large.nodes)[chosen]
        found = drift_of(large, Graph(rows, np.zeros((2, 0), np.int64)), bundle_folder)
        assert max(c.psi for c in found.changes if c.name != "degree") < THRESHOLD


def test_alarms_on_unlike_graphs(bundle_folder: Path) -> None:
    trained = minesweeper(side=40)
    rows = trained.rows(0, trained.nodes)
    moved = replace(trained, features=rows + 0.5)
    assert drift_of(trained, moved, bundle_folder).score > THRESHOLD
    hidden = rows.copy()
    hidden[:, 3] = 0  # a broken sensor
    found = drift_of(trained, replace(trained, features=hidden), bundle_folder)
    assert found.changes[0].name in ("feature 3", "length of the features", "share of non-zero features")
    assert "feature 3" in {change.name for change in found.changes if change.psi > 0.1}
    single = replace(trained, edge_index=trained.edge_index[:, ::4])
    found = drift_of(trained, single, bundle_folder)
    assert found.changes[0].name == "degree"
    assert "degree" in found.warnings()[0]
    assert drift_of(words(800, 3_000, 0), words(800, 3_000, 1, shift=5), bundle_folder).is_unlike()


def test_values_outside_the_range_are_counted(bundle_folder: Path) -> None:
    random = np.random.default_rng(0)
    trained = Graph(random.random((500, 1)), np.zeros((2, 0), np.int64))
    other = Graph(np.where(random.random((500, 1)) < 0.3, 7.0, 0.5), np.zeros((2, 0), np.int64))
    change = next(c for c in drift_of(trained, other, bundle_folder).changes if c.name == "feature 0")
    assert change.outside == pytest.approx(0.3, abs=0.06)
    assert change.psi > 1


def test_features_whose_squares_overflow_are_compared(bundle_folder: Path) -> None:
    graph = minesweeper(side=12)
    manifest = read_manifest(bundle_folder)
    for large in (1e30, 3e38):
        found = compare(manifest, replace(graph, features=np.full((graph.nodes, graph.width), large)))
        assert found.is_unlike()
        assert all(np.isfinite([change.psi, change.mean]).all() for change in found.changes)


def test_several_training_graphs_count_together(bundle_folder: Path) -> None:
    few, many = minesweeper(side=30, mines=0.05), minesweeper(side=30, mines=0.5, seed=1)
    assert drift_of(few, many, bundle_folder).is_unlike()
    for graph in (few, many):
        assert drift_of([few, many], graph, bundle_folder).score < drift_of(few, many, bundle_folder).score


def test_of_many_graphs_some_are_read(bundle_folder: Path) -> None:
    many = [minesweeper(side=4, seed=seed) for seed in range(250)]
    found = profile(many)
    assert found["nodes"] == 250 * 16
    assert found["rows"]["degree"]["count"] == 84 * 16  # every third graph
    assert not drift_of(many, many[1], bundle_folder).is_unlike()


def test_the_record_is_small_for_wide_graphs(bundle_folder: Path) -> None:
    assert len(profile([words(300, 20_000, 0)])["columns"]) == COLUMNS
    assert len(json.dumps(profile([words(3_000, 20_000, 0)]))) < 100_000
    assert (bundle_folder / "manifest.json").read_text().count("\n") < 4_000


def test_sparse_and_dense_features_have_the_same_statistics() -> None:
    sparse = words(200, 100, 0)
    dense = replace(sparse, features=sparse.rows(0, sparse.nodes))
    assert profile([sparse]) == profile([dense])


def test_chance_alone_is_no_drift() -> None:
    random = np.random.default_rng(0)
    shares = np.full(10, 0.1)
    found = [stability(shares, 300, random.multinomial(40, shares)) for _ in range(500)]
    assert np.mean(np.array(found) > 0) < 0.02


def test_results_know_their_drift(bundle_folder: Path, board: Graph) -> None:
    bundle = load(bundle_folder)
    found = bundle.run(board, 20).drift
    assert found.warnings() == []
    assert found.alignment >= found.lowest_alignment
    assert "predicted classes" in {change.name for change in found.changes}
    unlike = bundle.run(replace(board, features=board.rows(0, board.nodes) + 1), 20).drift
    assert unlike.is_unlike()


def test_a_selection_has_the_drift_of_its_graph(bundle_folder: Path, board: Graph) -> None:
    """Nodes that were chosen by their class are no drift of the classes."""
    result = load(bundle_folder).run(board, 3)
    one_class = result.select(np.flatnonzero(result.predictions == result.predictions[0]))
    assert one_class.drift.score == result.drift.score
    assert "predicted classes" not in [change.name for change in one_class.drift.changes]


def test_drift_in_one_line(bundle_folder: Path, board: Graph) -> None:
    found = load(bundle_folder).run(board, 3).drift
    assert repr(found).startswith(
        f"Drift({len(found.changes)} statistics, largest PSI {found.score:.3f}, alignment"
    )
    assert "largest changes" in found._repr_html_()
    strange = replace(board, features=board.features + 3)
    assert "warning the graph is unlike the training data" in repr(load(bundle_folder).run(strange, 3).drift)


def test_a_lower_alignment_than_seen(bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    seen = read_manifest(bundle).statistics["alignment"]
    high = {key: [value + 100 for value in seen[key]] for key in ("seen", "low")}
    edit(bundle, lambda fields: fields["statistics"]["alignment"].update(high))
    found = load(bundle).run(board, 20).drift
    assert found.is_unlike(threshold=1e9)
    assert "lower than on the training data" in found.warnings()[-1]


def test_the_curve_keeps_the_lowest_of_all_parts() -> None:
    curve = alignment_curve([([0, 1], [0.0, 1.0]), ([0, 0.5, 1], [0.0, 0.2, 2.0])])
    assert curve["seen"][5] == 0.5
    assert curve["low"][5] == 0.2
    assert curve["low"][10] == 1.0


def test_old_bundles_have_no_drift(bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    old = shutil.copytree(bundle_folder, tmp_path / "old")
    edit(old, lambda fields: fields.pop("statistics"))
    assert load(old).run(board, 3).drift is None


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.update(columns=7),
        lambda s: s["columns"][0].update(column=10**9),
        lambda s: s["columns"][0].update(shares=["a"]),
        lambda s: s["columns"][0].update(shares=[-5.0, 6.0]),
        lambda s: s["columns"][0].update(boundaries=[0.0] * 10_000),
        lambda s: s["columns"][0].update(count=0),
        lambda s: s.update(columns=s["columns"] * 100),
        lambda s: s.update(rows={}),
        lambda s: s["predictions"].update(shares=[1.0]),
        lambda s: s["alignment"].update(t=[]),
        lambda s: s["alignment"].update(low=[None] * 11),
    ],
)
def test_statistics_of_a_stranger_are_checked(change, bundle_folder: Path, board: Graph) -> None:
    manifest = read_manifest(bundle_folder)
    statistics = json.loads(json.dumps(manifest.statistics))
    change(statistics)
    result = load(bundle_folder).run(board, 3)
    damaged = replace(result, compared=(replace(manifest, statistics=statistics), board))
    with warnings.catch_warnings(), pytest.raises(BundleError, match=r"statistics .* are damaged"):
        warnings.simplefilter("error")  # of numpy: the command line would print its lines
        damaged.drift.warnings()
