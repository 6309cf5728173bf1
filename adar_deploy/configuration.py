"""Options from the environment, adar.toml and pyproject.toml, in this order of priority.

An option can be set for one command, or for all commands that have it:

    ADAR_RUN_MAX_STEPS=50      [run]
                               max-steps = 50
    ADAR_THREADS=2             threads = 2

In pyproject.toml the same keys are under [tool.adar]. An unknown key is an error. Unknown variables are
ignored: they may belong to another program.

A file in the working folder may have come with somebody else's data. It is read without being named, so it
may not set the options in NOT_FROM_WORKING_FOLDER. A file that the user names may set everything.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from adar_deploy.help_layout import CompactGroup

PREFIX = "ADAR"
MAX_BYTES = 2**20  # of a file with options
MAX_DEPTH = 20  # of tables and lists in it
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}""")
"""A key of 50 parts (a.b.c…): tomllib takes minutes for one of some 100,000."""

MAX_MESSAGE = 500  # characters of an error
PYG_PREFIX = "pyg:"  # of data sets that PyTorch Geometric downloads, and partly unpickles
DOWNLOADS = "what is downloaded"
FILES = ("pyproject.toml", "adar.toml")  # in the working folder; the last one wins
NOT_FROM_WORKING_FOLDER = {
    "where files are written": ("out", "output", "plot", "timing-cache", "signature", "triton"),
    "what is replaced or installed": ("overwrite", "rebuild", "install"),
    "which model is loaded": (
        "bundle",
        "bundles",
        "pack",
        "run",
        "model",
        "from",
        "context",
        "allow-unknown-model",
    ),
    "whether Ray starts, and which machines get the graphs": ("workers", "shards", "ray"),
    "who can reach the server": (
        "host",
        "port",
        "grpc-port",
        "tokens",
        "tls-cert",
        "tls-key",
        "tls-client-ca",
        "model-control",
    ),
    "whose keys and signatures are used": (
        "private-key",
        "public-key",
        "password",
        "sigstore",
        "identity",
        "issuer",
    ),
}
"""Options that a configuration file in the working folder may not set, by what they decide."""

ONLY_READ = (
    "data",
    "graph",
    "graphs",
    "for",
    "nodes",
    "edges",
    "classes",
    "source",
    "labels",
    "table",
)
"""The other options that name files: graphs and tables, which may come from anybody."""


class Parameter(NamedTuple):
    """An option or argument of a command, and the words of the command."""

    command: tuple[str, ...]
    parsed_by: Any  # typer's object

    @property
    def name(self) -> str:
        """The name on the command line, without leading dashes."""
        long = [option for option in self.parsed_by.opts if option.startswith("--")]
        name: str = long[0].removeprefix("--") if long else self.parsed_by.name
        return name.replace("_", "-")

    @property
    def variables(self) -> list[str]:
        """The variable of this command, then the variable of all commands with this option."""
        words = ([*self.command, self.name], [self.name])
        return ["_".join([PREFIX, *each]).upper().replace("-", "_") for each in words]

    @property
    def one_word(self) -> bool:
        """Whether the option takes a single word."""
        return self.parsed_by.nargs == 1 and not getattr(self.parsed_by, "multiple", False)

    def read_environment(self) -> None:
        """Use the first variable that is set. Help and errors then name this variable."""
        if self.parsed_by.nargs == 1:
            found = next((name for name in self.variables if os.environ.get(name)), None)
            self.parsed_by.envvar = found or self.variables[0]
            self.parsed_by.show_envvar = found is not None


class ConfigurableGroup(CompactGroup):
    """The app. Its commands also read options from the environment and from files."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        for parameter in parameters_of(self):
            parameter.read_environment()
        return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        given = ctx.params.get("config")
        files = [given] if given else [Path(name) for name in FILES if Path(name).is_file()]
        ctx.default_map = read_defaults(self, files, named=bool(given))
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            _raise_for_file(error, files)
            raise


def parameters_of(group: Any, words: tuple[str, ...] = ()) -> Iterator[Parameter]:
    """All options and arguments of all commands."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from parameters_of(command, (*words, name))
        else:
            yield from (Parameter((*words, name), parameter) for parameter in command.params)


def read_defaults(group: Any, files: list[Path], *, named: bool) -> dict[str, Any]:
    """Options in the files, by command and parameter. Later files override earlier ones.

    `named` says whether the user named the file, instead of being in its folder.
    """
    known, defaults = list(parameters_of(group)), dict[str, Any]()
    for path in files:
        seen = set[tuple[str, ...]]()
        for key, value in sorted(_flat(_content(path)), key=lambda entry: len(entry[0])):
            command, name = key[:-1], key[-1].replace("_", "-")
            if (*command, name) in seen:
                raise _error(
                    path, f"{'.'.join((*command, name))} is set twice, with - and with _: remove one"
                )
            seen.add((*command, name))
            matching = [one for one in known if one.name == name and command in ((), one.command)]
            if not matching:
                raise _error(path, f"unknown option {'.'.join(key)}: {_hint(key, known)}")
            if not named:
                _check_allowed(path, key, name, value)
            for parameter in matching:
                if isinstance(value, bool) and not getattr(parameter.parsed_by, "is_flag", False):
                    raise _error(
                        path, f"{'.'.join(key)} is {str(value).lower()}, but this option takes a value"
                    )
                of_command = defaults
                for word in parameter.command:
                    of_command = of_command.setdefault(word, {})
                of_command[parameter.parsed_by.name] = _value(parameter, value)
    return defaults


def _check_allowed(path: Path, key: tuple[str, ...], name: str, value: Any) -> None:
    """Refuse an option, or a download, that a file in the working folder may not choose."""
    downloads = any(
        str(word).startswith(PYG_PREFIX) for word in (value if isinstance(value, list) else [value])
    )
    refused = {**NOT_FROM_WORKING_FOLDER, **({DOWNLOADS: (name,)} if downloads else {})}
    for what, names in refused.items():
        if name in names:
            raise _error(
                path,
                f"{'.'.join(key)} decides {what}, which a file in the working folder may not: give the "
                f"option on the command line, or name the file with --config {path}",
            )


def _content(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
        if len(text) > MAX_BYTES:
            raise _error(path, f"larger than {MAX_BYTES:,} bytes, which is too large for options")
        if LONG_KEY.search(text):
            raise _error(path, f"nested more than {MAX_DEPTH} levels deep")
        content: Any = tomllib.loads(text)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not text, or nested too deeply
        raise _error(path, f"is not TOML: {error}") from error
    if path.name == "pyproject.toml":
        for name in ("tool", "adar"):
            content = content.get(name, {})
            if not isinstance(content, dict):
                raise _error(path, f"{name} is not a table: write the options under [tool.adar]")
    if _is_deeper(content, MAX_DEPTH):
        raise _error(path, f"nested more than {MAX_DEPTH} levels deep")
    return dict(content)


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(each, levels - 1) for each in inner)


def _flat(table: Mapping[str, Any], key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, (*key, name))
        else:
            yield (*key, name), value


def _value(parameter: Parameter, value: Any) -> Any:
    """Join a list with commas for an option that takes one word; wrap one word in a list for the others."""
    if parameter.one_word:
        return ",".join(map(str, value)) if isinstance(value, list) else value
    return value if isinstance(value, list) else [value]


def _hint(key: tuple[str, ...], known: list[Parameter]) -> str:
    from difflib import get_close_matches

    names = {".".join([*one.command, one.name]) if len(key) > 1 else one.name for one in known}
    near = get_close_matches(".".join(key).replace("_", "-"), sorted(names), 1)
    return f"did you mean {near[0]}?" if near else "adar-deploy COMMAND --help lists the options"


def _raise_for_file(error: typer.BadParameter, files: list[Path]) -> None:
    """Raise an error that names the file, where the invalid value came from a file."""
    ctx, parameter = error.ctx, error.param
    source = ctx.get_parameter_source(parameter.name or "") if ctx and parameter else None
    if source is not None and source.name == "DEFAULT_MAP":
        message = f"{Parameter((), parameter).name}: {error.message}"
        raise _error(Path(" or ".join(map(str, reversed(files)))), message) from error


def _error(path: Path, message: str) -> Exception:
    from adar_runtime.errors import UsageError, short

    return UsageError(
        f"{path}: {short(message, MAX_MESSAGE)}"
    )  # a file may have keys and values of any length
