"""Measure the paper's experiments and write benchmarks/paper.md.

python -m benchmarks.paper                          everything that is missing, then the page
python -m benchmarks.paper --parts more --quick     one part, with fewer epochs
python -m benchmarks.paper --list                   what is left, with an estimate
python -m benchmarks.paper --page                   only the page and its pictures, from the results on disk

Every result is one line in benchmarks/results/, and a run skips what is there: stop it with Ctrl-C, start it
again at any time. Rows of --quick are marked; a later run without --quick measures them in full.
"""

import argparse
import math
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from adar_runtime.errors import AdarError
from benchmarks.paper.existing_runs import add_run
from benchmarks.paper.page import write_page
from benchmarks.paper.parts import PARTS
from benchmarks.paper.runner import ROOT, Selection, estimate, run_all
from benchmarks.paper.table import Key, Table
from benchmarks.paper.tasks import Task

console = Console(highlight=False, emoji=False)


def main() -> None:
    """Run, list or write the page."""
    options = parse()
    table = Table(options.results)
    selection = Selection(options.parts, options.sets, options.methods, options.quick, options.settings)
    if options.list:
        print_left(table, selection)
        return
    for folder in options.add_run or []:
        console.print(f"{add_run(table, folder, options.revision)}: added", markup=False, soft_wrap=True)
    only_page = options.page or options.add_run
    failed = [] if only_page else run(table, selection, options)
    page = options.results.parent / "paper.md"
    write_page(table, page, page.parent / "pictures")
    console.print(f"wrote {page}", markup=False, soft_wrap=True)
    if failed:
        sys.exit(f"{len(failed)} rows failed; the next run tries them again")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sets = sorted({name for part in PARTS.values() for name in part.sets})
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--sets", nargs="+", choices=sets, help="data sets; default: all of each part")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="for example gcn; default: all")
    parser.add_argument(
        "--settings", nargs="+", metavar="SETTING", help='for example "without L_full"; default: all'
    )
    parser.add_argument("--quick", action="store_true", help="fewer epochs and settings; rows say so")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no row after this time")
    parser.add_argument("--list", action="store_true", help="show what is left, with an estimate, and stop")
    parser.add_argument("--page", action="store_true", help="write the page from the results and stop")
    parser.add_argument(
        "--add-run", type=Path, nargs="+", metavar="RUN", help="add finished runs of AdaR, and stop"
    )
    parser.add_argument("--revision", help="commit of the code that trained these runs")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the graph files")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the rows"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of a training")
    options = parser.parse_args()
    if options.add_run and not options.revision:
        parser.error("--add-run needs --revision, the commit of the code that trained the runs")
    return options


def print_left(table: Table, selection: Selection) -> None:
    """Print each row that is left, and the number of rows and the estimated time of each part."""
    shown = RichTable("part", "done", "left", "failed", "minutes left, about")
    for part in selection.parts:
        one = replace(selection, parts=[part])
        every, todo = one.planned(table), one.left(table)
        seconds = [estimate(task, table, quick=selection.quick) for task in todo]
        reasons = [table.failure(task.key) for task in todo]
        for task, guess, reason in zip(todo, seconds, reasons, strict=True):
            failed = f"  failed: {reason}" if reason else ""
            console.print(f"{task.key}  about {guess:.0f} s{failed}", markup=False, soft_wrap=True)
        counts = (len(every) - len(todo), len(todo), sum(reason is not None for reason in reasons))
        shown.add_row(part, *map(str, counts), f"{sum(seconds) / 60:.0f}")
    console.print(shown)


def run(table: Table, selection: Selection, options: argparse.Namespace) -> list[Key]:
    """Run what is left, with one bar for all rows and one for the current row."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        rows = bars.add_task("rows", total=len(selection.left(table)))
        current = bars.add_task("", total=100)

        def show(task: Task, share: float, text: str) -> None:
            bars.update(current, completed=round(100 * share), description=escape(f"{task.key}: {text}"))
            if share == 1.0:
                bars.advance(rows)
                console.print(f"{task.key}: {text}", markup=False, soft_wrap=True)

        return run_all(table, selection, options.data, show, options.threads, 60 * options.minutes)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        main()
    except AdarError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped: the finished rows are kept, the same command continues")
