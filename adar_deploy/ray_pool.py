"""Many graphs on Ray: processes that each hold an open bundle, and write the predictions of their graphs.

A graph whose predictions are written is done: the same command does not repeat it. A graph whose process ends
is tried again, alone, a bounded number of times. Other graphs are not affected.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from adar_deploy.console import Bar, err, print_note, printable
from adar_deploy.inference import Failure, Inference, OutputFiles
from adar_deploy.many_graphs import Outcome, by_file, check_together, run_many

if TYPE_CHECKING:
    from adar_runtime import Graph, Solver, StopRule

SETTINGS = "run.json"  # in the folder of the predictions
TOGETHER = 16  # most graphs that a process gets at once: small ones share calls of the cell
PART = 1024  # graphs of a file of many that a process gets at once, and whose predictions are one file
TURNS = 4  # a process gets its graphs in at least this many turns, so that all processes end together


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


class Item(NamedTuple):
    """A graph file, or some graphs of a file that holds many, and the file of the predictions."""

    path: Path
    output: Path
    first: int = 0
    graphs: int | None = None  # None: the file holds one graph

    @property
    def failed(self) -> Path:
        """The file that lists the graphs without predictions, so that the next command tries them again."""
        return self.output.with_suffix(".failed.json")


@dataclass(frozen=True)
class Task:
    """Graphs that one process gets at once."""

    graphs: tuple[Item, ...]
    attempt: int = 0


class GraphActor:
    """An open bundle in a process of its own."""

    def __init__(self, settings: PoolSettings) -> None:
        from adar_runtime import load

        opened = load(settings.bundle, "onnxruntime-cpu", 1)
        self._inference = Inference(opened, settings.budget, settings.rule, settings.solver)
        self._many: tuple[Path, list[Graph]] | None = None  # the last file of many graphs

    def run(self, task: Task) -> list[list[Outcome]]:
        """Run graphs, and write their predictions. Returns the outcomes of each item."""
        from adar_runtime.errors import AdarError
        from adar_runtime.prediction_files import prediction_writer

        outputs = OutputFiles(
            [item.output for item in task.graphs],
            [None] * len(task.graphs),
            prediction_writer(task.graphs[0].output),
        )
        if task.graphs[0].graphs is not None:
            return [self._run_part(index, item, outputs) for index, item in enumerate(task.graphs)]
        found: list[list[Outcome]] = []
        answers = self._inference.together(_read(item.path) for item in task.graphs)
        for index, (graph, result) in enumerate(answers):
            path = task.graphs[index].path
            try:
                if result is None:
                    done = self._inference.run(path, graph, lambda _: None)
                else:
                    done = self._inference.answered(path, graph, result)
                found.append([outputs.save(index, done)])
            except AdarError as error:
                found.append([Failure(path, str(error))])
        return found

    def _run_part(self, index: int, item: Item, outputs: OutputFiles) -> list[Outcome]:
        """Run some graphs of a file that holds many."""
        from adar_runtime.errors import AdarError
        from adar_runtime.files import write_file
        from adar_runtime.graph.formats import read_graphs

        assert item.graphs is not None
        try:
            if self._many is None or self._many[0] != item.path:
                self._many = item.path, read_graphs(item.path)
            check_together(self._inference, item.path, self._many[1])  # parts have the same classes
            graphs = self._many[1][item.first : item.first + item.graphs]
            found = run_many(self._inference, item.path, graphs, item.first)
            failed = [one.error for one in found if isinstance(one, Failure)]
            if failed:
                write_file(item.failed, json.dumps(failed).encode())
            else:
                item.failed.unlink(missing_ok=True)
            return [one if isinstance(one, Failure) else outputs.save(index, one) for one in found]
        except AdarError as error:
            return [Failure(item.path, str(error))]


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

    def run(self, graphs: Sequence[Item], on_done: Callable[[int, str], None]) -> list[Outcome]:
        """Run all items. `on_done` receives the number of finished items, and the name of the last one."""
        from adar_runtime.distributed.cluster import import_ray

        ray = import_ray()
        make = ray.remote(self.actor).options(num_cpus=1)
        waiting = list(_tasks(graphs, self.processes))[::-1]
        free = [make.remote(self.settings) for _ in range(min(self.processes, len(waiting)))]
        at_work: dict[Any, tuple[Any, Task]] = {}
        outcomes: dict[Item, list[Outcome]] = {}
        while waiting or at_work:
            while waiting and free:
                actor, task = free.pop(), waiting.pop()
                at_work[actor.run.remote(task)] = actor, task
            (ready,), _ = ray.wait(list(at_work), num_returns=1)
            actor, task = at_work.pop(ready)
            try:
                outcomes |= zip(task.graphs, ray.get(ready), strict=True)
                free.append(actor)
            except Exception as error:
                waiting += self._again(task, error, outcomes)
                free.append(make.remote(self.settings))
            on_done(len(outcomes), task.graphs[-1].path.name)
        return [outcome for item in graphs for outcome in outcomes[item]]

    def _again(self, task: Task, error: Exception, outcomes: dict[Item, list[Outcome]]) -> list[Task]:
        """The graphs of a lost process, each alone; a graph that was tried often enough has failed."""
        from adar_runtime.distributed.cluster import RETRIES, is_lost
        from adar_runtime.errors import AdarError, reason

        if not is_lost(error):
            cause = getattr(error, "cause", error)
            raise (cause if isinstance(cause, AdarError) else error) from error
        if task.attempt < RETRIES:
            return [Task((one,), task.attempt + 1) for one in task.graphs]
        for item in task.graphs:
            which = "" if item.graphs is None else f"graphs {item.first} to {item.first + item.graphs - 1}: "
            times = (
                f"its process ended {task.attempt + 1} times, perhaps for lack of memory ({reason(error)})"
            )
            outcomes[item] = [Failure(item.path, which + times)]
        return []


def run_on_ray(
    inference: Inference, files: Sequence[Path], output: Path, workers: str, *, shown: bool
) -> list[Outcome]:
    """Run the graphs that are not done yet on a Ray cluster. The others are counted in a note."""
    from adar_runtime.distributed.cluster import check_workers, connected, import_ray
    from adar_runtime.prediction_files import prediction_writer

    check_workers(workers)
    import_ray()
    prediction_writer(output / "predictions.parquet")  # raises an error if a package is missing
    bundle = inference.bundle
    settings = PoolSettings(bundle.path.absolute(), inference.budget, inference.rule, inference.solver)
    graphs = plan_outputs(files, output, settings.to_value(bundle.manifest.checksum))
    done = len(set(files)) - len({item.path for item in graphs})
    if done and shown:
        print_note(f"{done:,} graphs were done before", to=err)
    if not graphs:
        return []
    with Bar("run", len(graphs), shown=shown) as bar, connected(workers) as cpus:
        found = RayPool(settings, cpus).run(graphs, lambda done, name: bar.update(done, printable(name)))
    return by_file(found)


def _tasks(graphs: Sequence[Item], processes: int) -> Iterator[Task]:
    single = [item for item in graphs if item.graphs is None]
    size = max(1, min(TOGETHER, len(single) // (TURNS * processes)))
    for start in range(0, len(single), size):
        yield Task(tuple(single[start : start + size]))
    yield from (Task((item,)) for item in graphs if item.graphs is not None)


def plan_outputs(files: Sequence[Path], folder: Path, settings: dict[str, Any]) -> list[Item]:
    """The graphs that are not done, with the file of their predictions: a folder per graph, as Hive names it.

    A file of many graphs is divided, so that all processes have work.

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
    items = [item for path, output in pairs for item in _items(path.absolute(), output.absolute())]
    return [item for item in items if not _is_done(item)]


def _items(path: Path, output: Path) -> list[Item]:
    """The graph of a file, or the graphs of a file that holds many, some at a time."""
    from adar_runtime.graph.formats import count_graphs

    count = count_graphs(path)
    if count is None:
        return [Item(path, output)]
    return [
        Item(path, output.with_name(f"part-{start // PART:05d}.parquet"), start, min(PART, count - start))
        for start in range(0, count, PART)
    ]


def _is_done(item: Item) -> bool:
    """Whether the predictions are newer than the graph, and complete."""
    try:
        return item.output.stat().st_mtime >= item.path.stat().st_mtime and not item.failed.exists()
    except OSError:
        return False
