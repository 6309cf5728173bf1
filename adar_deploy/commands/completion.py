"""The command `adar-deploy completion`."""

import json
import os
from enum import StrEnum
from typing import Annotated

import typer

from adar_deploy.console import print_facts
from adar_deploy.options import Json

PROGRAM = "adar-deploy"
VARIABLE = "_ADAR_DEPLOY_COMPLETE"  # a shell sets it to ask for completions


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


def completion(
    shell: Annotated[Shell | None, typer.Argument(help="The shell.", show_default="the shell in use")] = None,
    install: Annotated[
        bool,
        typer.Option("--install", help="Write the script to the folder in which the shell looks for it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print or install shell completion of commands, options and values.

    Example: adar-deploy completion --install

    Example: adar-deploy completion fish > ~/.config/fish/completions/adar-deploy.fish
    """
    from typer._completion_shared import get_completion_script
    from typer._completion_shared import install as write_script

    name = shell.value if shell else _shell_in_use()
    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=name)
    path = write_script(shell=name, prog_name=PROGRAM, complete_var=VARIABLE)[1] if install else None
    if as_json:
        typer.echo(json.dumps({"shell": name, "script": script, "installed": path and str(path)}))
    elif path:
        print_facts("completion installed", {"shell": name, "file": path, "active": "in new shells"})
    else:
        typer.echo(script)


def prepare_completion() -> None:
    """Register typer's shells if a shell asks for completions: typer does not do it by itself."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def _shell_in_use() -> str:
    from typer._completion_shared import _get_shell_name

    name = _get_shell_name()
    if name not in list(Shell):
        from adar_runtime.errors import UsageError

        raise UsageError(f"no completion for {name or 'an unknown shell'}: choose {', '.join(Shell)}")
    return name
