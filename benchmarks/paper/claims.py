"""The paper's claims, compared with the rows. Every verdict is computed; none is written by hand."""

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean
from textwrap import wrap
from typing import NamedTuple

import numpy as np

from adar_train.baselines.self_supervised import SELF_SUPERVISED
from benchmarks.paper import ablations, compute, theory, transductive
from benchmarks.paper.cells import UNFINISHED, exit_rows, transductive_rows
from benchmarks.paper.published import NAMES
from benchmarks.paper.table import Key, Row, Table
from benchmarks.paper.texts import BRIEF
from benchmarks.paper.zero_shot import LAYERS, NO_TRAINING, OURS, PRETRAINED

HOLDS, FAILS, OPEN = "holds here", "does not hold here", "not measured"
NOISE = 1.0  # points, about one standard error of a test part here; two trainings differ by chance
PAIRED = 0.5  # points, for two steps of one model
RIPPLE = 0.2  # points


class Claim(NamedTuple):
    """A claim of the paper on one set, and what the rows say about it."""

    topic: str  # the paper's table or figure
    text: str
    place: str  # the set; empty if the claim has only one
    verdict: str
    figures: str = UNFINISHED
    quick: bool = False  # a row behind the figures is quick


def claims(table: Table, noise: float = NOISE) -> list[Claim]:
    """All claims. A part of the model "costs accuracy" if more than `noise` points are lost without it."""
    return [
        *_accuracy(table),
        *_ablations(table, noise),
        *_exit(table),
        *_compute(table),
        *_theory(table),
        *_zero(table),
    ]


def summary(found: list[Claim]) -> list[str]:
    """The verdicts in a few sentences: how many hold, then which ones, one line per table or figure."""
    counts = Counter(one.verdict for one in found)
    text = f"Of {len(found)} claims, {counts[HOLDS]} hold here and {counts[FAILS]} do not; "
    quick = sum(one.quick for one in found)
    text += f"not measured: {counts[OPEN]}. Quick rows make {quick} verdicts preliminary."
    lines = [*wrap(text, 105), ""]
    for topic in dict.fromkeys(one.topic for one in found):
        about = [one for one in found if one.topic == topic]
        said = [sentence for verdict in (HOLDS, FAILS, OPEN) if (sentence := _sentence(about, verdict))]
        lines += wrap(f"- **{topic}.** {' '.join(said)}", 105, subsequent_indent="  ", break_on_hyphens=False)
    return [*lines, ""]


def _sentence(found: list[Claim], verdict: str) -> str:
    """The claims with a verdict, each with its sets; empty if there are none."""
    places: dict[str, list[str]] = {}
    for one in found:
        if one.verdict == verdict:
            places.setdefault(BRIEF.get(one.text, one.text), []).append(one.place)
    said = [text + (f" ({', '.join(some)})" if all(some) else "") for text, some in places.items()]
    return f"{verdict.capitalize()}: {'; '.join(said)}." if said else ""


def changed_by(table: Table, noise: float) -> list[Claim]:
    """The claims whose verdict would be another one with another limit."""
    return [new for new, old in zip(claims(table, noise), claims(table), strict=True) if new[:4] != old[:4]]


def _verdict(holds: bool) -> str:
    return HOLDS if holds else FAILS


def _accuracy(table: Table) -> Iterator[Claim]:
    """Tab. main-trans: AdaR is better than every baseline, on the splits that both have."""
    about = "Tab. transductive", "AdaR has the best result of all models"
    for name in transductive.SETS:
        found = [transductive_rows(table, "adar", name, setting) for setting in transductive.ADAR]
        ours = next((rows for rows in found if rows), [])  # the default counts before the preset
        splits = {row["split"] for row in ours}
        others = {one: _on(splits, transductive_rows(table, one, name)) for one in transductive.DEPTHS}
        known = {one: _mean(rows) for one, rows in others.items() if rows}
        if not known:
            yield Claim(*about, name, OPEN, "AdaR and the baselines are not finished on the same splits")
            continue
        best = max(known, key=lambda one: known[one])
        missing = [NAMES[one] for one in others if one not in known]
        figures = f"AdaR {_mean(ours):.2f}, best baseline {NAMES[best]} {known[best]:.2f}"
        figures += f", without {', '.join(missing)}" if missing else ""
        figures += f"; splits {', '.join(map(str, sorted(splits)))}"
        verdict = _verdict(_mean(ours) > known[best])
        yield Claim(*about, name, verdict, figures, _any_quick([*ours, *others[best]]))


def _on(splits: set[int], rows: list[Row]) -> list[Row]:
    """The rows of these splits; none if a split is missing."""
    found = [row for row in rows if row["split"] in splits]
    return found if len(found) == len(splits) else []


def _ablations(table: Table, noise: float) -> Iterator[Claim]:
    """Fig. step: what each part of the model and of the loss is worth at the end of 8 and of 300 steps."""
    texts = {
        "without step information": "removing the step information costs accuracy, more than any other part",
        "unit time step": "a fixed unit time step gets worse with more steps than in training",
        "without relations": "removing the relations costs accuracy",
        "without L_full": "removing L_full costs accuracy, more than removing L_step",
        "without L_step": "removing L_step costs accuracy",
    }
    topic = "Fig. step"
    for name in ablations.SETS:
        keys = {one: Key(ablations.PART_NAME, name, 0, "adar", one) for one in ablations.WITHOUT}
        pairs = {}
        for variant in texts:
            found = table.find_alike([keys["full"], keys[variant]])
            if len(found) == 2:
                pairs[variant] = found[keys["full"]], found[keys[variant]]
        drops = {one: _end(full) - _end(row) for one, (full, row) in pairs.items()}
        for variant, text in texts.items():
            if variant not in pairs:
                yield Claim(topic, text, name, OPEN)
                continue
            (full, row), drop = pairs[variant], drops[variant]
            holds = {
                "unit time step": _end(row, "8") - _end(row) > noise,
                "without step information": drop > noise and drop == max(drops.values()),
                "without L_full": drop > max(noise, drops.get("without L_step", 0.0)),
            }.get(variant, drop > noise)
            figures = f"test at the end of 8 / 300 steps: {_end(row, '8'):.2f} / {_end(row):.2f}, "
            figures += f"full model {_end(full, '8'):.2f} / {_end(full):.2f}"
            yield Claim(topic, text, name, _verdict(holds), figures, row["quick"])
        yield _oscillation(topic, name, pairs.get("without L_step"))


def _oscillation(topic: str, name: str, pair: tuple[Row, Row] | None) -> Claim:
    text = "without L_step, the metric has more local maxima along the trajectory"
    if pair is None:
        return Claim(topic, text, name, OPEN)
    full, row = pair
    counts = maxima(row), maxima(full)
    figures = f"{counts[0]}, full model {counts[1]}"
    return Claim(topic, text, name, _verdict(counts[0] > counts[1]), figures, row["quick"])


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


def _exit(table: Table) -> Iterator[Claim]:
    """Fig. exit: the peak of the mean inner product is the peak of the metric."""
    about = "Fig. exit", "the peak of the mean inner product is close to the best step"
    rows = {title: row for title, row in exit_rows(table) if "alone" not in title}
    if not rows:
        yield Claim(*about, "", OPEN)
    for title, row in rows.items():
        lost = peak_regret(row)
        name, setting = title.split(", ")
        figures = f"{setting}; test points lost at the peak: {lost:.2f}"
        yield Claim(*about, name, _verdict(lost <= PAIRED), figures, row["quick"])


def _any_quick(rows: Iterable[Row]) -> bool:
    return any(row["quick"] for row in rows)


def peak_regret(row: Row) -> float:
    """Test points between the best step and the peak of the mean inner product."""
    points = np.array(row["trajectory"], float)
    return float(100 * (points[:, -1].max() - points[int(np.argmax(points[:, 1])), -1]))


def _compute(table: Table) -> Iterator[Claim]:
    """Fig. acc-compute and Tab. cost, on the depths that both other models have."""
    topic = "Fig. accuracy against compute"
    best_of_all = "AdaR is more accurate than GCNII and N² of any depth"
    costs = {
        "AdaR trains in less time than deep GCNII and N²": (
            "cpu_seconds_per_epoch",
            "CPU s per epoch",
            ".3f",
        ),
        "AdaR trains in less memory than deep GCNII and N²": ("memory_mb", "MB", ",.0f"),
    }
    for name in compute.SETS:
        ours = compute.searched(table, name, "adar", compute.ADAR_SETTING)
        depths = {depth: _deep(table, name, depth) for depth in compute.DEPTHS}
        both = [depth for depth, found in depths.items() if all(found.values())]
        if not ours or not both:
            yield from (Claim(topic, text, "", OPEN) for text in (best_of_all, *costs))
            continue
        yield _best_of_all(topic, best_of_all, ours, depths)
        deepest = {method: compute.cost_row(rows) for method, rows in depths[both[-1]].items()}
        rows = {"adar": compute.cost_row(ours), **deepest}
        for text, (field, unit, form) in costs.items():
            shown = ", ".join(f"{NAMES[method]} {row[field]:{form}}" for method, row in rows.items())
            holds = rows["adar"][field] < min(row[field] for row in deepest.values())
            figures = f"{unit}: {shown}; {both[-1]} layers"
            yield Claim(topic, text, "", _verdict(holds), figures, _any_quick(rows.values()))


def _deep(table: Table, name: str, depth: int) -> dict[str, list[Row]]:
    return {method: compute.searched(table, name, method, f"{depth} layers") for method in compute.METHODS}


def _best_of_all(topic: str, text: str, ours: list[Row], depths: dict[int, dict[str, list[Row]]]) -> Claim:
    """The best accuracies, of the depths whose search of the learning rate is finished for all models."""
    tried = len(compute.RATES)
    known = [depth for depth, found in depths.items() if all(len(rows) == tried for rows in found.values())]
    if len(ours) < tried or not known:
        return Claim(topic, text, "", OPEN, "the search of the learning rate is not finished")
    chosen = [rows[0] for depth in known for rows in depths[depth].values()]
    best = max(100 * one["test"] for one in ours[0]["inference"].values())
    theirs = max((100 * one["test"], row["method"]) for row in chosen for one in row["inference"].values())
    figures = f"best of AdaR {best:.2f}, best of the others {NAMES[theirs[1]]} {theirs[0]:.2f}; "
    figures += f"{', '.join(map(str, known))} layers"
    left = [str(depth) for depth in depths if depth not in known]
    figures += f"; {', '.join(left)} layers: not finished" if left else ""
    return Claim(topic, text, "", _verdict(best > theirs[0]), figures, _any_quick([ours[0], *chosen]))


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
        if not found:
            yield Claim("Theory", text, "", OPEN)
            continue
        low, high = (0.8, 1.2) if setting == theory.WITH else (-0.1, 0.1)
        holds = all(low < one < high for one in found)
        figures = f"order, per seed: {', '.join(f'{one:.2f}' for one in found)}"
        rows = [row for row in table.rows(theory.PART_NAME) if row["setting"] == setting]
        yield Claim("Theory", text, "", _verdict(holds), figures, _any_quick(rows))


def _zero(table: Table) -> Iterator[Claim]:
    """Tab. main-zero. The pretrained model takes no part, because it was trained on other graphs."""
    rows = table.rows("zero-shot")
    ours = [row for row in rows if row["method"] == "adar" and row["setting"] != PRETRAINED]
    trained = [row for row in rows if row["method"] in {*LAYERS, *SELF_SUPERVISED}]
    free = [row for row in rows if row["setting"] == NO_TRAINING]
    for text, others in (
        ("AdaR is better than all trained baselines, which are the paper's", trained),
        ("AdaR is better than all of them and than cosines without training", [*trained, *free]),
    ):
        if not ours or not trained:
            yield Claim("Tab. zero-shot", text, "", OPEN)
            continue
        best = min(ours, key=lambda row: row["setting"] != OURS)  # the default counts before the preset
        other = max(others, key=lambda row: row["test"])
        figures = f"AdaR, `{best['setting']}`, {100 * best['test']:.2f}; "
        figures += f"best other: {NAMES[other['method']]} {100 * other['test']:.2f}"
        holds = best["test"] > other["test"]
        yield Claim("Tab. zero-shot", text, "", _verdict(holds), figures, _any_quick([best, other]))


def _mean(rows: list[Row]) -> float:
    return fmean(100 * row["test"] for row in rows) if rows else 0.0


def _end(row: Row, budget: str = "300") -> float:
    value = row["ends"][budget]["test"]
    return 100 * value if value is not None else 0.0
