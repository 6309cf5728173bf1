"""Groups of options that several commands share, or that are passed on together.

A group is a dataclass whose fields have typer's annotations. A command takes a group as one parameter, and
`with_groups` shows its options on the command line:

    @with_groups
    def show(graph: Path, tables: TableOptions) -> None: ...
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Self, TypeVar, get_origin

Found = TypeVar("Found")


class OptionGroup:
    """The base of groups. A field may be a group itself."""

    @classmethod
    def options(cls) -> Iterator[inspect.Parameter]:
        """A parameter for each option, in the order of the fields."""
        assert is_dataclass(cls)
        for one in fields(cls):
            if is_group(one.type):
                yield from one.type.options()
            elif hasattr(one.type, "__metadata__"):
                yield inspect.Parameter(
                    one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
                )

    @classmethod
    def take(cls, given: dict[str, Any]) -> Self:
        """The group with its values from `given`, which are removed there."""
        assert is_dataclass(cls)
        values = {
            one.name: one.type.take(given) if is_group(one.type) else given.pop(one.name)
            for one in fields(cls)
            if is_group(one.type) or one.name in given
        }
        return cls(**values)

    def changed(self) -> list[str]:
        """The names of the options that do not have their defaults."""
        assert is_dataclass(self)
        found: list[str] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, OptionGroup):
                found += value.changed()
            elif value != one.default:
                found.append(one.name)
        return found


def is_group(kind: Any) -> bool:
    """Whether an annotation is a group of options."""
    return get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, OptionGroup)


def with_groups(command: Callable[..., Found]) -> Callable[..., Found]:
    """Replace each parameter of a command that is a group by the options of the group."""
    signature = inspect.signature(command)
    groups = {name: one.annotation for name, one in signature.parameters.items() if is_group(one.annotation)}
    shown: list[inspect.Parameter] = []
    for name, one in signature.parameters.items():
        shown += groups[name].options() if name in groups else [one]

    @wraps(command)
    def with_options(**given: Any) -> Found:
        found = {name: group.take(given) for name, group in groups.items()}
        return command(**given, **found)

    with_options.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
    )
    return with_options
