"""Measure the paper's experiments and write benchmarks/paper.md.

python -m benchmarks.paper                          everything that is missing, then the page
python -m benchmarks.paper --parts more --quick     one part, with fewer epochs
python -m benchmarks.paper --list                   what is left, with an estimate
python -m benchmarks.paper --page                   only the page and its pictures, from the results on disk

Every result is one line in benchmarks/results/, and a run skips what is there: stop it with Ctrl-C, start it
again at any time. Rows of --quick are marked; a later run without --quick measures them in full.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from benchmarks.paper.parts import PARTS
from benchmarks.paper.runner import ROOT, estimate, left, planned, run_all
from benchmarks.paper.table import Table
from benchmarks.paper.tasks import Task

console = Console(highlight=False, emoji=False)


def main() -> None:
    """Run, list or write the page."""
    options = parse()
    table = Table(options.results)
    if options.list:
        print_left(table, options)
        return
    failed = [] if options.page else run(table, options)
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
    parser.add_argument("--quick", action="store_true", help="fewer epochs and settings; rows say so")
    parser.add_argument("--list", action="store_true", help="show what is left, with an estimate, and stop")
    parser.add_argument("--page", action="store_true", help="write the page from the results and stop")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the graph files")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the rows"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of a training")
    return parser.parse_args()


def print_left(table: Table, options: argparse.Namespace) -> None:
    """Print the number of rows and the estimated time of each part, and each row that is left."""
    shown = RichTable("part", "done", "left", "failed", "minutes left, about")
    for part in options.parts:
        every = planned(table, [part], options.sets, quick=options.quick)
        todo = left(table, [part], options.sets, quick=options.quick)
        seconds = sum(estimate(task, table, quick=options.quick) for task in todo)
        failed = sum(table.failure(task.key) is not None for task in todo)
        shown.add_row(part, str(len(every) - len(todo)), str(len(todo)), str(failed), f"{seconds / 60:.0f}")
    for task in left(table, options.parts, options.sets, quick=options.quick):
        seconds = estimate(task, table, quick=options.quick)
        reason = table.failure(task.key)
        console.print(
            f"{task.key}  about {seconds:.0f} s{f'  failed: {reason}' if reason else ''}", markup=False
        )
    console.print(shown)


def run(table: Table, options: argparse.Namespace) -> list[object]:
    """Run what is left, with one bar for all rows and one for the current row."""
    total = len(left(table, options.parts, options.sets, quick=options.quick))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        rows = bars.add_task("rows", total=total)
        current = bars.add_task("", total=100)

        def show(task: Task, share: float, text: str) -> None:
            bars.update(current, completed=round(100 * share), description=f"{task.key}: {text}")
            if share == 1.0:
                bars.advance(rows)
                bars.print(f"{task.key}: {text}", markup=False)

        return list(
            run_all(
                table,
                options.parts,
                options.sets,
                options.data,
                quick=options.quick,
                show=show,
                threads=options.threads,
            )
        )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped: the finished rows are kept, the same command continues")
