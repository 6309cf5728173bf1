"""Shells ask, and are answered; scripts are installed where they look."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def asked(*words: str) -> list[str]:
    """What bash would offer after these words, the last one begun."""
    line = ["adar-deploy", *words]
    question = {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(words))}
    environment = os.environ | question | {"_ADAR_DEPLOY_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv[0] = 'adar-deploy'; from adar_deploy.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_commands_options_and_values_are_completed() -> None:
    assert asked("ex") == ["export"]
    assert asked("data", "") == ["list", "make", "convert", "shard", "show"]
    assert asked("run", "--max") == ["--max-steps"]
    assert asked("run", "--solver", "a") == ["auto", "ab2", "adaptive"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_the_script_of_each_shell(adar, shell: str) -> None:
    code, out, err = adar("completion", shell, "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert "_ADAR_DEPLOY_COMPLETE" in told["script"]
    assert (told["shell"], told["installed"]) == (shell, None)
    if shell == "bash" and shutil.which("bash"):
        subprocess.run(["bash", "-n"], input=told["script"], text=True, check=True)


def test_it_is_installed_where_the_shell_looks(adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, _ = adar("completion", "bash", "--install")
    assert code == 0
    assert ".bash_completions" in "".join(out.split())
    assert "complete" in (tmp_path / ".bash_completions" / "adar-deploy.sh").read_text()
    assert ".bash_completions/adar-deploy.sh" in (tmp_path / ".bashrc").read_text()


def test_another_shell_is_one_line(adar) -> None:
    code, _, err = adar("completion", "cmd")
    assert code == 2
    assert "cmd" in err
