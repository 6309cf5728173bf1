"""Part "ablations": the paper's figure of test-time computing under different design choices."""

from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import Part, Task, Work
from benchmarks.paper.training import QUICK_PRESET, adar_row

PART_NAME = "ablations"
SETS = ("acm", "minesweeper")
WITHOUT = {
    "full": [],
    "without step information": ["step-info"],
    "unit time step": ["total-time"],
    "without relations": ["relation"],
    "without L_full": ["full-loss"],
    "without L_step": ["step-loss"],
    "L_task alone": ["step-loss", "full-loss"],
}
SECONDS = {"minesweeper": 900, "acm": 300}


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:  # noqa: ARG001
    """All variants on each set."""
    return [
        Task(Key(PART_NAME, name, 0, "adar", variant), SECONDS[name]) for name in sets for variant in WITHOUT
    ]


def measure(work: Work) -> Row:
    """AdaR with the paper's settings, without a part of it."""
    removed = [word for name in WITHOUT[work.key.setting] for word in ("--without", name)]
    short = QUICK_PRESET if work.quick else []
    return adar_row(work, ["--preset", "transductive", *short, *removed])


PART = Part(PART_NAME, SETS, tasks, measure)
