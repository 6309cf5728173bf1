"""Options that several commands have, and how their values are read.

The choices of an option come from the registries of the runtime: one that is added there needs no change
here.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.paths import named_bundle
from adar_runtime.backends import AUTO, BACKENDS
from adar_runtime.loop.solvers import DEFAULT_SOLVER, SOLVERS
from adar_runtime.loop.stopping import RULES


def choices(name: str, values: Iterable[str]) -> Any:
    """A type whose members are these values. Typer lists them in the help and refuses others."""
    return StrEnum(name, [(value, value) for value in values])


if TYPE_CHECKING:
    Backend = str
    SolverName = str
    ExitRule = str
else:
    Backend = choices("Backend", [AUTO, *BACKENDS])
    SolverName = choices("SolverName", [DEFAULT_SOLVER, *SOLVERS])
    ExitRule = choices("ExitRule", RULES)


class PrecisionName(StrEnum):
    """Held to adar_export.precision by a test: importing it needs PyTorch."""

    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


AllowUnknownModel = Annotated[
    bool,
    typer.Option(
        "--allow-unknown-model",
        help="Accept ONNX models that this version does not export. They run in a process of their own, with "
        "limits of memory and time.",
    ),
]
BundleArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder of an exported bundle, a file of adar-deploy pack, or pretrained.", callback=named_bundle
    ),
]
CudaDevice = Annotated[
    int, typer.Option("--device", min=0, help="Number of the CUDA device, for backends on a GPU.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
MaxSteps = Annotated[
    int,
    typer.Option(help="Budget: Euler steps from t = 0 to t = 1. A run makes at most this many cell calls."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what --out contains, if adar-deploy wrote it.")
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="Training run that the bundle was exported from.",
        show_default="the run with the same weights, in runs/ or beside the bundle",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random numbers.")]
SignatureOption = Annotated[
    Path | None, typer.Option(help="File of the signature.", show_default="model.sig in the bundle")
]
Split = Annotated[int, typer.Option(min=0, help="Index of the split, for graphs that have several.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of ONNX Runtime or OpenVINO.", show_default="one per core")
]


COMMAND_LINE_ONLY = ("as_json", "base")  # options without a meaning in Python; base is `train --from`


def parsed_options(command: Callable[..., None], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a command, from those that a caller in Python gives by name. None means not given.

    They are parsed as if they were typed, so that types, ranges and defaults are those of the command.
    """
    from adar_deploy.usage_errors import TyperUsageError, reworded
    from adar_runtime.errors import UsageError

    app = typer.Typer(add_completion=False)
    app.command()(command)
    parser: Any = typer.main.get_command(app)
    known = {one.name: one for one in parser.params if one.name not in COMMAND_LINE_ONLY}
    typed: list[str] = []
    for name, value in given.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UsageError(
                f"{command.__name__} has no option {name!r}{hint}: choose from {', '.join(known)}"
            )
        typed += _as_typed(known[name], value)
    try:
        found = parser.make_context(command.__name__, typed).params
        return {name: None if value == () else value for name, value in found.items()}
    except TyperUsageError as error:
        raise UsageError(f"{command.__name__}: {reworded(error)}") from error


def _as_typed(option: Any, value: Any) -> list[str]:
    """An option and its value in the words of the command line."""
    name = option.opts[0]
    if value is None:
        return []
    if isinstance(value, bool):
        no = option.secondary_opts
        return [name] if value else no[:1]
    values = value if isinstance(value, list | tuple | set) else [value]
    if option.nargs == 1 and not getattr(option, "multiple", False):  # as in a configuration file
        values = [",".join(map(str, values))]
    return [str(one) if option.param_type_name == "argument" else f"{name}={one}" for one in values]


def is_typed(ctx: typer.Context, parameter: str) -> bool:
    """Whether the user set an option on the command line or in the environment.

    A configuration file in the working folder may have come with a bundle from somebody else. Such a file
    may choose a backend, but it must not declare engines trustworthy.
    """
    return set_by(ctx, parameter) in ("COMMANDLINE", "ENVIRONMENT")


def set_by(ctx: typer.Context, parameter: str) -> str:
    """Where the value of an option is from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP (a file) or DEFAULT."""
    source = ctx.get_parameter_source(parameter)
    return "DEFAULT" if source is None else source.name


def without_none(**settings: Any) -> dict[str, Any]:
    """The settings that were given. Those that are None keep the defaults of the called function."""
    return {name: value for name, value in settings.items() if value is not None}


def parse_numbers(name: str, text: str, least: int = 0) -> list[int]:
    """Integers separated by commas; the error names the option."""
    from adar_runtime.errors import UsageError

    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"--{name} takes integers separated by commas, such as 8,50,300, not {text!r}"
        ) from error
    if min(numbers) < least:
        raise UsageError(f"--{name} contains {min(numbers)}: every value has to be at least {least}")
    return numbers


UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_bytes(name: str, text: str) -> int:
    """A number of bytes, such as 4GB or 500MB; the error names the option."""
    from adar_runtime.errors import UsageError

    number, unit = text[:-2].strip(), text[-2:].upper()
    try:
        found = float(number) * UNITS[unit]
    except (ValueError, KeyError) as error:
        raise UsageError(f"--{name} takes a number of bytes such as 4GB or 500MB, not {text!r}") from error
    if not 1 <= found < 2**60:
        raise UsageError(f"--{name} is {text}: choose a size such as 4GB")
    return int(found)


def parse_budgets(name: str, text: str) -> list[int]:
    """Step budgets separated by commas."""
    from adar_runtime.loop.checks import check_budgets

    return check_budgets(parse_numbers(name, text))
