"""The work of `adar-deploy run` for graph files in this process, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adar_deploy.console import Bar, printable
from adar_deploy.inference import Failure, Inference, OutputFiles, Success
from adar_deploy.live_status import LiveStatus
from adar_deploy.many_graphs import run_many_files

if TYPE_CHECKING:
    from adar_runtime import AdarError, Graph


def run_files(
    inference: Inference,
    files: Sequence[Path],
    read: "Callable[[Path], Graph] | None",
    outputs: OutputFiles,
    *,
    several: bool,
    shown: bool,
) -> list[Success | Failure]:
    """Run graph files and save what they give.

    Args:
        inference: The bundle and its settings.
        files: The files.
        read: How tables of nodes are read; None: the files are graph files, of one or of many graphs.
        outputs: Where predictions and pictures go.
        several: Whether a graph that fails is reported, and the others still run.
        shown: Whether to show a progress bar.
    """
    from adar_runtime import AdarError, read_graph
    from adar_runtime.graph.formats import count_graphs

    many = {path for path in files if read is None and count_graphs(path) is not None}
    single = [(index, path) for index, path in enumerate(files) if path not in many]
    with Bar("run", len(files), counted=several, shown=shown) as bar:
        results = run_many_files(inference, files, many, outputs, bar)
        answers = inference.together(_prefetch((path for _, path in single), read or read_graph))
        for (index, path), (graph, found) in zip(single, answers, strict=True):
            try:
                if found is None:
                    status = LiveStatus(bar, index, path.name if several else "", inference.end_time)
                    done = inference.run(path, graph, status)
                else:
                    done = inference.answered(path, graph, found)
                    bar.update(index + 1, printable(path.name))
                results.append(outputs.save(index, done))
            except AdarError as error:
                if not several:
                    raise
                results.append(Failure(path, str(error)))
    return results


def _prefetch(files: Iterable[Path], read: "Callable[[Path], Graph]") -> "Iterator[Graph | AdarError]":
    """Each graph, or its error, read while the graph before is processed."""
    from adar_runtime import AdarError
    from adar_runtime.loop.prefetch import prefetch

    def attempt(path: Path) -> "Graph | AdarError":
        try:
            return read(path)
        except AdarError as error:
            return error

    return prefetch(map(attempt, files))
