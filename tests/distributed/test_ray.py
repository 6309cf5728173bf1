"""Many graphs, and the shards of one graph, on a real Ray cluster with two processes."""

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adar_deploy import ray_pool
from adar_deploy.inference import Failure, Success
from adar_deploy.paths import PRETRAINED, named_bundle
from adar_deploy.ray_pool import GraphActor, Item, PoolSettings, RayPool, Task
from adar_runtime import Euler, Final, Graph, load, write_graph
from adar_runtime.distributed.ray_shards import RayShards
from adar_runtime.graph.store import open_store, sources, write_store
from adar_runtime.graph.store.write import Classes
from adar_runtime.graph.synthetic import minesweeper
from adar_runtime.in_context.start import known_labels
from adar_runtime.phases.run_store import Plan, loop_over_store
from tests.cli.conftest import adar
from tests.in_context_graphs import block_graph

ray = pytest.importorskip("ray", reason="Ray is not installed (extra scale)")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]
__all__ = ["adar"]  # the fixture


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    folder = tmp_path / "graphs"
    folder.mkdir()
    for side in range(5, 11):
        write_graph(folder / f"board{side}.npz", minesweeper(side=side))
    return folder


def test_many_graphs_have_the_predictions_of_one_process(
    adar, graphs: Path, bundle_folder: Path, tmp_path: Path
) -> None:
    (graphs / "broken.npz").write_bytes(b"not a graph")
    words = ["--bundle", bundle_folder, "--max-steps", 5]
    code, out, err = adar("run", "graphs/*.npz", *words, "--workers", 2, "--output", "answers", "--json")
    assert (code, len(json.loads(out))) == (2, 7)
    assert "broken.npz" in err
    (graphs / "broken.npz").unlink()
    assert adar("run", "graphs", *words, "--output", "one/{name}.parquet")[0] == 0
    for path in sorted((tmp_path / "one").glob("*.parquet")):
        found = parquet.read_table(
            tmp_path / f"answers/graph={path.stem}/predictions.parquet", partitioning=None
        )
        expected = parquet.read_table(path)
        assert found.column_names == expected.column_names
        assert found["prediction"].to_pylist() == expected["prediction"].to_pylist()
        for name in (one for one in expected.column_names if one.startswith("probability")):
            np.testing.assert_allclose(found[name].to_numpy(), expected[name].to_numpy(), atol=1e-5)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "answers").rglob("*.parquet")}
    assert len(written) == 6
    write_graph(graphs / "new.npz", minesweeper(side=4))
    code, out, err = adar("run", "graphs", *words, "--workers", 2, "--output", "answers", "--json")
    assert (code, [Path(one["graph"]).name for one in json.loads(out)]) == (0, ["new.npz"])
    assert "6 graphs were done before" in err
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    other = ["--bundle", bundle_folder, "--max-steps", 6]
    assert "another bundle" in adar("run", "graphs", *other, "--workers", 2, "--output", "answers")[2]


def test_a_killed_process_loses_no_graph(graphs: Path, bundle_folder: Path, tmp_path: Path) -> None:
    """One graph kills its process once, one always; the others are answered."""

    class Dying(GraphActor):
        def run(self, task: Task) -> list[list[Success | Failure]]:
            for item in task.graphs:
                once, stem = item.output.with_suffix(".killed"), item.path.stem
                if stem == "board6" or (stem == "board8" and not once.exists()):
                    once.parent.mkdir(exist_ok=True)
                    once.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().run(task)

    settings = PoolSettings(bundle_folder, 4, Final(), Euler())
    items = [Item(path, tmp_path / path.stem / "predictions.parquet") for path in sorted(graphs.iterdir())]
    done: list[int] = []
    found = RayPool(settings, 2, Dying).run(items, lambda number, _: done.append(number))
    failed = [one for one in found if isinstance(one, Failure)]
    assert [(one.path.stem, "ended 3 times" in one.error) for one in failed] == [("board6", True)]
    assert [one.path for one in found] == [item.path for item in items]
    assert {path.parent.name for path in tmp_path.glob("*/predictions.parquet")} == {
        item.path.stem for item in items if item.path.stem != "board6"
    }
    assert done[-1] == len(items)


def test_a_file_of_many_graphs_is_divided(
    adar, many_graphs: Path, graph_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All predictions are those of one process; a part with a graph that failed is computed again."""
    monkeypatch.setattr(ray_pool, "PART", 4)
    words = ["run", many_graphs, "--bundle", graph_bundle, "--max-steps", 4]
    code, out, _ = adar(*words, "--workers", 2, "--output", "answers", "--json")
    assert (code, json.loads(out)["graphs"]) == (0, 10)
    parts = sorted((tmp_path / "answers" / "graph=many").glob("part-*.parquet"))
    assert len(parts) == 3
    assert adar(*words, "--output", "one.parquet")[0] == 0
    expected, found = parquet.read_table(tmp_path / "one.parquet"), [parquet.read_table(one) for one in parts]
    for name in expected.column_names:
        joined = np.concatenate([table[name].to_numpy() for table in found])
        np.testing.assert_allclose(joined, expected[name].to_numpy(), atol=1e-5)
    written = [one.stat().st_mtime_ns for one in parts]
    parts[1].with_suffix(".failed.json").write_text("[]")
    assert adar(*words, "--workers", 2, "--output", "answers")[0] == 0
    again = [one.stat().st_mtime_ns > before for one, before in zip(parts, written, strict=True)]
    assert again == [False, True, False]
    assert not parts[1].with_suffix(".failed.json").exists()
    code, out, err = adar(*words, "--workers", 2, "--output", "answers", "--json")
    assert (code, out.strip(), "1 graphs were done before" in err) == (0, "[]", True)


def test_shards_have_the_predictions_of_one_process(
    adar, board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pymetis", reason="pymetis is not installed (extra scale)")
    write_graph(tmp_path / "board.npz", board)
    words = ["run", "board.npz", "--bundle", bundle_folder, "--max-steps", 4]
    code, out, err = adar(*words, "--shards", 2, "--output", "answers", "--json")
    assert code == 0, err
    assert "of the edges connect two shards" in err
    assert json.loads(out)["backend"] == "onnxruntime-cpu on 2 Ray actors"
    assert adar(*words, "--output", "one.json")[0] == 0
    expected = np.array(json.loads((tmp_path / "one.json").read_text())["prediction"])
    for path in sorted((tmp_path / "answers").glob("part-*.parquet")):
        table = parquet.read_table(path)
        assert expected[table["output"].to_numpy()].tolist() == table["prediction"].to_pylist()


def test_a_lost_actor_is_started_again_and_a_late_one_is_named(
    board: Graph, bundle_folder: Path, tmp_path: Path
) -> None:
    bundle = load(bundle_folder, threads=1)
    write_store(tmp_path / "store", sources.GraphRows(board), sources.edge_blocks(board), 2)
    made: list[RayShards] = []

    def start(*given: object) -> RayShards:
        made.append(RayShards(2, *given))  # type: ignore[arg-type]
        return made[0]

    notes: set[str] = set()
    plan = Plan(tmp_path / "work", start=start, on_progress=lambda _done, _all, note: notes.add(note))
    loop = loop_over_store(bundle, open_store(tmp_path / "store"), 5, Final(), Euler(), plan)
    for step in loop:
        if step.index in (1, 3):
            ray.kill(made[0].actors[step.index // 2])
        elif step.index == 4:
            late = ray.get(made[0].actors[1].__ray_call__.remote(lambda _: os.getpid()))
            os.kill(late, signal.SIGSTOP)
            threading.Timer(1.5, os.kill, (late, signal.SIGCONT)).start()
    assert "waiting for shard 1" in notes
    expected = bundle.loop(board, 5, Final(), Euler())
    for _ in expected:
        pass
    np.testing.assert_allclose(loop.result().scores, expected.result().scores, atol=1e-5)
    state = loop.recurrence.state()
    for name, array in expected.recurrence.state().items():
        np.testing.assert_allclose(state[name], array, atol=1e-5, err_msg=name)


def test_shards_of_the_pretrained_model_have_the_predictions_of_one_process(tmp_path: Path) -> None:
    """An actor is lost in the label check and another one in the inference: the steps are made again."""
    bundle, graph = load(named_bundle(PRETRAINED), threads=1), replace(block_graph(), target_features=None)
    classes = Classes.of(graph, known_labels(graph))
    write_store(tmp_path / "store", sources.GraphRows(graph), sources.edge_blocks(graph), 2, classes)
    made: list[RayShards] = []

    def start(*given: object) -> RayShards:
        made.append(RayShards(2, *given))  # type: ignore[arg-type]
        return made[0]

    def kill(done: int, _all: int, _late: str) -> None:
        if (tmp_path / "work" / "check" / "state.json").exists() and done == 2 and not killed:
            killed.append(0)
            ray.kill(made[0].actors[0])

    killed: list[int] = []
    plan = Plan(tmp_path / "work", start=start, on_progress=kill)
    loop = loop_over_store(bundle, open_store(tmp_path / "store"), 5, Final(), Euler(), plan)
    for step in loop:
        if step.index == 2:
            ray.kill(made[0].actors[1])
    assert killed
    expected, found = bundle.run(graph, 5, Final(), Euler()), loop.result()
    assert found.check == expected.check
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3, atol=1e-4)


def test_workers_do_not_load_torch(bundle_folder: Path, graphs: Path, tmp_path: Path) -> None:
    settings = PoolSettings(bundle_folder, 2, Final(), Euler())
    task = Task((Item(graphs / "board5.npz", tmp_path / "predictions.parquet"),))

    def loaded() -> set[str]:
        assert isinstance(GraphActor(settings).run(task)[0][0], Success)
        return set(sys.modules)

    assert not ray.get(ray.remote(loaded).remote()) & {"torch", "adar_train", "onnx"}
