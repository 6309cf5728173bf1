"""The command `adar-deploy completion`."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

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


class Place(NamedTuple):
    """Where a shell finds a script: a file in the home folder, and a line of another file that names it."""

    script: str
    start_file: str | None = None
    line: str = ""


PLACES = {
    Shell.bash: Place(
        f".bash_completions/{PROGRAM}.sh", ".bashrc", f"source ~/.bash_completions/{PROGRAM}.sh"
    ),
    Shell.zsh: Place(f".zfunc/_{PROGRAM}", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    Shell.fish: Place(f".config/fish/completions/{PROGRAM}.fish"),
}


def completion(
    shell: Annotated[Shell | None, typer.Argument(help="The shell.", show_default="the shell in use")] = None,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Write the script to the home folder, and a line that loads it to ~/.bashrc or ~/.zshrc.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print or install shell completion of commands, options and values.

    Example: adar-deploy completion --install

    Example: adar-deploy completion fish > ~/.config/fish/completions/adar-deploy.fish
    """
    from typer._completion_shared import get_completion_script

    name = shell or Shell(_shell_in_use())
    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=name.value)
    path, changed = _install(name, script) if install else (None, None)
    if as_json:
        files = {"installed": path and str(path), "changed": changed and str(changed)}
        typer.echo(json.dumps({"shell": name.value, "script": script, **files}))
    elif path:
        facts = {"shell": name.value, "file": path, "line added to": changed, "active": "in new shells"}
        print_facts("completion installed", {key: value for key, value in facts.items() if value})
    else:
        typer.echo(script)


def _install(shell: Shell, script: str) -> tuple[Path, Path | None]:
    """Write the script. Returns its path, and the start file of the shell if that was changed."""
    from adar_runtime.errors import UsageError
    from adar_runtime.files import write_file

    place = PLACES.get(shell)
    if place is None:
        raise UsageError(f"add the output of adar-deploy completion {shell.value} to the file $PROFILE")
    path = Path.home() / place.script
    write_file(path, f"{script}\n".encode())
    start = place.start_file and Path.home() / place.start_file
    return path, start if start and _add_line(start, place.line) else None


def _add_line(file: Path, line: str) -> bool:
    """Add a line to a file that does not have it. What is there stays as it is, also on a full disk."""
    from adar_runtime.files import writing

    with writing(file):
        content = file.read_bytes() if file.exists() else b""
        if line.encode() in content:
            return False
        with file.open("ab") as end:
            end.write(f"\n{line}\n".encode())
    return True


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
