"""The help of a command in a terminal of 80 columns: no name and no value is cut.

Typer gives the type of an option a column of its own, as wide as the longest list of choices, and another
column to the names that switch an option off. Here, the
column has one short word, and the help text has the rest.
"""

from copy import copy
from pathlib import Path
from typing import Any, get_args

TYPES = {int: "INT", float: "FLOAT", Path: "PATH"}


def compact(parameter: Any) -> Any:
    """A copy of typer's option or argument, for the help only."""
    described = getattr(parameter, "type_descriptor", None)
    if described is None:  # an older typer, with another layout
        return parameter
    shown = copy(parameter)
    if parameter.param_type_name == "argument":
        shown.metavar = parameter.name.upper()
        return shown
    shown.metavar = "" if parameter.is_flag else _type_word(described)
    shown.min = shown.max = None
    shown.help = " ".join([parameter.help or "", *_more_help(parameter)])
    shown.secondary_opts = []
    return shown


def _type_word(described: Any) -> str:
    if described.choices:
        return "NAME"
    kind = (get_args(described.annotation) or [described.annotation])[0]
    return TYPES.get(kind, "TEXT")


def _more_help(parameter: Any) -> list[str]:
    """The choices, if the help does not name them, and the names that switch the option off."""
    names = [str(choice) for choice in parameter.type_descriptor.choices or ()]
    known = all(name in (parameter.help or "") for name in names)
    return [
        *([] if known else [f"Choices: {', '.join(names)}."]),
        *(f"{name} switches it off." for name in parameter.secondary_opts),
    ]
