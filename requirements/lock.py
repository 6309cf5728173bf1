"""Write the lock files in this folder: every package with its version and the SHA-256 of its files.

`make lock` runs this script. pip resolves the requirements of pyproject.toml with the versions of
constraints.txt; the hashes of all files of a version (all platforms) come from the package index. Two kinds
of packages are not in the common lock files:

- torch: which file pip installs depends on the index (CPU or CUDA), so its hash differs between machines.
  The Makefile installs the version of constraints.txt.
- onnxruntime and onnxruntime-gpu: exactly one of them is installed, so each has a lock file of its own.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from packaging.utils import canonicalize_name
from pip._internal.models.index import PyPI  # pip's default index

HERE = Path(__file__).parent
ROOT = HERE.parent
NOT_LOCKED = {"torch", "triton"}
ALTERNATIVES = ("onnxruntime", "onnxruntime-gpu")
LOCKS: dict[str, tuple[str, ...]] = {
    "runtime": ("gpu", "serve"),
    "export": ("export", "gpu"),
    "dev": ("dev", "gpu"),
}
"""The extras in each lock file; gpu, because both packages of ONNX Runtime need the same others. `runtime` is
for the Dockerfiles, the others are for the Makefile. Two more lock files: `build` contains what builds this
package, `cuda` the CUDA libraries of Dockerfile.gpu."""

CUDA = "nvidia-"  # prefix of packages with CUDA libraries; torch brings its own

HEADER = "# Made by `make lock` from pyproject.toml and constraints.txt: do not edit.\n"


class _Links(HTMLParser):
    """File names and SHA-256 hashes of a page of the package index."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href") if tag == "a" else None
        found = re.search(r"([^/]+)#sha256=([0-9a-f]{64})$", address or "")
        if found:
            self.hashes[found[1]] = found[2]


def requirements(project: dict[str, Any], extras: tuple[str, ...]) -> list[str]:
    """The requirements of the project with these extras; an extra may name other extras."""
    found = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            named = re.fullmatch(rf"{project['name']}\[(.+)\]", line)
            found += requirements(project, tuple(named[1].split(","))) if named else [line]
    return sorted(set(found))


def resolved(lines: list[str], *, cuda: bool = False) -> dict[str, tuple[str, str]]:
    """Version and hash of what pip would install here, by name: CUDA libraries, or all other packages."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command = [*pip, "--report", "-", "-c", str(ROOT / "constraints.txt"), *lines]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = {}
    for each in json.loads(done.stdout)["install"]:
        of_file = each["download_info"]["archive_info"]["hashes"]["sha256"]
        found[canonicalize_name(each["metadata"]["name"])] = (each["metadata"]["version"], of_file)
    return {name: found[name] for name in found if name not in NOT_LOCKED and name.startswith(CUDA) == cuda}


def hashes(name: str, version: str) -> set[str]:
    """The hashes of all files of this version in the package index."""
    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")
    links = _Links()
    with urlopen(f"{index}/{name}/", timeout=60) as page:  # noqa: S310
        links.feed(page.read().decode())
    # A wheel is NAME-VERSION-…, a source archive NAME-VERSION.tar.gz or .zip.
    of_version = re.compile(rf"[^-]+(?:-[^-\d][^-]*)*-{re.escape(version)}(?:-.+\.whl|\.tar\.gz|\.zip)")
    return {digest for file, digest in links.hashes.items() if of_version.fullmatch(file)}


def locked(name: str, version: str, installed: str) -> str:
    """The entry of one package. The file that pip would install here has to be one of the index."""
    found = hashes(name, version)
    if installed not in found:
        raise SystemExit(f"{name} {version}: the file that pip installs here is not the index's file")
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(found))]) + "\n"


def main() -> None:
    """Write all lock files."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, build = pyproject["project"], pyproject["build-system"]["requires"]
    sets = {name: resolved(requirements(project, extras)) for name, extras in LOCKS.items()}
    sets["cuda"] = resolved(requirements(project, ("cuda",)), cuda=True)
    sets |= {"build": resolved(build)} | {name: {name: resolved([name])[name]} for name in ALTERNATIVES}
    packages = {(name, *found) for each in sets.values() for name, found in each.items()}
    entries = {package: locked(*package) for package in packages}
    for lock, members in sets.items():
        kept = [
            entries[name, *found]
            for name, found in sorted(members.items())
            if name == lock or name not in ALTERNATIVES
        ]
        (HERE / f"{lock}.txt").write_text(HEADER + "".join(kept))
        print(f"{lock}.txt: {len(kept)} packages")


if __name__ == "__main__":
    main()
