"""Part "transductive": the paper's table of supervised results on four graphs, three splits."""

from typing import Any

from adar_train import load
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.tasks import CHOSEN, SEARCH_SPLIT, Part, Task, Work, best_setting, searched_keys
from benchmarks.paper.training import adar_row, train_baseline

PART_NAME = "transductive"
SETS = ("minesweeper", "coauthor-cs", "amazon-computers", "tolokers")
SPLITS = (0, 1, 2)
DEPTHS = {  # layers of the shallow and of the deep setting
    "gcn": (2, 5),
    "sage": (2, 5),
    "gcnii": (4, 16),
    "appnp": (4, 10),
    "gprgnn": (4, 10),
    "n2": (4, 8),
    "h2gcn": (1, 2),
    "gps": (2, 4),
    "gat": (2, 5),
    "fagcn": (2, 4),
}
SETTINGS: dict[str, dict[str, Any]] = {  # the same for all baselines; chosen on validation of split 0
    "shallow": {"dropout": 0.5, "lr": 1e-2, "weight_decay": 5e-4},
    "deep": {"dropout": 0.2, "lr": 1e-2, "weight_decay": 1e-6},
    "slow": {"dropout": 0.2, "lr": 3e-3, "weight_decay": 1e-6},
}
QUICK_SETTINGS = ("shallow", "deep")
TRAINING = {"epochs": 300, "patience": 100}
QUICK_TRAINING = {"epochs": 100, "patience": 25}
QUICK_PRESET = ["--epochs", "100", "--lr", "0.003"]  # instead of 1,000 epochs at 0.001
ADAR = {"default": [], "transductive": ["--preset", "transductive"]}
SECONDS = {"minesweeper": 40, "coauthor-cs": 90, "amazon-computers": 80, "tolokers": 150}
PER_EDGE = ("gat", "fagcn")  # weights per edge take longer
IMPOSSIBLE = {("h2gcn", "tolokers")}  # too many two-hop neighbours: `adar_train.baselines` refuses it


def tasks(table: Table, sets: tuple[str, ...], quick: bool) -> list[Task]:
    """AdaR and, for each baseline, its settings on split 0, then the chosen setting on the other splits."""
    names = list(QUICK_SETTINGS if quick else SETTINGS)
    pairs = [(name, method) for name in sets for method in DEPTHS if (method, name) not in IMPOSSIBLE]
    found = [_task(name, SEARCH_SPLIT, method, setting) for name, method in pairs for setting in names]
    for split in SPLITS[1:]:
        for name, method in pairs:
            key = Key(PART_NAME, name, split, method, CHOSEN)
            chosen = best_setting(table, key, names)
            options = {} if chosen is None else {"setting": chosen}
            found.append(_task(name, split, method, CHOSEN, options, searched_keys(key, names)))
    found += [
        Task(
            Key(PART_NAME, name, split, "adar", setting),
            20 * SECONDS[name],
            has_quick_form=setting == "transductive",  # a shorter default would not be the default
        )
        for split in SPLITS
        for name in sets
        for setting in ADAR
    ]
    return found


def _task(
    name: str,
    split: int,
    method: str,
    setting: str,
    options: dict[str, Any] | None = None,
    waits_for: tuple[Key, ...] = (),
) -> Task:
    guess = 3 * SECONDS[name] * (4 if method in PER_EDGE else 1)
    return Task(Key(PART_NAME, name, split, method, setting), guess, options or {}, waits_for)


def measure(work: Work) -> Row:
    """One row."""
    key = work.key
    if key.method == "adar":
        return adar_row(work, [*ADAR[key.setting], *(QUICK_PRESET if work.quick else [])])
    setting = work.options.get("setting", key.setting)
    if setting == CHOSEN:
        raise RuntimeError("all settings of the search failed on split 0")
    layers = DEPTHS[key.method][0 if setting == "shallow" else 1]
    training = (QUICK_TRAINING if work.quick else TRAINING) | SETTINGS[setting]
    graph = load(str(work.file()))
    row = train_baseline(work, [graph], key.method, layers, **training)[1]
    return row | {"chosen": setting}


PART = Part(PART_NAME, SETS, tasks, measure)
