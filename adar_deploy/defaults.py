"""Where an option comes from that is not typed: the environment, then adar.toml, then pyproject.toml.

It can be set for one command, or for all that have it:

    ADAR_RUN_MAX_STEPS=50      [run]
                               max-steps = 50
    ADAR_THREADS=2             threads = 2

In pyproject.toml the same stands under [tool.adar]. A key that no command has is an error. Of variables only
those that are known are read: others may be somebody else's.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

PREFIX = "ADAR"
FILES = ("pyproject.toml", "adar.toml")  # of the folder that a command is given in; the last one wins


class Parameter(NamedTuple):
    """An option or argument of a command, and the words that the command is called by."""

    command: tuple[str, ...]
    parsed_by: Any  # typer's own object

    @property
    def name(self) -> str:
        """As it is typed, without its dashes."""
        long = [option for option in self.parsed_by.opts if option.startswith("--")]
        name: str = long[0].removeprefix("--") if long else self.parsed_by.name
        return name.replace("_", "-")

    @property
    def variables(self) -> list[str]:
        """That of this command, then that of all."""
        words = ([*self.command, self.name], [self.name])
        return ["_".join([PREFIX, *each]).upper().replace("-", "_") for each in words]

    @property
    def one_word(self) -> bool:
        """Whether it takes a single word; a list of files is not a thing to set for good."""
        return self.parsed_by.nargs == 1 and not getattr(self.parsed_by, "multiple", False)

    def hear_environment(self) -> None:
        """Look at its variables. One that is set is named in help and errors."""
        if self.parsed_by.nargs == 1:
            found = next((name for name in self.variables if os.environ.get(name)), None)
            self.parsed_by.envvar = found or self.variables[0]
            self.parsed_by.show_envvar = found is not None


class ConfigurableGroup(TyperGroup):
    """The app; its commands also hear the environment and the files."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        for parameter in parameters_of(self):
            parameter.hear_environment()
        return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        given = ctx.params.get("config")
        files = [given] if given else [Path(name) for name in FILES if Path(name).is_file()]
        ctx.default_map = read_defaults(self, files)
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            _blame(error, files)
            raise


def parameters_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[Parameter]:
    """All that every command of the app takes."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from parameters_of(command, (*words, name))
        else:
            yield from (Parameter((*words, name), parameter) for parameter in command.params)


def read_defaults(group: Any, files: list[Path]) -> dict[str, Any]:
    """What the files say, by command and parameter; later files go before earlier ones."""
    known, defaults = list(parameters_of(group)), dict[str, Any]()
    for path in files:
        for key, value in sorted(_flat(_content(path)), key=lambda entry: len(entry[0])):
            command, name = key[:-1], key[-1].replace("_", "-")
            meant = [one for one in known if one.name == name and command in ((), one.command)]
            if not meant:
                raise _error(path, f"there is no option {'.'.join(key)}: {_hint(key, known)}")
            for parameter in meant:
                if isinstance(value, bool) and not getattr(parameter.parsed_by, "is_flag", False):
                    raise _error(path, f"{'.'.join(key)} is {str(value).lower()}, and it is no switch")
                place = defaults
                for word in parameter.command:
                    place = place.setdefault(word, {})
                place[parameter.parsed_by.name] = _value(parameter, value)
    return defaults


def _content(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # no TOML, or no text at all
        raise _error(path, f"is not TOML: {error}") from error
    if path.name == "pyproject.toml":
        content = content.get("tool", {}).get("adar", {})
    return content


def _flat(table: Mapping[str, Any], key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, (*key, name))
        else:
            yield (*key, name), value


def _value(parameter: Parameter, value: Any) -> Any:
    """A list as the one word that such an option takes on the command line, or one word as a list."""
    if parameter.one_word:
        return ",".join(map(str, value)) if isinstance(value, list) else value
    return value if isinstance(value, list) else [value]


def _hint(key: tuple[str, ...], known: list[Parameter]) -> str:
    from difflib import get_close_matches

    names = {".".join([*one.command, one.name]) if len(key) > 1 else one.name for one in known}
    near = get_close_matches(".".join(key).replace("_", "-"), sorted(names), 1)
    return f"did you mean {near[0]}?" if near else "adar-deploy --help lists commands, and theirs options"


def _blame(error: typer.BadParameter, files: list[Path]) -> None:
    """Say so where a value that cannot be is from a file, not from the command line."""
    ctx, parameter = error.ctx, error.param
    source = ctx.get_parameter_source(parameter.name or "") if ctx and parameter else None
    if source is not None and source.name == "DEFAULT_MAP":
        message = f"{Parameter((), parameter).name}: {error.message}"
        raise _error(Path(" or ".join(map(str, reversed(files)))), message) from error


def _error(path: Path, message: str) -> Exception:
    from adar_runtime.errors import UsageError  # here, since it brings numpy along

    return UsageError(f"{path}: {message}")
