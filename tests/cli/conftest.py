"""The fixture that runs a command in a test."""

import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from adar_deploy import console
from adar_deploy.cli import app, main

BUILD = typer.main.get_command


@cache
def command_of_app() -> Any:
    return BUILD(app)


def build_command(one: typer.Typer) -> Any:
    """`typer.main.get_command`, which builds the parsers of all commands. Those of the app are built once."""
    return command_of_app() if one is app else BUILD(one)


@pytest.fixture
def adar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
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
