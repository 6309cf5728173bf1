"""One page of facts: HTML, style and drawings in a single file that asks nothing of any network."""

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from adar_deploy.report.learned import answers_section, budgets_section, training_section
from adar_deploy.report.proven import (
    convergence_section,
    environment_section,
    latency_section,
    parity_section,
)
from adar_deploy.report.words import metric_title, percent, seconds

Facts = Mapping[str, Any]
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a page made from files of strangers runs nothing


def page(facts: Facts) -> str:
    """All of it."""
    kind = "AdaR" if facts["kind"] == "adar" else f"The baseline {facts['kind']}"
    title = f"{kind} on {', '.join(facts['data']) or 'an unknown graph'}"
    sections = (
        training_section,
        budgets_section,
        answers_section,
        parity_section,
        convergence_section,
        latency_section,
        environment_section,
    )
    body = "".join(part(facts) for part in sections)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in facts["notes"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>"
        f"<style>{style('charts.css')}{style('page.css')}</style>"
        f"</head><body><main><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(_subject(facts))}</p>{_figures(facts)}{notes}{body}'
        "<footer>Made by adar-deploy report. Every number was read from the run and the bundle, or measured "
        "when this page was made.</footer></main></body></html>\n"
    )


def style(name: str) -> str:
    """One of the style sheets beside this file."""
    return files("adar_deploy.report").joinpath(name).read_text(encoding="utf-8")


def _subject(facts: Facts) -> str:
    said = [f"run {facts['run']}"] if facts["run"] else []
    said += [f"bundle {facts['bundle']}"] if facts["bundle"] else []
    if "graph" in facts:
        said.append(f"measured on {facts['graph']['file']}")
    return " · ".join(said)


def _figures(facts: Facts) -> str:
    """What somebody in a hurry wants to know."""
    tiles: list[tuple[str, str, str]] = []
    if "evaluation" in facts:
        done = facts["evaluation"]
        row = max(done["budgets"], key=lambda row: row["budget"])
        what = f"{metric_title(done['metric'])}, {done['part']} labels"
        tiles.append((what, percent(row["at_exit"]), f"at the exit, budget {row['budget']}"))
    if facts.get("curves"):
        last = max(facts["curves"], key=lambda curve: curve["budget"])
        step = last["exit_step"]
        tiles.append(("answers from step", f"{step:,}", f"of {last['budget']:,}, t = {last['t'][step]:.2f}"))
    if "latency" in facts:
        tiles.append(_fastest(facts["latency"]))
    if facts["parity"]:
        tiles.append(
            (
                "differs from PyTorch by",
                f"{facts['parity']['needed']:.0e}",
                "of a state's largest entry, at most",
            )
        )
    cells = "".join(
        f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in tiles
    )
    return f'<dl class="figures">{cells}</dl>' if tiles else ""


def _fastest(latency: Facts) -> tuple[str, str, str]:
    """The solver with the shortest time, and those that these few turns cannot tell it from."""
    timed = sorted((row for row in latency["rows"] if "seconds" in row), key=lambda row: row["seconds"])
    quick, *others = timed
    said = f"{quick['solver']}, {quick['calls']} calls"
    level = [row["solver"] for row in others if row["spread"][0] <= quick["spread"][1]]
    if others and latency["repeats"] == 1:
        said += "; of one turn each, which shows no spread"
    elif level:
        said += f"; level with {' and '.join(level)}, whose times overlap"
    return "fastest answer", seconds(quick["seconds"]), said
