"""The command `adar-deploy doctor`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import Bar, print_checks
from adar_deploy.options import Json
from adar_deploy.signals import EXIT_USER_ERROR

if TYPE_CHECKING:
    from adar_deploy.doctor import Finding


def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(help="Folder of a bundle, to be loaded and run too.", show_default="none")
    ] = None,
    as_json: Json = False,
) -> None:
    """See what works on this machine, and how to mend what does not.

    ✓ works, ✗ is broken, – is not there and need not be. Providers, TensorRT and a small cell are really
    tried, each in a process of its own.

    Exit codes: 0 nothing is broken; 2 something is.

    Example: adar-deploy doctor

    Example: adar-deploy doctor bundle --json
    """
    from adar_deploy.doctor import CHECKS, Finding, State, able, examine

    with Bar("doctor", CHECKS) as bar:
        done = 0

        def show(name: str) -> None:
            nonlocal done
            bar.update(done, name)
            done += 1

        findings = examine(bundle, show)
    broken = [one for one in findings if one.state is State.broken]
    if as_json:
        report = {"findings": [one.to_dict() for one in findings], "able": able(findings)}
        typer.echo(json.dumps(report | {"broken": len(broken)}))
    else:
        for group in dict.fromkeys(one.group for one in findings):
            print_checks(group, [_row(one) for one in findings if one.group == group])
        can = [
            Finding("", name, State.works if on else State.absent, on or "not here")
            for name, on in able(findings).items()
        ]
        print_checks("this machine can", [_row(one) for one in can])
    if broken:
        raise typer.Exit(EXIT_USER_ERROR)


def _row(one: "Finding") -> tuple[str, str, str, str, str]:
    return one.state.mark, one.state.colour, one.name, one.detail, one.mend
