"""The work of `adar-deploy run` on a graph store: progress, and predictions by part."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adar_deploy.console import Bar, err, print_note
from adar_deploy.inference import Inference, Success

if TYPE_CHECKING:
    from adar_runtime import Result, Step
    from adar_runtime.graph.store import GraphStore
    from adar_runtime.loop.loop import Loop
    from adar_runtime.loop.solvers import Move
    from adar_runtime.phases.run_store import Start

WORK, SUMMARY = "unfinished", "run.json"  # in the folder of the predictions
STARTED = "adar-deploy"  # an empty file in WORK, which shows that this program made the folder
STATES = r"(state\.json(\.new)?|[a-z]+\.raw|(small|[0-9]{5})(/[\w-]+\.npy)?)"  # paths of an inference


@dataclass(frozen=True)
class StoreInference:
    """Runs a graph store. The states are in the folder of the predictions until they are complete."""

    inference: Inference
    path: Path  # a store or, with `shards`, a graph file
    output: Path
    max_bytes: int | None = None
    workers: str | None = None  # the Ray cluster that runs the shards; None for this process
    shards: int | None = None  # shards that a graph file is split into

    def run(self, *, shown: bool) -> Success:
        """Predict, or continue an interrupted inference."""
        from adar_runtime.files import Marker, check_replaceable, write_file, writing
        from adar_runtime.prediction_files import prediction_writer
        from adar_runtime.temporary_files import locked

        prediction_writer(self.output / "part.parquet")  # raises an error if a package is missing
        check_replaceable(self.output, Marker(SUMMARY, "stop_reason"), Marker(WORK))
        work = self.output / WORK
        _check_work(work)
        with writing(work):
            self.output.mkdir(parents=True, exist_ok=True)
            with locked(self.output):
                work.mkdir(exist_ok=True)  # a command that waited for the lock finds it removed
                (work / STARTED).touch()
                store = self._store(work, shown=shown)
                with self._who_runs() as start:
                    result = self._loop(store, work, start, shown=shown)
                _check_same(store, work)
                written = self._write(store, result)
                _check_same(store, work)  # the ids are read while the predictions are written
                done = self._success(store, result, written)
                write_file(self.output / SUMMARY, json.dumps(done.summary()).encode())
                _remove(work)
        return done

    def _store(self, work: Path, *, shown: bool) -> "GraphStore":
        """The checked store, or the new store of a graph file."""
        from adar_runtime import read_graph
        from adar_runtime.graph.store import open_store, sources, write_store
        from adar_runtime.graph.store.partition import metis_parts
        from adar_runtime.graph.store.write import Classes
        from adar_runtime.in_context.start import known_labels

        if self.shards is None:
            store = open_store(self.path)
            with Bar("check", store.parts, shown=shown) as bar:
                store.check(lambda done: bar.update(done, "parts"))
            return store
        graph, path = read_graph(self.path), work / "store"
        part_of = metis_parts(graph, self.shards)
        with Bar("shard", 1.0, counted=False, shown=shown) as bar:
            rows, edges = sources.GraphRows(graph), sources.edge_blocks(graph)
            classes = Classes.of(graph, known_labels(graph))
            cut = write_store(path, rows, edges, self.shards, classes, part_of, bar.update)
        if shown:
            print_note(f"{cut:.1%} of the edges connect two shards", to=err)
        return open_store(path)

    @contextmanager
    def _who_runs(self) -> "Iterator[Start | None]":
        """Ray actors, one for each part, or None for this process."""
        from adar_runtime.distributed.cluster import connected
        from adar_runtime.distributed.ray_shards import RayShards

        if self.workers is None:
            yield None
            return
        with connected(self.workers) as cpus:
            yield partial(RayShards, cpus)

    def _loop(self, store: "GraphStore", work: Path, start: "Start | None", *, shown: bool) -> "Result":
        from adar_runtime.phases.run_store import Plan, loop_over_store

        inference = self.inference
        with Bar("run", 1.0, counted=False, shown=shown) as bar:
            status = _Status(bar, inference.end_time)
            plan = Plan(work, self.max_bytes, start, status.on_shard)
            loop = loop_over_store(
                inference.bundle, store, inference.budget, inference.rule, inference.solver, plan
            )
            status.on_step(None, loop)
            for step in loop:
                status.on_step(step, loop)
            return loop.result()

    def _write(self, store: "GraphStore", result: "Result") -> tuple[Path, ...]:
        """Write the predictions of each part."""
        from adar_runtime.files import write_file
        from adar_runtime.prediction_files import prediction_writer

        (self.output / SUMMARY).unlink(missing_ok=True)  # written last: with it, all parts are there
        for old in self.output.glob(f"part-{'[0-9]' * 5}.parquet"):
            old.unlink()
        paths = tuple(self.output / f"part-{number:05d}.parquet" for number in range(store.parts))
        for number, path in enumerate(paths):
            part = store.part(number)
            rows = replace(result, scores=result.scores[part.numbers], outputs=part.numbers, ids=part.ids)
            write_file(path, prediction_writer(path)(rows))
        return paths

    def _success(self, store: "GraphStore", result: "Result", written: tuple[Path, ...]) -> Success:
        from adar_runtime.evaluation.metrics import metric_name
        from adar_runtime.graph import NODE

        return Success(
            path=self.path,
            nodes=store.nodes,
            edges=store.edges,
            metric=metric_name(result.scores.shape[1], regression=result.regression),
            level=NODE,
            metrics={},
            result=replace(result, scores=result.scores[:0].copy()),
            written=written,
        )


def _check_same(store: "GraphStore", work: Path) -> None:
    """Refuse a store that was replaced during the inference. The states are of two stores: remove them."""
    from adar_runtime.errors import GraphError
    from adar_runtime.graph.store import open_store

    if open_store(store.path).checksum != store.checksum:
        _remove(work)
        raise GraphError(f"{store.path} was replaced during the inference: run the command again")


def _remove(work: Path) -> None:
    """Remove the unfinished inference in one operation: no later command finds a part of it."""
    from adar_runtime.temporary_files import temporary_folder

    with temporary_folder(work.parent) as removed:
        work.rename(removed / WORK)


def _check_work(work: Path) -> None:
    """Refuse a folder with anything of somebody else: it is removed when the predictions are complete."""
    from adar_runtime.errors import UsageError
    from adar_runtime.files import Marker, check_replaceable
    from adar_runtime.graph.store import store
    from adar_runtime.phases.run_record import FILE_NAME

    own = rf"{STARTED}|{STATES}|check(/{STATES})?|store(/({store.MARKER.own}))?"
    check_replaceable(work, Marker(STARTED, own=own), Marker(FILE_NAME, "settings"))
    link = next((path for path in (work, *work.rglob("*")) if path.is_symlink()), None)
    if link is not None:
        raise UsageError(f"{link} is a link, and nothing is written through links: remove it")


class _Status:
    """The progress of a run whose steps may take minutes."""

    def __init__(self, bar: Bar, end_time: float) -> None:
        self._bar, self._end_time = bar, end_time
        self._now, self._text = 0.0, "preparing"
        self._next: Move | None = None

    def on_step(self, step: "Step | None", loop: "Loop") -> None:
        """A step is done, or the first one begins."""
        self._now = 0.0 if step is None else step.time
        self._next = None if loop.ended else loop.upcoming[1]
        alignment = "" if step is None else f"  alignment {step.alignment:.4g}"
        self._text = f"call {loop.calls + 1}  t {self._now:.2f}{alignment}"

    def on_shard(self, done: int, shards: int, late: str) -> None:
        """A shard has done its part of a step."""
        size = 0.0 if self._next is None else self._next.size
        share = min(1.0, (self._now + size * done / shards) / self._end_time)
        self._bar.update(share, f"{self._text}  {done} of {shards}  {late}".rstrip())
