"""The app: one command a file, and one place where an error becomes a line and an exit code."""

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
from adar_deploy.commands.completion import completion, hear_shells
from adar_deploy.commands.doctor import doctor
from adar_deploy.commands.embed import embed
from adar_deploy.commands.evaluate import evaluate
from adar_deploy.commands.export import export
from adar_deploy.commands.inspect import inspect
from adar_deploy.commands.report import report
from adar_deploy.commands.run import run
from adar_deploy.commands.train import train
from adar_deploy.commands.validate import validate
from adar_deploy.console import print_error
from adar_deploy.defaults import ConfigurableGroup
from adar_deploy.signals import EXIT_USER_ERROR, interruptible, terminable
from adar_deploy.usage import MistypedError, NamedCommand, mistake

Command = Callable[..., None]

COMMANDS: dict[str, tuple[Command, ...]] = {
    "Make a model": (train, evaluate),
    "Make a bundle": (export, build, validate, inspect),
    "Use a bundle": (run, bench, report),
    "This program": (doctor, completion),
}
"""What each command is for, and the commands, in the order in which the help shows them."""

ELSEWHERE = (
    "Any option can also be set in adar.toml, under \\[tool.adar] in pyproject.toml, or by a variable "
    "such as ADAR_RUN_MAX_STEPS."
)


def _help(command: Command) -> str:
    """Its docstring, a line a paragraph for any window, and the examples in a colour of their own."""
    paragraphs = re.split(r"\n\s*\n", command.__doc__ or "")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r"(?m)^(Example:) (.+)$", r"[dim]\1[/] [not dim green]\2[/]", escape(text).strip())


def add(app: typer.Typer, *commands: Command, panel: str | None = None) -> None:
    """Let the app have these commands."""
    for command in commands:
        name = command.__name__.rstrip("_")  # `list` would be Python's own
        listed = app.command(name, cls=NamedCommand, help=_help(command), rich_help_panel=panel)
        listed(interruptible(command))


app = typer.Typer(
    cls=ConfigurableGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,  # it has a command of its own
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=ELSEWHERE,
)
for task, commands in COMMANDS.items():
    add(app, *commands, panel=task)
graphs = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
add(graphs, data.list_, data.make, data.convert, data.show)
add(app, embed, panel="Graphs")
app.add_typer(graphs, name="data", help="List, make, convert and look at graphs.", rich_help_panel="Graphs")


def _print_version(wanted: bool) -> None:
    if wanted:
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
            help="File of options.",
            show_default="adar.toml and pyproject.toml, if there",
        ),
    ] = None,
) -> None:
    """Train a recurrent graph model, export its step, and run it for any budget of steps.

    [bold]adar-deploy train[/]  →  [bold]adar-deploy export[/]  →  [bold]adar-deploy run GRAPH[/]
    """


def main() -> None:
    """Run the app; what a user can cause is one line on stderr and exit code 2."""
    hear_shells()
    try:
        with terminable():
            sys.exit(app(standalone_mode=False) or 0)
    except MistypedError as error:
        line = mistake(error)
        if line:
            print_error(line)
        sys.exit(EXIT_USER_ERROR)
    except Exception as error:
        from adar_runtime.errors import AdarError  # here, since it brings numpy along

        if not isinstance(error, AdarError):
            raise
        print_error(str(error))
        sys.exit(EXIT_USER_ERROR)
