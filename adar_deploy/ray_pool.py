"""Many graphs on Ray: processes that each hold an open bundle, and write the predictions of their graphs.

A graph whose predictions are written is done: the same command does not repeat it. A graph whose process ends
is tried again, alone, a bounded number of times. Other graphs are not affected.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from adar_deploy.console import Bar, err, print_note, printable
from adar_deploy.inference import Failure, Inference, OutputFiles, Success

if TYPE_CHECKING:
    from adar_runtime import Solver, StopRule

SETTINGS = "run.json"  # in the folder of the predictions
TOGETHER = 16  # most graphs that a process gets at once: small ones share calls of the cell
TURNS = 4  # a process gets its graphs in at least this many turns, so that all processes end together

Outcome = Success | Failure


@dataclass(frozen=True)
class PoolSettings:
    """What every process needs to run graphs."""

    bundle: Path
    budget: int
    rule: "StopRule"
    solver: "Solver"

    def to_value(self, checksum: str) -> dict[str, Any]:
        """What the predictions depend on, as JSON values."""
        return {
            "bundle": checksum,
            "budget": self.budget,
            "stop rule": repr(self.rule),
            "solver": repr(self.solver),
        }


@dataclass(frozen=True)
class Task:
    """Graphs that one process gets at once."""

    graphs: tuple[tuple[Path, Path], ...]  # the file of each graph, and of its predictions
    attempt: int = 0


class GraphActor:
    """An open bundle in a process of its own."""

    def __init__(self, settings: PoolSettings) -> None:
        from adar_runtime import load

        opened = load(settings.bundle, "onnxruntime-cpu", 1)
        self._inference = Inference(opened, settings.budget, settings.rule, settings.solver)

    def run(self, task: Task) -> list[Outcome]:
        """Run graphs, and write their predictions."""
        from adar_runtime.errors import AdarError
        from adar_runtime.prediction_files import prediction_writer

        outputs = OutputFiles(
            [output for _, output in task.graphs],
            [None] * len(task.graphs),
            prediction_writer(task.graphs[0][1]),
        )
        found: list[Outcome] = []
        answers = self._inference.together(_read(path) for path, _ in task.graphs)
        for index, (graph, result) in enumerate(answers):
            path = task.graphs[index][0]
            try:
                if result is None:
                    done = self._inference.run(path, graph, lambda _: None)
                else:
                    done = self._inference.answered(path, graph, result)
                found.append(outputs.save(index, done))
            except AdarError as error:
                found.append(Failure(path, str(error)))
        return found


def _read(path: Path) -> Any:
    from adar_runtime import AdarError, read_graph

    try:
        return read_graph(path)
    except AdarError as error:
        return error


@dataclass(frozen=True)
class RayPool:
    """Runs graphs on the processes of a Ray cluster."""

    settings: PoolSettings
    processes: int
    actor: type[GraphActor] = GraphActor

    def run(self, graphs: Sequence[tuple[Path, Path]], on_done: Callable[[int, str], None]) -> list[Outcome]:
        """Run all graphs. `on_done` receives the number of finished graphs, and the name of the last one."""
        from adar_runtime.distributed.cluster import import_ray

        ray = import_ray()
        make = ray.remote(self.actor).options(num_cpus=1)
        waiting = list(_tasks(graphs, self.processes))[::-1]
        free = [make.remote(self.settings) for _ in range(min(self.processes, len(waiting)))]
        at_work: dict[Any, tuple[Any, Task]] = {}
        outcomes: dict[Path, Outcome] = {}
        while waiting or at_work:
            while waiting and free:
                actor, task = free.pop(), waiting.pop()
                at_work[actor.run.remote(task)] = actor, task
            (ready,), _ = ray.wait(list(at_work), num_returns=1)
            actor, task = at_work.pop(ready)
            try:
                for outcome in ray.get(ready):
                    outcomes[outcome.path] = outcome
                free.append(actor)
            except Exception as error:
                waiting += self._again(task, error, outcomes)
                free.append(make.remote(self.settings))
            on_done(len(outcomes), task.graphs[-1][0].name)
        return [outcomes[path] for path, _ in graphs]

    def _again(self, task: Task, error: Exception, outcomes: dict[Path, Outcome]) -> list[Task]:
        """The graphs of a lost process, each alone; a graph that was tried often enough has failed."""
        from adar_runtime.distributed.cluster import RETRIES, is_lost
        from adar_runtime.errors import AdarError, reason

        if not is_lost(error):
            cause = getattr(error, "cause", error)
            raise (cause if isinstance(cause, AdarError) else error) from error
        if task.attempt < RETRIES:
            return [Task((one,), task.attempt + 1) for one in task.graphs]
        for path, _ in task.graphs:
            outcomes[path] = Failure(
                path,
                f"its process ended {task.attempt + 1} times, perhaps for lack of memory ({reason(error)})",
            )
        return []


def run_on_ray(
    inference: Inference, files: Sequence[Path], output: Path, workers: str, *, shown: bool
) -> list[Outcome]:
    """Run the graphs that are not done yet on a Ray cluster. The others are counted in a note."""
    from adar_runtime.bundle.manifest import checksum_of
    from adar_runtime.distributed.cluster import check_workers, connected, import_ray
    from adar_runtime.prediction_files import prediction_writer

    check_workers(workers)
    import_ray()
    prediction_writer(output / "predictions.parquet")  # raises an error if a package is missing
    bundle = inference.bundle
    settings = PoolSettings(bundle.path.absolute(), inference.budget, inference.rule, inference.solver)
    graphs = plan_outputs(files, output, settings.to_value(checksum_of(bundle.manifest.to_dict())))
    if len(graphs) < len(files) and shown:
        print_note(f"{len(files) - len(graphs):,} graphs were done before", to=err)
    if not graphs:
        return []
    with Bar("run", len(graphs), shown=shown) as bar, connected(workers) as cpus:
        return RayPool(settings, cpus).run(graphs, lambda done, name: bar.update(done, printable(name)))


def _tasks(graphs: Sequence[tuple[Path, Path]], processes: int) -> Iterator[Task]:
    size = max(1, min(TOGETHER, len(graphs) // (TURNS * processes)))
    for start in range(0, len(graphs), size):
        yield Task(tuple(graphs[start : start + size]))


def plan_outputs(files: Sequence[Path], folder: Path, settings: dict[str, Any]) -> list[tuple[Path, Path]]:
    """The graphs that are not done, with the file of their predictions: a folder per graph, as Hive names it.

    Raises:
        UsageError: Two graphs have the same name, or the folder has predictions with other settings.
    """
    from adar_runtime.errors import UsageError
    from adar_runtime.files import Marker, check_replaceable, write_file

    outputs = [folder / f"graph={quote(path.stem, safe='')}" / "predictions.parquet" for path in files]
    for path in outputs:
        if outputs.count(path) > 1:
            raise UsageError(f"two graphs would be written to {path}: give their files different names")
    check_replaceable(folder, Marker(SETTINGS, "bundle"))
    recorded = folder / SETTINGS
    if recorded.exists() and json.loads(recorded.read_text()) != settings:
        raise UsageError(
            f"{folder} has predictions of another bundle, budget, stop rule or solver: choose another folder"
        )
    write_file(recorded, json.dumps(settings).encode())
    pairs = zip(files, outputs, strict=True)
    return [(path.absolute(), output.absolute()) for path, output in pairs if not _is_done(path, output)]


def _is_done(graph: Path, output: Path) -> bool:
    """Whether the predictions are newer than the graph."""
    try:
        return output.stat().st_mtime >= graph.stat().st_mtime
    except OSError:
        return False
