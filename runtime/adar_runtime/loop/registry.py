"""What the registries of solvers and stop rules share: objects by name, and settings with help texts.

A dataclass field made by `setting` becomes an option of `adar-deploy run`. Nothing here imports numpy, so
that `--help` stays fast.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeVar, get_type_hints

from adar_runtime.errors import UsageError, short

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One setting of a solver or a stop rule, and its option on the command line."""

    name: str  # the parameter of the class
    option: str  # the name on the command line, without leading dashes
    kind: Any  # the type of the value
    help: str  # without a full stop at the end
    default: Any


def setting(default: Any, help: str, option: str | None = None) -> Any:
    """A dataclass field that becomes an option of `adar-deploy run`.

    The option has the name of the field. If another registry has an option of this name, give `option`.
    """
    return field(default=default, metadata={"help": help, "option": option})


def settings_of(kind: type) -> list[Setting]:
    """The fields of a registered class that were made by `setting`."""
    types = get_type_hints(kind)
    return [
        Setting(
            one.name, one.metadata["option"] or one.name, types[one.name], one.metadata["help"], one.default
        )
        for one in fields(kind)
        if "help" in one.metadata
    ]


def find(registry: Mapping[str, type[T]], what: str, name: object) -> type[T]:
    """The registered class of this name; `what` is the registry's noun in an error message.

    Raises:
        UsageError: No class has this name.
    """
    if not isinstance(name, str) or name not in registry:
        raise UsageError(f"there is no {what} {short(name)!r}: choose {_either(list(registry))}")
    return registry[name]


def create(registry: Mapping[str, type[T]], what: str, name: object, settings: Mapping[str, Any]) -> T:
    """An object of the registered class of this name, with these settings.

    Raises:
        UsageError: No class has this name, or the class does not accept these settings.
    """
    kind = find(registry, what, name)
    for one in settings:
        if one not in _parameters(kind):
            takers = [other for other, each in registry.items() if one in _parameters(each)]
            advice = f": it is a setting of {_either(takers)}" if takers else ""
            raise UsageError(f"the {what} {name!r} has no setting {short(one)!r}{advice}")
    missing = [one for one, needed in _parameters(kind).items() if needed and one not in settings]
    if missing:
        raise UsageError(f"the {what} {name!r} needs a value for {' and '.join(missing)}")
    return kind(**settings)


def _parameters(kind: type) -> dict[str, bool]:
    """The parameters of a class, and whether each one needs a value."""
    return {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(kind).parameters.items()
    }


def _either(names: Sequence[str]) -> str:
    """The names in a sentence: "a, b or c"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def is_number(value: object) -> bool:
    """Whether a value is a real number of Python or numpy, and not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_count(value: object, least: int) -> bool:
    """Whether a value is a whole number of at least `least`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_tolerance(value: object) -> bool:
    """Whether a value is a number above 0 and below 1."""
    return is_number(value) and 0 < value < 1  # type: ignore[operator]


def check_tolerance(value: object) -> None:
    """Raise a UsageError for a value that is not a tolerance."""
    if not is_tolerance(value):
        raise UsageError(f"tolerance is {short(value)}: choose a number above 0 and below 1")
