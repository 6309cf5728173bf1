"""The help of a command in a terminal: no name is cut in 60 columns, and no value in 80.

Typer gives the type of an option a column of its own, as wide as the longest list of choices, and another
column to the names that switch an option off. Here, the column has one short word, and the help text has the
rest. In a narrow terminal, there is no column for types.
"""

import shutil
from copy import copy
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperGroup

NARROW = 75  # columns of a terminal in which names need the place of the types
TYPES = {int: "INT", float: "FLOAT", Path: "PATH"}


class CompactGroup(TyperGroup):
    """A group of commands with a compact help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = copy(self)
        shown.get_params = lambda ctx: [compact(one) for one in self.get_params(ctx)]  # type: ignore[method-assign]
        TyperGroup.format_help(shown, ctx, formatter)


def compact(parameter: Any) -> Any:
    """A copy of typer's option or argument, for the help only."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None:  # an older typer, with another layout
        return parameter
    shown = copy(parameter)
    if parameter.param_type_name == "argument":
        shown.metavar = parameter.name.upper()
        shown.display_type_rich = lambda ctx: ""  # noqa: ARG005
        shown.help = _with_choices(parameter)
        return shown
    narrow = shutil.get_terminal_size().columns < NARROW
    shown.metavar = "" if parameter.is_flag or narrow else _type_word(described)
    shown.min = shown.max = None
    shown.help = _with_choices(parameter)
    shown.secondary_opts = []
    return shown


def _type_word(described: Any) -> str:
    if described.choices:
        return "NAME"
    kind = (get_args(described.annotation) or [described.annotation])[0]
    return TYPES.get(kind, "TEXT")


def _with_choices(parameter: Any) -> str:
    """The help with the choices and the names that switch the option off, if the help does not name them."""
    text = parameter.help or ""
    choices = [str(choice) for choice in parameter.type_descriptor.choices or ()]
    known = all(name in text for name in choices)
    off = [name for name in parameter.secondary_opts if name not in text]
    return " ".join(
        [
            text,
            *([] if known else [f"Choices: {', '.join(choices)}."]),
            *(f"{name} switches it off." for name in off),
        ]
    )
