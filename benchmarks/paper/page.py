"""Write benchmarks/paper.md and its pictures from the rows alone."""

from pathlib import Path

from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_runtime.files import write_file
from benchmarks.paper import ablations, compute, more, pictures, texts, theory, transductive, zero_shot
from benchmarks.paper.cells import (
    IMPOSSIBLE,
    QUICK,
    UNFINISHED,
    exit_rows,
    markdown,
    mean_cell,
    one_value,
    percent,
    transductive_rows,
)
from benchmarks.paper.claims import changed_by, claims, peak_regret, slopes, summary
from benchmarks.paper.parts import PARTS
from benchmarks.paper.published import NAMES, TRANSDUCTIVE, ZERO_SHOT_CORA
from benchmarks.paper.runner import Selection
from benchmarks.paper.table import Key, Table

ADAR_NAMES = {
    "default": "AdaR, default",
    "transductive": "AdaR, `--preset transductive`",
}


def write_page(table: Table, page: Path, folder: Path) -> None:
    """Write the page, and the pictures into `folder`."""
    sections = [introduction, claim_table, transductive_table, step_figure, exit_figure, compute_figure]
    sections += [theory_figure, zero_shot_table, more_table, unfinished]
    lines = [line for section in sections for line in section(table, folder)]
    write_file(page, ("\n".join(lines).rstrip() + "\n").encode())


def introduction(table: Table, folder: Path) -> list[str]:  # noqa: ARG001
    """What the page is and how to read it."""
    rows = [row for name in PARTS for row in table.rows(name)]
    text = texts.INTRODUCTION.format(
        quick=QUICK,
        unfinished=UNFINISHED,
        rows=len(rows),
        machines="; ".join(sorted({row["machine"] for row in rows if not row.get("added")})),
    )
    return text.split("\n")


def claim_table(table: Table, folder: Path) -> list[str]:  # noqa: ARG001
    """Which claims of the paper hold here."""
    found = claims(table)
    rows = [
        (one.topic, one.text, one.place, f"**{one.verdict}**" + (QUICK if one.quick else ""), one.figures)
        for one in found
    ]
    others = [f'"{one.text}" ({one.place}) {one.verdict}' for one in changed_by(table, texts.EARLIER_LIMIT)]
    changed = f"these verdicts would change: {'; '.join(others)}" if others else "no verdict would change"
    return [
        *texts.CLAIMS.split("\n"),
        *summary(found),
        *texts.LIMITS.format(quick=QUICK, changed=changed).split("\n"),
        *markdown(("where", "claim of the paper", "set", "verdict", "figures"), rows),
    ]


def transductive_table(table: Table, folder: Path) -> list[str]:  # noqa: ARG001
    """Tab. transductive."""
    expected = len(transductive.SPLITS)
    lines = []
    for setting, name in ADAR_NAMES.items():
        cells = []
        for one in transductive.SETS:
            cells += [mean_cell(transductive_rows(table, "adar", one, setting), expected)]
            cells += [f"{TRANSDUCTIVE['adar'][one]:.2f}"]
        lines.append((name, *cells))
    for method in ("n2", *(one for one in transductive.DEPTHS if one != "n2")):
        cells = []
        for one in transductive.SETS:
            published = TRANSDUCTIVE.get(method, {}).get(one)
            rows = transductive_rows(table, method, one)
            impossible = (method, one) in transductive.IMPOSSIBLE
            cells += [IMPOSSIBLE if impossible else mean_cell(rows, expected)]
            cells += ["–" if published is None else f"{published:.2f}"]
        lines.append((NAMES[method], *cells))
    head = ["", *(text for name in transductive.SETS for text in (name, "paper"))]
    text = texts.TRANSDUCTIVE.format(
        settings=len(transductive.SETTINGS),
        quick_settings=len(transductive.QUICK_SETTINGS),
        epochs=transductive.TRAINING["epochs"],
        patience=transductive.TRAINING["patience"],
        quick_epochs=transductive.QUICK_TRAINING["epochs"],
        quick_patience=transductive.QUICK_TRAINING["patience"],
    )
    return [*text.split("\n"), *markdown(head, lines)]


def step_figure(table: Table, folder: Path) -> list[str]:
    """Fig. step."""
    drawn = pictures.draw_ablations(table, folder / "paper-step.png")
    lines = []
    for name in ablations.SETS:
        for variant in ablations.WITHOUT:
            row = table.find(Key(ablations.PART_NAME, name, 0, "adar", variant))
            mark = QUICK if row and row["quick"] else ""
            ends = [UNFINISHED] * len(PAPER_BUDGETS)
            if row is not None:
                ends = [percent(row["ends"][str(budget)]["test"]) for budget in PAPER_BUDGETS]
            lines.append((name, variant + mark, *ends))
    return [
        *texts.STEP.split("\n"),
        *_picture(drawn, "Test metric by budget for each ablation", folder, "paper-step.png"),
        *markdown(("set", "variant", *(str(budget) for budget in PAPER_BUDGETS)), lines),
    ]


def exit_figure(table: Table, folder: Path) -> list[str]:
    """Fig. exit."""
    rows = exit_rows(table)
    drawn = pictures.draw_exit(rows, folder / "paper-exit.png")
    lines = []
    for title, row in rows:
        path = row["trajectory"]
        peak, best = max(path, key=lambda one: one[1]), max(path, key=lambda one: one[-1])
        figures = (
            f"{peak[0]:.2f}",
            percent(peak[-1]),
            f"{best[0]:.2f}",
            percent(best[-1]),
            percent(path[-1][-1]),
        )
        lines.append((title + (QUICK if row["quick"] else ""), *figures, f"{peak_regret(row):.2f}"))
    head = (
        "model",
        "t of the peak",
        "test at the peak",
        "t of the best step",
        "test there",
        "test at the end",
        "points lost at the peak",
    )
    return [
        *texts.EXIT.split("\n"),
        *_picture(drawn, "Test metric and mean inner product against time", folder, "paper-exit.png"),
        *markdown(head, lines),
        *_exit_rules(table),
    ]


def _exit_rules(table: Table) -> list[str]:
    """The exit that training chose, and what the peak costs on validation."""
    lines = []
    for row in table.rows(transductive.PART_NAME):
        if "exit_regret" in row:
            regret = [f"{100 * row['exit_regret'].get(one, 0):.2f}" for one in ("peak", "time", "final")]
            mark = QUICK if row["quick"] else ""
            lines.append(
                (f"{row['set']} {row['split']}, {row['setting']}{mark}", row["exit"]["rule"], *regret)
            )
    head = ("run", "chosen exit", "lost at the peak", "at the calibrated time", "at the end")
    return [*texts.EXIT_RULES.split("\n"), *markdown(head, sorted(lines))] if lines else []


def compute_figure(table: Table, folder: Path) -> list[str]:
    """Fig. accuracy against compute, and Tab. cost."""
    drawn = pictures.draw_compute(table, folder / "paper-compute.png")
    models = [("adar", compute.ADAR_SETTING)]
    models += [(one, f"{depth} layers") for one in compute.METHODS for depth in compute.DEPTHS]
    lines = [line for name in compute.SETS for one in models for line in _cost_lines(table, name, *one)]
    head = ("model", "depth", "test", "learning rate", "training, CPU s", "training, MB", "CPU s per epoch")
    return [
        *texts.COMPUTE.format(epochs=compute.EPOCHS, quick_epochs=compute.QUICK_EPOCHS).split("\n"),
        *_picture(drawn, "Test metric against the time of an inference", folder, "paper-compute.png"),
        *markdown((*head, "inference, CPU s", "inference, MB"), lines),
    ]


def _cost_lines(table: Table, name: str, method: str, depth: str) -> list[tuple[str, ...]]:
    """A line per budget: the metric of the chosen learning rate, and the costs of the newest row."""
    rows = compute.searched(table, name, method, depth)
    if not rows:
        return [(NAMES[method], depth, *[UNFINISHED] * 7)]
    best, cost = rows[0], compute.cost_row(rows)
    rate = f"{best['settings']['lr']:g}" + ("" if len(rows) == len(compute.RATES) else " (alone)")
    training = (
        f"{cost['cpu_seconds']:.0f}",
        f"{cost['memory_mb']:.0f}",
        f"{cost['cpu_seconds_per_epoch']:.3f}",
    )
    lines: list[tuple[str, ...]] = []
    for steps, one in sorted(cost["inference"].items(), key=lambda item: int(item[0])):
        lines.append(
            (
                NAMES[method] + (QUICK if best["quick"] or cost["quick"] else ""),
                f"{steps} steps" if method == "adar" else depth,
                percent(best["inference"][steps]["test"]),
                rate,
                *training,
                f"{one['cpu_seconds']:.3f}",
                f"{one['memory_mb']:.0f}",
            )
        )
    return lines


def theory_figure(table: Table, folder: Path) -> list[str]:
    """Theory: the order of convergence."""
    drawn = pictures.draw_theory(table, folder / "paper-theory.png")
    lines = []
    for setting in (theory.WITH, theory.WITHOUT):
        found = ", ".join(f"{one:.2f}" for one in slopes(table, setting)) or UNFINISHED
        quick = any(row["quick"] for row in table.rows(theory.PART_NAME) if row["setting"] == setting)
        lines.append((setting + (QUICK if quick else ""), found))
    return [
        *texts.THEORY.split("\n"),
        *_picture(
            drawn, "Error against the budget with and without step information", folder, "paper-theory.png"
        ),
        *markdown(("model", "order of convergence, per seed"), lines),
    ]


def zero_shot_table(table: Table, folder: Path) -> list[str]:  # noqa: ARG001
    """Tab. zero-shot."""
    lines = []
    for task in zero_shot.PART.tasks(table, zero_shot.SETS, False):
        key = task.key
        row = table.find(key)
        budgets = row.get("by_budget") if row else None
        cells = [one_value(row)]
        cells.append(
            " / ".join(percent(budgets[str(one)]["at exit"]) for one in zero_shot.BUDGETS) if budgets else "–"
        )
        published = ZERO_SHOT_CORA.get(key.method)
        lines.append(
            (NAMES[key.method], key.setting, *cells, "–" if published is None else f"{published:.2f}")
        )
    return [
        *texts.ZERO_SHOT.format(trained_on=" and ".join(zero_shot.TRAINED_ON)).split("\n"),
        *markdown(
            (
                "method",
                "setting",
                "Cora",
                f"Cora with {' / '.join(map(str, zero_shot.BUDGETS))} steps",
                "paper",
            ),
            lines,
        ),
    ]


def more_table(table: Table, folder: Path) -> list[str]:  # noqa: ARG001
    """Baselines on more graphs."""
    lines: list[tuple[str, ...]] = []
    for name in more.SETS:
        if name == more.GRAPHS:
            lines.append((name, "–", "–", "–", one_value(table.find(Key("more", name, 0, "gin")))))
            continue
        cells = []
        for method, setting in (("lr", "default"), *(("gcn", one) for one in more.GCN_SETTINGS)):
            rows = [
                row for split in more.SPLITS if (row := table.find(Key("more", name, split, method, setting)))
            ]
            cells.append(mean_cell(rows, len(more.SPLITS)))
        lines.append((name, *cells, "–"))
    return [
        *texts.MORE.split("\n"),
        *markdown(("set", "logistic regression", "GCN, default", "GCN, shallow", "GIN"), lines),
    ]


def unfinished(table: Table, folder: Path) -> list[str]:  # noqa: ARG001
    """How many rows are missing, and why some failed."""
    lines, failures = [], []
    for name in PARTS:
        every = Selection([name], None, None, quick=False).planned(table)
        in_quick_form = {task.key for task in Selection([name], None, None, quick=True).planned(table)}
        done = [row for task in every if (row := table.find(task.key)) is not None]
        left = [task for task in every if table.find(task.key) is None]
        quick, missing = sum(row["quick"] for row in done), sum(task.key in in_quick_form for task in left)
        counts = (len(done) - quick, quick, len(left) - missing, missing)
        lines.append((name, *map(str, counts)))
        failures += [f"- {task.key}: {reason}" for task in left if (reason := table.failure(task.key))]
    return [
        *texts.UNFINISHED.split("\n"),
        *markdown(("part", "rows in full", "quick rows", "rows of the full form alone", UNFINISHED), lines),
        *(["Rows that failed:", "", *failures, ""] if failures else []),
    ]


def _picture(drawn: bool, text: str, folder: Path, name: str) -> list[str]:
    return (
        [f"![{text}]({folder.name}/{name})", ""] if drawn else [f"The picture needs rows: {UNFINISHED}.", ""]
    )
