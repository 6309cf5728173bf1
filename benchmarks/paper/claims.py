"""The paper's claims, compared with the rows. Every verdict is computed; none is written by hand."""

from collections.abc import Iterable, Iterator
from statistics import fmean

import numpy as np

from adar_train.baselines.self_supervised import SELF_SUPERVISED
from benchmarks.paper import ablations, compute, theory, transductive
from benchmarks.paper.cells import QUICK, exit_rows, transductive_rows
from benchmarks.paper.published import NAMES
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.zero_shot import LAYERS, NO_TRAINING, PRETRAINED

HOLDS, FAILS, OPEN = "holds here", "does not hold here", "not measured"
NOISE = 1.0  # points, about one standard error of a test part here; two trainings differ by chance
PAIRED = 0.5  # points, for two steps of one model
RIPPLE = 0.2  # points
Claim = tuple[str, str, str]
"""The claim, the verdict, and the figures behind it."""


def claims(table: Table) -> list[Claim]:
    """All claims."""
    return [
        *_accuracy(table),
        *_ablations(table),
        _exit(table),
        *_compute(table),
        *_theory(table),
        *_zero(table),
    ]


def _accuracy(table: Table) -> Iterator[Claim]:
    """Tab. main-trans: AdaR is better than every baseline, on the splits that both have."""
    text = "AdaR has the best result of all models on {} (Tab. transductive)"
    for name in transductive.SETS:
        found = [transductive_rows(table, "adar", name, setting) for setting in transductive.ADAR]
        ours = max(found, key=_mean)
        splits = {row["split"] for row in ours}
        others = {one: _on(splits, transductive_rows(table, one, name)) for one in transductive.DEPTHS}
        known = {one: _mean(rows) for one, rows in others.items() if rows}
        if not known:
            yield text.format(name), OPEN, "AdaR and the baselines are not finished on the same splits"
            continue
        best = max(known, key=lambda one: known[one])
        verdict = HOLDS if _mean(ours) > known[best] else FAILS
        missing = [NAMES[one] for one in others if one not in known]
        figures = f"AdaR {_mean(ours):.2f}, best baseline {NAMES[best]} {known[best]:.2f}"
        figures += f"; without {', '.join(missing)}" if missing else ""
        figures += _note([*ours, *others[best]])
        yield text.format(name), verdict, f"{figures}; splits {', '.join(map(str, sorted(splits)))}"


def _on(splits: set[int], rows: list[Row]) -> list[Row]:
    """The rows of these splits; none if a split is missing."""
    found = [row for row in rows if row["split"] in splits]
    return found if len(found) == len(splits) else []


def _ablations(table: Table) -> Iterator[Claim]:
    """Fig. step: what each part of the model and of the loss is worth at the end of 8 and of 300 steps."""
    texts = {
        "without step information": "removing the step information costs accuracy, more than any other part",
        "unit time step": "a fixed unit time step gets worse with more steps than in training",
        "without relations": "removing the relations costs accuracy",
        "without L_full": "removing L_full costs accuracy, more than removing L_step",
        "without L_step": "removing L_step costs accuracy",
    }
    for name in ablations.SETS:
        rows = {one: table.find(Key(ablations.PART_NAME, name, 0, "adar", one)) for one in ablations.WITHOUT}
        full = rows["full"]
        for variant, text in texts.items():
            row = rows[variant]
            claim = f"{text} ({name})"
            if full is None or row is None:
                yield claim, OPEN, "not finished"
                continue
            drops = {one: _end(full) - _end(other) for one, other in rows.items() if other is not None}
            if variant == "unit time step":
                holds = _end(row, "8") - _end(row) > NOISE
            elif variant == "without step information":
                holds = drops[variant] > NOISE and drops[variant] == max(drops.values())
            elif variant == "without L_full":
                holds = drops[variant] > max(NOISE, drops.get("without L_step", 0.0))
            else:
                holds = drops[variant] > NOISE
            figures = f"test at the end of 8 / 300 steps: {_end(row, '8'):.2f} / {_end(row):.2f}, "
            figures += f"full model {_end(full, '8'):.2f} / {_end(full):.2f}"
            yield claim, HOLDS if holds else FAILS, figures + _note([full, row])
        yield _oscillation(name, full, rows["without L_step"])


def _oscillation(name: str, full: Row | None, row: Row | None) -> Claim:
    text = f"without L_step, the metric has more local maxima along the trajectory ({name})"
    if full is None or row is None:
        return text, OPEN, "not finished"
    counts = maxima(row), maxima(full)
    return (
        text,
        HOLDS if counts[0] > counts[1] else FAILS,
        f"{counts[0]}, full model {counts[1]}{_note([full, row])}",
    )


def maxima(row: Row) -> int:
    """The number of local maxima of the test metric along the trajectory that are higher than RIPPLE."""
    values = [100 * point[-1] for point in row["trajectory"]]
    found, top, bottom, rising = 0, values[0], values[0], True
    for value in values[1:]:
        top, bottom = (max(top, value), bottom) if rising else (top, min(bottom, value))
        if rising and value < top - RIPPLE:
            found, rising, bottom = found + 1, False, value
        elif not rising and value > bottom + RIPPLE:
            rising, top = True, value
    return found + rising


def _exit(table: Table) -> Claim:
    """Fig. exit: the peak of the mean inner product is the peak of the metric."""
    text = "the peak of the mean inner product is close to the best step (Fig. exit)"
    rows = {title: row for title, row in exit_rows(table) if "alone" not in title}
    found = {title: peak_regret(row) for title, row in rows.items()}
    if not found:
        return text, OPEN, "no trajectory"
    figures = ", ".join(f"{title} {value:.2f}" for title, value in found.items())
    return (
        text,
        HOLDS if max(found.values()) <= PAIRED else FAILS,
        f"test points lost at the peak: {figures}{_note(rows.values())}",
    )


def _note(rows: Iterable[Row]) -> str:
    """A remark for the figures if a row is quick."""
    return f" {QUICK}" if any(row["quick"] for row in rows) else ""


def peak_regret(row: Row) -> float:
    """Test points between the best step and the peak of the mean inner product."""
    points = np.array(row["trajectory"], float)
    return float(100 * (points[:, -1].max() - points[int(np.argmax(points[:, 1])), -1]))


def _compute(table: Table) -> Iterator[Claim]:
    """Fig. acc-compute and Tab. cost, at the largest depth that both other models have."""
    rows = {(row["method"], row["setting"]): row for row in table.rows(compute.PART_NAME)}
    ours = rows.get(("adar", compute.ADAR_SETTING))
    deep = [row for (method, _), row in rows.items() if method in compute.METHODS]
    texts = (
        "AdaR is more accurate than GCNII and N² of any depth (Fig. accuracy against compute)",
        "AdaR trains in less time than deep GCNII and N²",
        "AdaR trains in less memory than deep GCNII and N²",
    )
    names = [f"{depth} layers" for depth in compute.DEPTHS]
    common = [name for name in names if all((method, name) in rows for method in compute.METHODS)]
    if ours is None or not common:
        yield from ((text, OPEN, "not finished") for text in texts)
        return
    deepest = [rows[method, common[-1]] for method in compute.METHODS]
    note = f"; {common[-1]}{_note([ours, *deep])}"
    best = max(100 * one["test"] for one in ours["inference"].values())
    theirs = max(100 * one["test"] for row in deep for one in row["inference"].values())
    figures = f"best of AdaR {best:.2f}, best of the others {theirs:.2f}{_note([ours, *deep])}"
    rates = {row["settings"]["lr"] for row in (ours, *deep)}
    if len(rates) > 1:  # accuracies after a few epochs then say more about the rates than about the models
        yield texts[0], OPEN, f"{figures}, but the learning rates differ: no fair comparison"
    else:
        yield texts[0], HOLDS if best > theirs else FAILS, figures
    for text, field, unit in zip(
        texts[1:], ("cpu_seconds_per_epoch", "memory_mb"), ("CPU s per epoch", "MB"), strict=True
    ):
        others = {NAMES[row["method"]]: row[field] for row in deepest}
        shown = ", ".join(f"{name} {value:.3g}" for name, value in others.items())
        verdict = HOLDS if ours[field] < min(others.values()) else FAILS
        yield text, verdict, f"{unit}: AdaR {ours[field]:.3g}, {shown}{note}"


def slopes(table: Table, setting: str) -> list[float]:
    """The order of convergence of each seed, fitted where the error of the steps is the larger one."""
    found = []
    for row in table.rows(theory.PART_NAME):
        if row["setting"] == setting:
            budgets = [budget for budget in theory.BUDGETS if budget <= 64]
            errors = [row["errors"][str(budget)] for budget in budgets]
            slope = float(np.polyfit(np.log(budgets), np.log(errors), 1)[0])
            found.append(round(-slope, 2) + 0.0)  # no -0.0
    return found


def _theory(table: Table) -> Iterator[Claim]:
    texts = {
        theory.WITH: "with step information, the error falls as 1/S (Theorem uni-conv)",
        theory.WITHOUT: "without step information, the error does not vanish (Lemma non-uni-conv)",
    }
    for setting, text in texts.items():
        found = slopes(table, setting)
        note = _note(row for row in table.rows(theory.PART_NAME) if row["setting"] == setting)
        if not found:
            yield text, OPEN, "not finished"
            continue
        holds = (
            all(0.8 < one < 1.2 for one in found)
            if setting == theory.WITH
            else all(abs(one) < 0.1 for one in found)
        )
        yield (
            text,
            HOLDS if holds else FAILS,
            f"order, per seed: {', '.join(f'{one:.2f}' for one in found)}{note}",
        )


def _zero(table: Table) -> Iterator[Claim]:
    """Tab. main-zero. The pretrained model takes no part, because it was trained on other graphs."""
    text = "AdaR is better than all baselines without labels of the test graph (Tab. zero-shot)"
    rows = table.rows("zero-shot")
    ours = [row["test"] for row in rows if row["method"] == "adar" and row["setting"] != PRETRAINED]
    trained = {row["method"]: row["test"] for row in rows if row["method"] in {*LAYERS, *SELF_SUPERVISED}}
    free = {row["method"]: row["test"] for row in rows if row["setting"] == NO_TRAINING}
    if not ours or not trained:
        yield text, OPEN, "not finished"
        return
    best = max(trained | free, key=lambda one: (trained | free)[one])
    figures = f"AdaR {100 * max(ours):.2f}, best other: {NAMES[best]} {100 * (trained | free)[best]:.2f}"
    yield text, HOLDS if max(ours) > (trained | free)[best] else FAILS, figures


def _mean(rows: list[Row]) -> float:
    return fmean(100 * row["test"] for row in rows) if rows else 0.0


def _end(row: Row, budget: str = "300") -> float:
    value = row["ends"][budget]["test"]
    return 100 * value if value is not None else 0.0
