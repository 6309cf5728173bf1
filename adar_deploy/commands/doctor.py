"""The command `adar-deploy doctor`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adar_deploy.console import Bar, print_checks
from adar_deploy.options import Json
from adar_deploy.signals import EXIT_USER_ERROR

if TYPE_CHECKING:
    from adar_deploy.doctor.findings import Finding


def doctor(
    bundle: Annotated[
        Path | None, typer.Argument(help="Folder of a bundle to load and run as well.", show_default="none")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check what works on this machine, and show how to fix what does not work.

    ✓ works, ✗ is broken, – is not installed and not required. Providers, TensorRT and a small cell are
    checked in separate processes.

    Exit codes: 0 nothing is broken; 2 something is broken.

    Example: adar-deploy doctor

    Example: adar-deploy doctor bundle --json
    """
    from adar_deploy.doctor.checks import CHECKS, examine
    from adar_deploy.doctor.findings import Finding, State, abilities

    with Bar("doctor", CHECKS) as bar:
        done = 0

        def show(name: str) -> None:
            nonlocal done
            bar.update(done, name)
            done += 1

        findings = examine(bundle, show)
    broken = [one for one in findings if one.state is State.broken]
    able = abilities(findings)
    if as_json:
        report = {"findings": [one.to_dict() for one in findings], "able": able}
        typer.echo(json.dumps(report | {"broken": len(broken)}))
    else:
        for group in dict.fromkeys(one.group for one in findings):
            print_checks(group, [_row(one) for one in findings if one.group == group])
        rows = [
            Finding("", command, State.works if on else State.absent, on or "not available")
            for command, on in able.items()
        ]
        print_checks("this machine can", map(_row, rows))
    if broken:
        raise typer.Exit(EXIT_USER_ERROR)


def _row(one: "Finding") -> tuple[str, str, str, str, str]:
    return one.state.mark, one.state.colour, one.name, one.detail, one.fix
