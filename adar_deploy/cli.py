"""The app: the list of commands, and the place where an error becomes one line and an exit code."""

import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adar_deploy.commands import data
from adar_deploy.commands.bench import bench
from adar_deploy.commands.build import build
from adar_deploy.commands.completion import completion, prepare_completion
from adar_deploy.commands.doctor import doctor
from adar_deploy.commands.drift import drift
from adar_deploy.commands.embed import embed
from adar_deploy.commands.evaluate import evaluate
from adar_deploy.commands.export import export
from adar_deploy.commands.inspect import inspect
from adar_deploy.commands.pack import pack, unpack
from adar_deploy.commands.remember import remember
from adar_deploy.commands.report import report
from adar_deploy.commands.run import run
from adar_deploy.commands.selftest import selftest
from adar_deploy.commands.serve import serve
from adar_deploy.commands.sign import sign
from adar_deploy.commands.straighten import straighten
from adar_deploy.commands.train import train
from adar_deploy.commands.triton import triton
from adar_deploy.commands.validate import validate
from adar_deploy.commands.verify import verify
from adar_deploy.configuration import ConfigurableGroup
from adar_deploy.console import print_error
from adar_deploy.early_signals import exit_at_once
from adar_deploy.help_layout import CompactGroup
from adar_deploy.signals import EXIT_USER_ERROR, handled_by, interruptible
from adar_deploy.streams import prepare_streams, warnings_as_lines, writable_output
from adar_deploy.usage_errors import NamedCommand, TyperUsageError, usage_message

Command = Callable[..., None]

COMMANDS: dict[str, tuple[Command, ...]] = {
    "Make a model": (train, straighten, evaluate),
    "Make a bundle": (export, build, validate, inspect, pack, unpack, triton, sign, verify),
    "Use a bundle": (run, remember, serve, drift, bench, report),
    "Graphs": (embed,),
    "This program": (doctor, selftest, completion),
}
"""The commands by purpose, in the order of the help."""

OTHER_SOURCES = (
    "Options can also be set in adar.toml, under \\[tool.adar] in pyproject.toml, or with an environment "
    "variable such as ADAR_RUN_MAX_STEPS."
)


def _help(command: Command) -> str:
    """The docstring with one line per paragraph, which rich wraps, and coloured examples."""
    paragraphs = re.split(r"\n\s*\n", command.__doc__ or "")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r"(?m)^(Example:) (.+)$", r"[dim]\1[/] [not dim green]\2[/]", escape(text).strip())


def add(app: typer.Typer, *commands: Command, panel: str | None = None) -> None:
    """Add commands to an app."""
    for command in commands:
        name = command.__name__.rstrip("_")  # the function is `list_`: `list` is a built-in
        listed = app.command(name, cls=NamedCommand, help=_help(command), rich_help_panel=panel)
        listed(interruptible(command))


app = typer.Typer(
    cls=ConfigurableGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,  # adar-deploy has a command for it
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=OTHER_SOURCES,
)
for task, commands in COMMANDS.items():
    add(app, *commands, panel=task)
graphs = typer.Typer(cls=CompactGroup, no_args_is_help=True, rich_markup_mode="rich")
add(graphs, data.list_, data.make, data.convert, data.shard, data.show)
app.add_typer(
    graphs, name="data", help="List, make, convert, shard and show graphs.", rich_help_panel="Graphs"
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"adar-deploy {version('adar-deploy')}")
        raise typer.Exit


@app.callback()
def adar_deploy(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="ADAR_CONFIG",
            help="TOML file with options.",
            show_default="adar.toml and pyproject.toml in this folder",
        ),
    ] = None,
) -> None:
    """Train a recurrent graph model, export its single step, and run it for any number of steps.

    [bold]adar-deploy train GRAPH[/]  →  [bold]adar-deploy export[/]  →  [bold]adar-deploy run GRAPH[/]

    Without training: [bold]adar-deploy run GRAPH --bundle pretrained[/]
    """


def main() -> None:
    """Run the app. An error that a user can cause prints one line to stderr and exits with code 2."""
    prepare_streams()
    prepare_completion()
    try:
        with handled_by(exit_at_once), warnings_as_lines(), writable_output():
            sys.exit(app(standalone_mode=False) or 0)
    except TyperUsageError as error:
        message = usage_message(error)
        if message:
            print_error(message)
        sys.exit(EXIT_USER_ERROR)
    except Exception as error:
        from adar_runtime.errors import AdarError, short

        if isinstance(error, OSError) and error.filename is not None:  # such as a name that is too long
            print_error(f"{short(error.filename)}: {error.strerror}")
        elif isinstance(error, OSError):  # such as too many open files, or a deleted working folder
            print_error(f"the operating system refused a call: {error.strerror or short(error)}")
        elif isinstance(error, MemoryError):  # such as a limit of ulimit -v
            print_error("there is not enough memory for this: use a smaller graph, or a higher limit")
        elif isinstance(error, AdarError):
            print_error(str(error))
        else:
            raise
        sys.exit(EXIT_USER_ERROR)
