"""The app: one command a file, and one place where an error becomes a line and an exit code."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from adar_deploy.commands.build import build
from adar_deploy.commands.evaluate import evaluate
from adar_deploy.commands.export import export
from adar_deploy.commands.inspect import inspect
from adar_deploy.commands.run import run
from adar_deploy.commands.train import train
from adar_deploy.commands.validate import validate
from adar_deploy.console import print_error
from adar_deploy.signals import EXIT_USER_ERROR, interruptible, terminable

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train, evaluate, export, validate, build, inspect, run):
    app.command()(interruptible(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adar-deploy {version('adar-deploy')}")
        raise typer.Exit


@app.callback()
def adar_deploy(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train a recurrent graph model, export its step, and run it for any budget of steps.

    [bold]adar-deploy train[/]  →  [bold]adar-deploy export[/]  →  [bold]adar-deploy run GRAPH[/]
    """


def main() -> None:
    """Run the app; what a user can cause is one line on stderr and exit code 2."""
    try:
        with terminable():
            app()
    except Exception as error:
        from adar_runtime.errors import AdarError  # here, since it brings numpy along

        if not isinstance(error, AdarError):
            raise
        print_error(str(error))
        sys.exit(EXIT_USER_ERROR)
