"""Write the lock files in this folder: every package with its version and the SHA-256 of its files.

`make lock` runs this script with pip-tools. The versions come from constraints.txt, the requirements from
pyproject.toml. Two kinds of packages are not in the common lock files:

- torch: which file pip installs depends on the index (CPU or CUDA), so its hash differs between machines.
  The Makefile installs the version of constraints.txt.
- onnxruntime and onnxruntime-gpu: exactly one of them is installed, so each has a lock file of its own.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
NOT_LOCKED = "torch"
ALTERNATIVES = ("onnxruntime", "onnxruntime-gpu")
LOCKS = {"runtime": (), "export": ("export",), "dev": ("dev",)}
"""The extras in each lock file. `runtime` is for the Dockerfile, the others are for the Makefile."""

HEADER = "# Made by `make lock` from pyproject.toml and constraints.txt: do not edit.\n"
OPTIONS = (
    "--quiet --generate-hashes --strip-extras --no-header --no-annotate --no-emit-options --no-emit-index-url "
    f"--no-emit-find-links --no-emit-trusted-host --unsafe-package {NOT_LOCKED} --no-allow-unsafe"
).split()


def requirements(project: dict[str, Any], extras: tuple[str, ...]) -> list[str]:
    """The requirements of the project with these extras; an extra may name other extras."""
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            named = re.fullmatch(rf"{project['name']}\[(.+)\]", line)
            found += requirements(project, tuple(named[1].split(","))) if named else [line]
    return sorted(set(found))


def compiled(lines: list[str]) -> dict[str, str]:
    """The locked lines of these requirements and of everything that they need, by package."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        command = [sys.executable, "-m", "piptools", "compile", *OPTIONS]
        command += ["--constraint", str(ROOT / "constraints.txt"), "--output-file", str(output), "-"]
        # Paths of this machine must not be in the lock files: local copies of packages are not considered.
        environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
        subprocess.run(command, input="\n".join(lines), text=True, check=True, cwd=folder, env=environment)
        blocks = re.findall(r"^(\S+?)==(.*(?:\n    .*)*)", output.read_text(), re.MULTILINE)
    return {name: f"{name}=={rest}\n" for name, rest in blocks}


def write(name: str, locked: dict[str, str]) -> None:
    """Write one lock file. It may name packages, versions and hashes, and nothing of this machine."""
    text = HEADER + "".join(locked[package] for package in sorted(locked))
    for line in text.splitlines()[1:]:
        if re.search(r"--(?!hash=sha256:)|@|://", line):
            raise SystemExit(f"{name}.txt would contain a path, an address or an option: {line}")
    (HERE / f"{name}.txt").write_text(text)
    print(f"{name}.txt: {len(locked)} packages")


def main() -> None:
    """Write all lock files."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = pyproject["project"], pyproject["build-system"]["requires"]
    for name, extras in LOCKS.items():
        lines = requirements(project, extras)
        locked = compiled([*lines, *build, "wheel"] if extras else lines)
        write(name, {package: line for package, line in locked.items() if package not in ALTERNATIVES})
    for package in ALTERNATIVES:
        write(package, {package: compiled([package])[package]})


if __name__ == "__main__":
    main()
