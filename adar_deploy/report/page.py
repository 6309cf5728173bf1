"""The page: HTML, style and drawings in a single file that loads nothing from a network."""

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from adar_deploy.formatting import metric_title, seconds, with_interval
from adar_deploy.report.bundle_sections import (
    convergence_section,
    environment_section,
    latency_section,
    parity_section,
)
from adar_deploy.report.class_sections import baseline_section, classes_section, reliability_section
from adar_deploy.report.markup import contents
from adar_deploy.report.model_sections import (
    budgets_section,
    configuration_section,
    predictions_section,
    training_section,
)
from adar_runtime.graph.labels import listed

Facts = Mapping[str, Any]
IN_TITLE = 3  # names of graphs
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # untrusted text in the page cannot run anything
START = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)
"""The first characters of every page."""


def page(facts: Facts) -> str:
    """The HTML text."""
    kind = "AdaR" if facts["kind"] == "adar" else f"Baseline {facts['kind']}"
    title = f"{kind} on {listed(facts['data'], IN_TITLE) or 'an unknown graph'}"
    sections = (
        training_section,
        configuration_section,
        budgets_section,
        predictions_section,
        classes_section,
        reliability_section,
        baseline_section,
        parity_section,
        convergence_section,
        latency_section,
        environment_section,
    )
    body = "".join(part(facts) for part in sections)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in facts["notes"])
    return (
        f"{START}<title>{escape(title)}</title>"
        f"<style>{style('charts.css')}{style('page.css')}</style>"
        f"</head><body><main><h1>{escape(title)}</h1>"
        f'<p class="lead">{escape(_subject(facts))}</p>{_figures(facts)}{contents(body)}{notes}{body}'
        "<footer>Made by adar-deploy report. All numbers were read from the run and the bundle, or measured "
        "when this page was made.</footer></main></body></html>\n"
    )


def style(name: str) -> str:
    """A style sheet of this package."""
    return files("adar_deploy.report").joinpath(name).read_text(encoding="utf-8")


def _subject(facts: Facts) -> str:
    parts = [f"run {facts['run']}"] if facts["run"] else []
    parts += [f"bundle {facts['bundle']}"] if facts["bundle"] else []
    if "graph" in facts:
        parts.append(f"measured on {facts['graph']['file']}")
    return " · ".join(parts)


def _figures(facts: Facts) -> str:
    """The main numbers, as tiles at the top."""
    tiles: list[tuple[str, str, str]] = []
    if "evaluation" in facts:
        done = facts["evaluation"]
        row = max(done["budgets"], key=lambda row: row["budget"])
        what = f"{metric_title(done['metric'])}, {done['counted']}"
        value, _, interval = with_interval(row["at_exit"], row).partition(" [")
        note = f"at the stop step, budget {row['budget']}"
        tiles.append((what, value, f"95 % interval [{interval}, {note}" if interval else note))
    if facts.get("curves"):
        last = max(facts["curves"], key=lambda curve: curve["budget"])
        step = last["exit_step"]
        tiles.append(("stop step", f"{step:,}", f"of {last['budget']:,}, t = {last['t'][step]:.2f}"))
    if "latency" in facts:
        tiles.append(_fastest(facts["latency"]))
    if facts["parity"]:
        tiles.append(
            (
                "largest difference from PyTorch",
                f"{facts['parity']['needed']:.0e}",
                "relative to the largest entry of the state",
            )
        )
    cells = "".join(
        f"<div><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>" for a, b, c in tiles
    )
    return f'<dl class="figures">{cells}</dl>' if tiles else ""


def _fastest(latency: Facts) -> tuple[str, str, str]:
    """The fastest solver, and the solvers whose times overlap with its times."""
    timed = sorted((row for row in latency["rows"] if "seconds" in row), key=lambda row: row["seconds"])
    fastest, *others = timed
    detail = f"{fastest['solver']}, {fastest['calls']} calls"
    overlapping = [row["solver"] for row in others if row["spread"][0] <= fastest["spread"][1]]
    if others and latency["repeats"] == 1:
        detail += "; one run each, so the spread is unknown"
    elif overlapping:
        detail += f"; the times of {' and '.join(overlapping)} overlap"
    return "fastest run", seconds(fastest["seconds"]), detail
