"""The few pieces of HTML that a page is made of. Everything that comes from a file is escaped here."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def section(title: str, lead: str, content: str) -> str:
    """A heading, a sentence on what follows, and what follows."""
    said = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def figure(caption: str, drawing: str) -> str:
    """A drawing under its caption; nothing where nothing was drawn."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>" if drawing else ""


def fact_table(facts: Mapping[str, Any]) -> str:
    """Names, and what there is to say about each."""
    rows = "".join(f"<tr><td>{escape(str(a))}</td><td>{escape(str(b))}</td></tr>" for a, b in facts.items())
    return f'<table class="facts">{rows}</table>'


SHORT = 12  # rows of a table that a page should not divide


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under a heading; all but the first column are numbers."""
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    rows = list(rows)
    kind = "scroll short" if len(rows) <= SHORT else "scroll"
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
