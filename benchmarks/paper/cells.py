"""Rows as text: means over splits, marks for quick rows, markdown tables."""

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from benchmarks.paper import transductive
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import CHOSEN, SEARCH_SPLIT, best_setting

UNFINISHED, IMPOSSIBLE = "not finished", "impossible"
QUICK = "ᵠ"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a markdown table, with an empty line after it."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def percent(value: float | None) -> str:
    """A share in percent with two digits."""
    return "–" if value is None else f"{100 * value:.2f}"


def one_value(row: Row | None, part: str = "test") -> str:
    """The metric of a row, with the mark of a quick row."""
    return UNFINISHED if row is None else percent(row.get(part)) + (QUICK if row["quick"] else "")


def mean_cell(rows: Sequence[Row], expected: int, part: str = "test") -> str:
    """Mean and spread over splits; the number of splits if some are missing."""
    if not rows:
        return UNFINISHED
    values = [100 * row[part] for row in rows]
    text = f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
    text += QUICK if any(row["quick"] for row in rows) else ""
    return text if len(rows) == expected else f"{text} ({len(rows)} of {expected} splits)"


def transductive_rows(table: Table, method: str, name: str, setting: str | None = None) -> list[Row]:
    """The finished rows of a setting or, without one, of the setting that a baseline's search chose."""
    part = transductive.PART_NAME
    if setting is not None:
        keys = [Key(part, name, split, method, setting) for split in transductive.SPLITS]
    else:
        first = Key(part, name, SEARCH_SPLIT, method)
        settings = [one for one in transductive.SETTINGS if one in _tried(table, first)]
        tried_enough = set(settings) >= set(transductive.QUICK_SETTINGS)
        chosen = best_setting(table, first, settings) if tried_enough else None
        if chosen is None:
            return []
        keys = [Key(part, name, SEARCH_SPLIT, method, chosen)]
        keys += [Key(part, name, split, method, CHOSEN) for split in transductive.SPLITS[1:]]
    found = [table.find(key) for key in keys]
    return [row for row in found if row is not None]


def _tried(table: Table, key: Key) -> set[str]:
    keys = {one: Key(key.part, key.set, key.split, key.method, one) for one in transductive.SETTINGS}
    return {name for name, one in keys.items() if table.find(one) or table.failure(one)}


def exit_rows(table: Table) -> list[tuple[str, Row]]:
    """AdaR's rows of split 0 with a trajectory, and their titles."""
    found: dict[str, Row] = {}
    for setting, title in (("default", "default"), ("transductive", "paper's preset")):
        for name in transductive.SETS:
            row = table.find(Key(transductive.PART_NAME, name, 0, "adar", setting))
            if row is not None and "trajectory" in row:
                found[f"{name}, {title}"] = row
    for name in ("minesweeper", "acm"):  # rows of the ablations replace those with the same settings
        for variant, title in (("full", ""), ("L_task alone", ", L_task alone")):
            row = table.find(Key("ablations", name, 0, "adar", variant))
            if row is not None:
                found[f"{name}, paper's preset{title}"] = row
    rows = sorted(found.items(), reverse=True)
    ours = table.find(Key("zero-shot", "cora-text", 0, "adar", "ours"))
    return [*rows, *([("cora-text, zero-shot", ours)] if ours else [])]
