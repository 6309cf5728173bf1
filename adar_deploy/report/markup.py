"""The HTML parts of a page. Text from files is escaped here."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

SHORT = 12  # a table with at most this many rows is not split over two printed pages


def section(title: str, lead: str, content: str) -> str:
    """A heading, an introduction and the content."""
    introduction = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section id="{anchor(title)}"><h2>{escape(title)}</h2>{introduction}{content}</section>'


def anchor(title: str) -> str:
    """The id of the section with this title."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def contents(page: str) -> str:
    """Links to the sections of a page."""
    titles = re.findall(r"<section id=\"([^\"]+)\"><h2>(.*?)</h2>", page)
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in titles)
    return f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if titles else ""


def figure(caption: str, drawing: str) -> str:
    """A drawing with a caption; empty without a drawing."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>" if drawing else ""


def fact_table(facts: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = "".join(f"<tr><td>{escape(str(a))}</td><td>{escape(str(b))}</td></tr>" for a, b in facts.items())
    return f'<table class="facts">{rows}</table>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a heading. All columns but the first contain numbers."""
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    rows = list(rows)
    kind = "scroll short" if len(rows) <= SHORT else "scroll"
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
