"""The fixture that runs a command in a test."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from adar_deploy import console
from adar_deploy.cli import app, main


@pytest.fixture(scope="session")
def build_command() -> Callable[[typer.Typer], Any]:
    """`typer.main.get_command`, which builds the parsers of all commands. Those of the app are built once."""
    build = typer.main.get_command
    built = build(app)
    return lambda one: built if one is app else build(one)


@pytest.fixture
def adar(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    build_command: Callable[[typer.Typer], Any],
):
    """Run `adar-deploy …` in an empty folder: exit code, stdout, stderr.

    Progress lines are switched off: on a slow machine they would appear on stderr.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.main, "get_command", build_command)
    monkeypatch.setattr(console, "LOG_INTERVAL", math.inf)
    monkeypatch.setattr(console, "SLOW_LOG_INTERVAL", math.inf)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["adar-deploy", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
