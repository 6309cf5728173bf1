"""The fixture that runs a command in a test."""

import math
import sys
from pathlib import Path

import pytest

from adar_deploy import console
from adar_deploy.cli import main


@pytest.fixture
def adar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Run `adar-deploy …` in an empty folder: exit code, stdout, stderr.

    Progress lines are switched off: on a slow machine they would appear on stderr.
    """
    monkeypatch.chdir(tmp_path)
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
