"""The command `adar-deploy completion`."""

import json
import os
from enum import StrEnum
from typing import Annotated

import typer

from adar_deploy.console import print_facts
from adar_deploy.options import Json

PROGRAM = "adar-deploy"
VARIABLE = "_ADAR_DEPLOY_COMPLETE"  # by which a shell asks what could come next


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


def completion(
    shell: Annotated[
        Shell | None, typer.Argument(help="Of which shell.", show_default="the one in use")
    ] = None,
    install: Annotated[
        bool, typer.Option("--install", help="Write it to where the shell looks for it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let a shell complete commands, options and their values.

    Prints the script, to be put where you like, or installs it for you.

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
        print_facts("completion installed", {"shell": name, "file": path, "from": "the next shell on"})
    else:
        typer.echo(script)


def hear_shells() -> None:
    """Be ready for a shell's question, if this is one: typer knows none before it is told to."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def _shell_in_use() -> str:
    from typer._completion_shared import _get_shell_name

    name = _get_shell_name()
    if name not in list(Shell):
        from adar_runtime.errors import UsageError

        raise UsageError(f"there is no completion for {name or 'an unknown shell'}: name {', '.join(Shell)}")
    return name
