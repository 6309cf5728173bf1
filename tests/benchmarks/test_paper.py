"""The paper's benchmark: rows on disk, resuming, failures, the search, and a page from the rows alone."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from adar_runtime.errors import UsageError
from adar_runtime.evaluation.curves import PAPER_BUDGETS
from adar_runtime.graph.formats import write_graph
from adar_train import TrainConfig
from benchmarks.paper import __main__ as command
from benchmarks.paper import ablations, compute, theory, transductive, zero_shot
from benchmarks.paper.cells import UNFINISHED, mean_cell, transductive_rows
from benchmarks.paper.claims import FAILS, HOLDS, OPEN, Claim, changed_by, claims, maxima
from benchmarks.paper.existing_runs import add_run
from benchmarks.paper.page import write_page
from benchmarks.paper.parts import PARTS
from benchmarks.paper.runner import Selection, estimate, run_all
from benchmarks.paper.table import Key, Table, make_row
from benchmarks.paper.tasks import CHOSEN, Task, Work
from benchmarks.paper.training import BASELINE_TRAINING
from tests.helpers import random_graph

KEY = Key("transductive", "minesweeper", 0, "gcn", "shallow")
ABOUT = {"revision": "abc", "machine": "here", "metric": "accuracy", "date": "2026-11-18 08:00"}


def row(key: Key, *, quick: bool = False, **values) -> dict:
    return make_row(key, quick=quick, **{"val": 0.5, "test": 0.5} | ABOUT | values)


def test_rows_are_on_disk_at_once_and_a_cut_off_line_is_no_row(tmp_path: Path) -> None:
    Table(tmp_path).add(row(KEY, test=0.25))
    file = tmp_path / "transductive.jsonl"
    assert json.loads(file.read_text())["test"] == 0.25
    with file.open("a") as cut:  # as a kill in the middle of a write leaves it
        cut.write('{"part": "transductive", "set": "mine')
    table = Table(tmp_path)
    assert table.find(KEY)["test"] == 0.25
    other = replace(KEY, setting="deep")
    table.add(row(other))
    assert Table(tmp_path).find(other) is not None


def test_a_full_row_counts_before_a_quick_one_and_a_quick_one_before_a_failure(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.add(make_row(KEY, quick=False, error="out of memory", **ABOUT))
    assert table.find(KEY) is None
    assert table.failure(KEY) == "out of memory"
    assert not table.is_done(KEY, quick=True)  # so the next run tries it again
    table.add(row(KEY, quick=True, test=0.1))
    assert table.is_done(KEY, quick=True)
    assert not table.is_done(KEY, quick=False)
    table.add(row(KEY, test=0.2))
    table.add(row(KEY, quick=True, test=0.3))
    for again in (table, Table(tmp_path)):
        assert again.find(KEY)["test"] == 0.2
        assert again.is_done(KEY, quick=False)


def test_the_setting_of_other_splits_is_the_best_on_validation_of_split_0(tmp_path: Path) -> None:
    table = Table(tmp_path)
    selection = Selection(["transductive"], ["minesweeper"], ["gcn"], quick=True)

    def chosen() -> list[dict]:
        return [task.options for task in selection.planned(table) if task.key.setting == CHOSEN]

    table.add(row(KEY, val=0.7, test=0.9))
    assert chosen() == [{}, {}]
    assert transductive_rows(table, "gcn", "minesweeper") == []  # the search has not ended
    table.add(row(replace(KEY, setting="deep"), val=0.8, test=0.6))
    assert chosen() == [{"setting": "deep"}] * 2
    assert [one["test"] for one in transductive_rows(table, "gcn", "minesweeper")] == [0.6]
    table.add(row(replace(KEY, split=1, setting=CHOSEN), test=0.7))
    assert mean_cell(transductive_rows(table, "gcn", "minesweeper"), 3) == "65.00 ± 7.07 (2 of 3 splits)"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder whose set "wisconsin" is a small random graph with three splits."""
    graph = random_graph(40, 120)
    parts = np.random.default_rng(0).integers(0, 3, (3, 40))
    masks = {f"{part}_mask": parts == index for index, part in enumerate(("train", "val", "test"))}
    (tmp_path / "data" / "more").mkdir(parents=True)
    write_graph(tmp_path / "data" / "more" / "wisconsin.npz", replace(graph, target_features=None, **masks))
    return tmp_path / "data"


def test_a_run_keeps_what_it_measures_and_tries_failures_again(data: Path, tmp_path: Path) -> None:
    (data / "more" / "acm.npz").write_bytes(b"nothing")
    selection = Selection(["more"], ["acm", "wisconsin"], ["lr"], quick=True)
    table, shown = Table(tmp_path / "results"), []

    def show(task: Task, share: float, _: str) -> None:
        shown.append((task.key.set, task.key.split, share))

    failed = run_all(table, selection, data, show, threads=1)
    assert [(key.set, key.split) for key in failed] == [("acm", 0), ("acm", 1), ("acm", 2)]
    assert "acm.npz" in str(table.failure(failed[0]))
    assert [(one, split) for one, split, share in shown if share == 1] == [
        (name, split) for split in range(3) for name in ("acm", "wisconsin")
    ]
    again = Table(tmp_path / "results")
    found = again.rows("more")
    assert [(one["set"], one["split"]) for one in found] == [("wisconsin", split) for split in range(3)]
    assert all(not one["quick"] and 0 <= one["test"] <= 1 and one["settings"]["strength"] for one in found)
    assert all(one["revision"] and one["threads"] == 1 for one in found)
    assert [task.key for task in selection.left(again)] == failed  # only these are left for the next run
    assert run_all(again, replace(selection, sets=["wisconsin"]), data, show, threads=1) == []
    assert estimate(selection.planned(again)[1], again, quick=True) == np.median(
        [one["wall_seconds"] for one in found]
    )


def test_list_names_what_is_left(tmp_path: Path, monkeypatch, capsys) -> None:
    Table(tmp_path).add(make_row(Key("more", "acm", 0, "lr"), quick=False, error="no memory", **ABOUT))
    arguments = ["paper", "--list", "--parts", "more", "--sets", "acm", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()
    printed = capsys.readouterr().out
    assert "more: acm 2, gcn, shallow  about" in printed
    assert "failed: no memory" in printed
    assert not (tmp_path.parent / "paper.md").exists()
    monkeypatch.setattr(sys, "argv", [*arguments, "--settings", "shallow"])
    command.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("more: ")]
    assert len(rows) == 3
    assert all("gcn, shallow" in line for line in rows)


def test_a_finished_run_becomes_a_row(tmp_path: Path) -> None:
    folder, table = tmp_path / "run", Table(tmp_path / "results")
    folder.mkdir()
    with pytest.raises(UsageError, match="not a finished run"):
        add_run(table, folder, "abc")
    training = {"split": 2, "seed": 0, "mixed_precision": True}
    config = {"data": ["/somewhere/tolokers.npz"], "kind": "adar", "model": {}, "training": training}
    metrics = {"metric": "roc_auc", "val": 0.8, "test": 0.85, "exit": {"rule": "peak"}, "graphs": []}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.json").write_text(json.dumps(metrics | {"exit_regret": {"peak": 0.001}}))
    key = add_run(table, folder, "abc")
    assert (key.split, key.setting) == (2, "default")
    found = Table(tmp_path / "results").find(key)
    assert (found["test"], found["revision"], found["added"]) == (0.85, "abc", True)
    assert "somewhere" not in json.dumps(found)
    write_page(table, tmp_path / "paper.md", tmp_path / "pictures")
    page = (tmp_path / "paper.md").read_text()
    assert "85.00 (1 of 3 splits)" in page
    assert "| tolokers 2, default | peak | 0.10 |" in page
    (folder / "config.json").write_text(json.dumps(config | {"kind": "gcn"}))
    with pytest.raises(UsageError, match="gcn on tolokers"):
        add_run(table, folder, "abc")
    single = config | {"training": training | {"mixed_precision": False}}
    (folder / "config.json").write_text(json.dumps(single))
    with pytest.raises(UsageError, match="trained with --no-mixed-precision"):
        add_run(table, folder, "abc")


def test_a_page_without_rows_says_that_nothing_is_finished(tmp_path: Path) -> None:
    write_page(Table(tmp_path / "results"), tmp_path / "paper.md", tmp_path / "pictures")
    page = (tmp_path / "paper.md").read_text()
    assert page.count(UNFINISHED) > 100
    assert "](pictures/" not in page
    assert {one.verdict for one in claims(Table(tmp_path / "results"))} == {OPEN}
    assert all(f"| {name} | 0 | 0 |" in page for name in PARTS)
    assert "| transductive | 0 | 0 | 39 |" in page  # the setting "slow" of ten methods on four sets, but one
    assert (
        "| H2GCN | not finished | 89.71 | not finished | – | not finished | – | impossible | 73.35 |" in page
    )
    assert "Of 24 claims, 0 hold here and 0 do not; not measured: 24." in page


def full_table(folder: Path) -> Table:
    """Rows for every figure. Without step information the model gets worse with the number of steps."""
    table = Table(folder)
    path = [(t, -((t - 0.5) ** 2), 0.9, 0.9 - (t - 0.5) ** 2) for t in np.linspace(0, 1, 5).tolist()]
    for name in ablations.SETS:
        for index, variant in enumerate(ablations.WITHOUT):
            worse = 0.3 if variant == "without step information" else 0.001 * index
            ends = {str(one): {"val": 0.9, "test": 0.9 - worse * one / 300} for one in PAPER_BUDGETS}
            key = Key("ablations", name, 0, "adar", variant)
            table.add(row(key, quick=True, ends=ends, trajectory=path))
    for setting, order in ((theory.WITH, 1), (theory.WITHOUT, 0)):
        errors = {str(budget): budget**-order for budget in theory.BUDGETS}
        table.add(row(Key("theory", "sine", 0, "adar", setting), errors=errors))
    cost = {
        "settings": {"lr": 0.01},
        "cpu_seconds": 2.0,
        "cpu_seconds_per_epoch": 0.2,
        "memory_mb": 50.0,
        "epochs": 10,
    }
    infer = {"cpu_seconds": 0.1, "memory_mb": 5.0, "test": 0.9}
    table.add(
        row(Key("compute", "minesweeper", 0, "adar", compute.ADAR_SETTING), **cost, inference={"8": infer})
    )
    for method in compute.METHODS:
        for depth in compute.DEPTHS:
            deep = cost | {
                "cpu_seconds_per_epoch": depth / 100,
                "inference": {str(depth): infer | {"test": 0.8}},
            }
            table.add(row(Key("compute", "minesweeper", 0, method, f"{depth} layers"), **deep))
    for split in transductive.SPLITS:
        table.add(row(Key("transductive", "tolokers", split, "adar"), test=0.85, trajectory=path))
    for name in ("tolokers", "coauthor-cs"):
        for setting in transductive.SETTINGS:
            table.add(row(Key("transductive", name, 0, "gcn", setting), test=0.86))
    for split in (1, 2):
        table.add(row(Key("transductive", "tolokers", split, "gcn", CHOSEN), test=0.87))
    table.add(row(Key("transductive", "coauthor-cs", 1, "adar"), test=0.95, trajectory=path))
    return table


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.1, 0.5, 0.9], 1), ([0.5, 0.9, 0.5], 1), ([0.5, 0.6, 0.5, 0.7, 0.699, 0.6], 2)],
)
def test_local_maxima_of_a_trajectory(values: list[float], expected: int) -> None:
    assert maxima({"trajectory": [(0.0, 0.0, 0.0, value) for value in values]}) == expected


def test_the_page_has_pictures_marks_and_verdicts_from_the_rows(tmp_path: Path) -> None:
    full_table(tmp_path / "results")
    table = Table(tmp_path / "results")
    write_page(table, tmp_path / "paper.md", tmp_path / "pictures")
    page = (tmp_path / "paper.md").read_text()
    for name in ("step", "exit", "compute", "theory"):
        assert f"](pictures/paper-{name}.png)" in page
        assert (tmp_path / "pictures" / f"paper-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "| AdaR, default | not finished | 94.08 |" in page
    assert "85.00 ± 0.00" in page
    assert "86.67 ± 0.58" in page
    assert "86.00 (1 of 3 splits)" in page
    assert "| acm | without step informationᵠ | 89.20 | 88.00 | 85.00 |" in page
    assert "Does not hold here: AdaR is the best model (tolokers)." in page
    assert (
        "- **Fig. exit.** Holds here: the peak is close to the best step (tolokers, minesweeper, acm)."
        in page
    )

    def verdict(words: str, place: str = "") -> str:
        return next(one.verdict for one in claims(table) if words in one.text and place in one.place)

    assert verdict("removing the step information costs accuracy, more than any other part", "acm") == HOLDS
    assert verdict("removing the relations") == FAILS  # a tenth of a point is less than chance
    assert verdict("best result", "tolokers") == FAILS
    assert verdict("best result", "minesweeper") == OPEN
    assert verdict("best result", "coauthor-cs") == OPEN  # no split has both
    assert verdict("close to the best step") == HOLDS
    assert verdict("less time") == HOLDS
    assert verdict("of any depth") == OPEN  # the models have one learning rate each, and not the same
    assert verdict("less memory") == FAILS
    assert verdict("falls as 1/S") == verdict("does not vanish") == HOLDS


def test_a_variant_is_compared_with_a_full_model_of_the_same_form_alone(tmp_path: Path) -> None:
    table = full_table(tmp_path)
    words, keys = "step information", [Key("ablations", "acm", 0, "adar", one) for one in ablations.WITHOUT]

    def claim() -> Claim:
        return next(one for one in claims(table) if words in one.text and one.place == "acm")

    ends = {str(budget): {"val": 0.9, "test": 0.6} for budget in PAPER_BUDGETS}
    table.add(table.find(keys[0]) | {"quick": False, "ends": ends})
    assert (claim().verdict, claim().quick) == (HOLDS, True)  # the quick rows count as before
    table.add(table.find(keys[1]) | {"quick": False, "ends": ends})
    assert (claim().verdict, claim().quick) == (FAILS, False)
    assert {one["quick"] for one in table.find_alike(keys[:2]).values()} == {False}
    assert [one["quick"] for one in table.find_alike(keys).values()] == [True] * len(keys)


def test_a_limit_that_changes_verdicts_is_named(tmp_path: Path) -> None:
    table = full_table(tmp_path)
    assert changed_by(table, 0.5) == []
    changed = changed_by(table, 0.25)  # without relations, 0.3 points are lost
    assert {(one.text, one.verdict) for one in changed if "relations" in one.text} == {
        ("removing the relations costs accuracy", HOLDS)
    }
    assert {one.verdict for one in changed} == {HOLDS}


def test_models_are_compared_after_the_same_search_of_the_learning_rate(tmp_path: Path) -> None:
    """The rate with the better validation counts, and a depth without both rates takes no part."""
    table = full_table(tmp_path)

    def claim() -> Claim:
        return next(one for one in claims(table) if "of any depth" in one.text)

    tasks = {task.key: task for task in compute.tasks(table, compute.SETS, True)}
    assert {task.options["lr"] for task in tasks.values()} == set(compute.RATES)
    for key in list(tasks):
        if key.setting.endswith((f"{compute.ADAR_SETTING}, lr 0.003", "8 layers, lr 0.01")):
            first = table.find(replace(key, setting=key.setting.split(", ")[0]))
            steps = next(iter(first["inference"]))
            better = first["inference"][steps] | {"test": 0.95 if key.method == "n2" else 0.1}
            val = 0.6 if key.method == "n2" else 0.4
            table.add({**first, "setting": key.setting, "val": val, "inference": {steps: better}})
    best = "best of AdaR 90.00, best of the others N² 95.00; 8 layers"
    assert claim()[3:5] == (FAILS, f"{best}; 20, 50, 100 layers: not finished")


def test_no_default_of_the_product_changes_the_training_of_a_baseline() -> None:
    """A new setting of trainings gets a value here, else later rows are not comparable with earlier ones."""
    settings = {field.name for field in fields(TrainConfig)}
    assert settings - set(BASELINE_TRAINING) == {"epochs", "seed", "split"}


def test_the_pretrained_model_of_the_package_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_shot, "BUDGETS", (2, 4))
    write_graph(tmp_path / "cora-text.npz", random_graph(40, 120))
    key = Key("zero-shot", "cora-text", 0, "adar", zero_shot.PRETRAINED)
    found = zero_shot.measure(Work(key, {}, tmp_path, quick=False, report=lambda *_: None))
    assert list(found["by_budget"]) == ["2", "4"]
    assert 0 <= found["test"] == found["by_budget"]["4"]["at exit"] <= 1


def test_the_pretrained_model_decides_no_claim(tmp_path: Path) -> None:
    """It was trained on other graphs than the baselines."""
    table = Table(tmp_path)
    table.add(row(Key("zero-shot", "cora-text", 0, "gcn", "default"), test=0.4))
    table.add(row(Key("zero-shot", "cora-text", 0, "adar", zero_shot.PRETRAINED), test=0.7))
    assert [one.verdict for one in claims(table)[-2:]] == [OPEN, OPEN]
    ours = {"test": 0.5, "trajectory": [(0.0, 0.1, 0.4), (1.0, 0.2, 0.5)]}
    table.add(row(Key("zero-shot", "cora-text", 0, "adar", zero_shot.OURS), **ours))
    assert claims(table)[-1][3:5] == (HOLDS, "AdaR, `ours`, 50.00; best other: GCN 40.00")
    table.add(row(Key("zero-shot", "cora-text", 0, "cosine", zero_shot.NO_TRAINING), test=0.6))
    assert [one.verdict for one in claims(table)[-2:]] == [HOLDS, FAILS]
