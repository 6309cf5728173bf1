"""Installed packages against what this distribution asks for, by its own metadata."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from adar_deploy.doctor.findings import Finding, State

DISTRIBUTION = "adar-deploy"
FLAVOURS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")
WORKING = "dev"  # the extra of those who work on it
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;>]*(?:>=(?P<least>[\w.]+))?[^;]*(?:;(?P<marker>.*))?")


@dataclass(frozen=True)
class Requirement:
    """A package, the least version of it, and the extra that asks for it ("" for the base)."""

    name: str
    least: str
    extra: str

    @property
    def version(self) -> str | None:
        return installed(self.name)

    @property
    def enough(self) -> bool:
        return self.version is not None and _numbers(self.version) >= _numbers(self.least)

    def __str__(self) -> str:
        return f"{self.name}>={self.least}"


def look() -> list[Finding]:
    """Base packages, then extras, each as a whole."""
    wanted = list(requirements())
    extras = dict.fromkeys(one.extra for one in wanted if one.extra not in ("", WORKING))
    base = [_base(one) for one in wanted if not one.extra]
    more = [_extra(name, [one for one in wanted if one.extra == name]) for name in extras]
    return [*base, _flavours(), *more]


def requirements() -> Iterator[Requirement]:
    """What pyproject.toml asks for on this system."""
    for line in metadata.requires(DISTRIBUTION) or []:
        parts = REQUIREMENT.fullmatch(line)
        if parts is None or not _here(parts["marker"] or ""):
            continue
        extra = re.search(r"extra == ['\"](.+?)['\"]", parts["marker"] or "")
        yield Requirement(parts["name"], parts["least"] or "0", extra[1] if extra else "")


def installed(name: str) -> str | None:
    """The version of a distribution; None where it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _here(marker: str) -> bool:
    system = re.search(r"sys_platform (==|!=) ['\"](\w+)['\"]", marker)
    return system is None or (sys.platform == system[2]) == (system[1] == "==")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.split("+")[0])]


def _base(one: Requirement) -> Finding:
    state = State.works if one.enough else State.broken
    detail = one.version or "not installed"
    if one.version and not one.enough:
        detail = f"{one.version}, and {one.least} is the least"
    return Finding("packages", one.name, state, detail, "" if one.enough else f"pip install -U '{one}'")


def _flavours() -> Finding:
    found = [name for name in FLAVOURS if installed(name)]
    if len(found) == 1:
        return Finding("packages", "one onnxruntime", State.works, found[0])
    wanted = next(one for one in requirements() if one.name.startswith("onnxruntime"))
    detail, mend = "none", f"pip install '{wanted}'"
    if found:
        detail = f"{' and '.join(found)} are in one folder, half of each"
        mend = f"pip uninstall -y {' '.join(found)}; {mend}"
    return Finding("packages", "one onnxruntime", State.broken, detail, mend)


def _extra(name: str, wanted: list[Requirement]) -> Finding:
    missing = [one.name for one in wanted if one.version is None]
    old = [f"{one.name} {one.version}, and {one.least} is the least" for one in wanted if not one.enough]
    mend = f"pip install -U '{DISTRIBUTION}[{name}]'"
    if missing:
        return Finding("extras", name, State.absent, f"no {', '.join(missing)}", mend)
    if old:
        return Finding("extras", name, State.broken, "; ".join(old), mend)
    return Finding("extras", name, State.works, ", ".join(f"{one.name} {one.version}" for one in wanted))
