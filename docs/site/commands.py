"""Makes a page for every command from its help."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer.main

from adar_deploy.cli import app

MARKUP = re.compile(r"(?<!\\)\[/?[a-z ]*\]")  # markup of rich in help texts
GUIDES = {
    "train": ("Training", "training.md"),
    "straighten": ("Training", "training.md"),
    "data": ("Graphs", "graphs.md"),
    "bench": ("Settings, and what this machine can do", "settings.md"),
    "completion": ("Settings, and what this machine can do", "settings.md"),
    "doctor": ("Settings, and what this machine can do", "settings.md"),
    "embed": ("From texts to a graph", "texts.md"),
    "export": ("The bundle", "bundle.md"),
    "inspect": ("The bundle", "bundle.md"),
    "validate": ("The bundle", "bundle.md"),
    "run": ("Running a bundle", "runtime.md"),
    "evaluate": ("Concepts", "concepts.md"),
    "report": ("Concepts", "concepts.md"),
    "build": ("Deployment", "deployment.md"),
}


@cache
def command_pages() -> dict[str, str]:
    """Pages by their path in the site."""
    return {f"commands/{'-'.join(words)}.md": _page(words, command) for words, command in _commands()}


def _commands() -> Iterator[tuple[list[str], Any]]:
    """All commands and subcommands."""

    def within(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        for name, inner in getattr(command, "commands", {}).items():
            if not inner.hidden:
                yield from within([*words, name], inner)
        if words:
            yield words, command

    yield from within([], typer.main.get_command(app))


def _page(words: list[str], command: Any) -> str:
    paragraphs = _plain(command.help).split("\n\n")
    examples = [text.removeprefix("Example:").strip() for text in paragraphs if text.startswith("Example:")]
    text = [" ".join(part.split()) for part in paragraphs if not part.startswith("Example:")]
    types = get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    parts = [f"# {' '.join(words)}", *text]
    parts += ["```sh\n" + "\n".join(examples) + "\n```"] if examples else []
    inner = getattr(command, "commands", {})
    parts += ["\n".join(f"- [{name}]({'-'.join([*words, name])}.md)" for name in inner)] if inner else []
    for title in ("argument", "option"):
        rows = [_row(param, types.get(param.name)) for param in shown if param.param_type_name == title]
        parts += [f"## {title.title()}s", _table([title, "", "default"], rows)] if rows else []
    if words[0] in GUIDES:
        title, page = GUIDES[words[0]]
        parts.append(f"More: [{title}](../{page}).")
    return "\n\n".join(parts) + "\n"


def _row(param: Any, annotation: Any) -> list[str]:
    if param.param_type_name == "argument":
        names = f"`{param.name.upper()}`" + (" …" if param.nargs == -1 else "")
    else:
        names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
        names += "" if param.is_flag else f" {_kind(annotation)}"
    return [names, _help(param), "required" if param.required else _default(param)]


def _kind(annotation: Any) -> str:
    """The placeholder of the value of an option."""
    while get_args(annotation):  # a union: its first member; a list: its elements
        annotation = get_args(annotation)[0]
    kind = annotation if isinstance(annotation, type) else str
    if issubclass(kind, Enum):
        return " \\| ".join(str(choice.value) for choice in kind)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _help(param: Any) -> str:
    return _plain(param.help).replace("|", "\\|")


def _plain(text: str | None) -> str:
    """The text without the markup of rich."""
    return MARKUP.sub("", text or "").replace("\\[", "[")


def _default(param: Any) -> str:
    if isinstance(param.show_default, str):
        return param.show_default
    value = getattr(param.default, "value", param.default)
    return "" if value is None or value is False else f"`{value}`"


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)
