"""Writes a report: the work of `adar-deploy report` and of `TrainedModel.report`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.bundle_output import readable
from adar_deploy.console import Bar
from adar_deploy.environment import import_early
from adar_deploy.model_folders import ModelFolders
from adar_deploy.paths import output_or_default
from adar_deploy.report.facts import collect
from adar_deploy.report.measure import NamedGraphs, estimated_calls
from adar_deploy.report.page import START, page

if TYPE_CHECKING:
    from adar_runtime import Graph

PAGE = "report.html"  # if no other file is named


def page_to_write(given: Path | None) -> Path:
    """The file of the page. Without a name it is report.html, unless that is no page of this program.

    Raises:
        UsageError: A report cannot be written to this file.
    """
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable

    path = output_or_default(given, PAGE, _is_page)
    if path.suffix not in (".html", ".htm"):
        raise UsageError(f"{path}: a report is written as .html, not {path.suffix or 'nothing'!r}")
    check_writable(path)
    return path


def _is_page(path: Path) -> bool:
    """Whether a file is a page of this program."""
    from adar_runtime.files import open_regular

    try:
        with open_regular(path) as file:
            return file.read(len(START)) == START.encode()
    except (OSError, ValueError):
        return False


def measured_together(graphs: "Mapping[str, list[Graph]]", title: str) -> NamedGraphs:
    """The graphs of one report: one graph, or several with one label each, which are called `title`."""
    from adar_runtime.errors import UsageError
    from adar_runtime.evaluation.evaluate import grouped

    first = next(iter(graphs.values()))[0]
    groups = grouped(graphs, first.level, title)
    if len(groups) > 1:
        raise UsageError(f"a report is about one graph, and {len(groups)} were given: write one for each")
    return NamedGraphs(*next(iter(groups.items())))


def write_report(
    output: Path | None,
    folders: ModelFolders,
    measured: NamedGraphs | None,
    budgets: Sequence[int],
    *,
    shown: bool = True,
) -> dict[str, Any]:
    """Measure while a bar shows the progress, and write the page. Returns its content as JSON values.

    `output` is the file that the user named. Somebody may have written the default one meanwhile.
    """
    from adar_runtime.files import write_file

    sizes = sorted(set(budgets))
    if folders.bundle is None:
        import_early("train")
    with readable(folders.model):
        with Bar("report", estimated_calls(folders, sizes), counted=False, shown=shown) as bar:
            done = 0

            def show(what: str, calls: int) -> None:
                nonlocal done
                done += calls
                bar.update(done, what)

            facts = collect(folders, measured, sizes, show)
        text = page(facts)
    check = partial(output_or_default, output, PAGE, _is_page)
    write_file(output or Path(PAGE), text.encode(), check)
    return facts
