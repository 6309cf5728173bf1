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
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_options_and_values_are_completed() -> None:
    assert asked("ex") == ["export"]
    assert asked("data", "") == ["list", "make", "convert", "shard", "show"]
    assert asked("run", "--max") == ["--max-steps"]
    assert asked("run", "--solver", "a") == ["auto", "ab2", "adaptive"]
    assert asked("run", "--solver", "ab2", "--solver", "euler", "--max") == ["--max-steps"]  # and no note


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


@pytest.mark.parametrize(("shell", "name"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_one_line_is_added_to_the_start_file(
    adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file, before = tmp_path / name, b"alias caf\xe9=x\r\n\n\nlast line"
    file.write_bytes(before)
    code, out, _ = adar("completion", shell, "--install", "--json")
    assert (code, json.loads(out)["changed"]) == (0, str(file))
    added = file.read_bytes().removeprefix(before)
    assert len(added.split(b"\n")) == 3
    code, out, _ = adar("completion", shell, "--install", "--json")
    assert (code, json.loads(out)["changed"]) == (0, None)
    assert file.read_bytes() == before + added


def test_a_start_file_survives_a_full_disk(tmp_path: Path) -> None:
    before = "alias a=b\n" * 100
    (tmp_path / ".bashrc").write_text(before)
    code = "import sys; sys.argv = ['adar-deploy', 'completion', 'bash', '--install']; "
    code += "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); "
    code += "from adar_deploy.cli import main; main()"
    environment = os.environ | {"HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert (tmp_path / ".bashrc").read_text() == before


def test_powershell_is_not_changed(adar) -> None:
    code, _, err = adar("completion", "powershell", "--install")
    assert code == 2
    assert "$PROFILE" in err


def test_another_shell_is_one_line(adar) -> None:
    code, _, err = adar("completion", "cmd")
    assert code == 2
    assert "cmd" in err
