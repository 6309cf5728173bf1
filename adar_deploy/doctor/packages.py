"""Compare the installed packages with the requirements in the metadata of adar-deploy."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from adar_deploy.doctor.findings import Finding, State
from adar_deploy.environment import ONNXRUNTIMES, package_version

DISTRIBUTION = "adar-deploy"
NOT_LISTED = ("", "dev", "cpu", "gpu", "cuda")  # the base, an extra for developers, and those of ONNX Runtime
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;>]*(?:>=(?P<minimum>[\w.]+))?[^;]*(?:;(?P<marker>.*))?")


@dataclass(frozen=True)
class Requirement:
    """A package, its minimum version, and the extra that requires it ("" for the base installation)."""

    name: str
    minimum: str
    extra: str

    @property
    def version(self) -> str | None:
        return package_version(self.name)

    @property
    def satisfied(self) -> bool:
        return self.version is not None and _numbers(self.version) >= _numbers(self.minimum)

    def __str__(self) -> str:
        return f"{self.name}>={self.minimum}"


def check() -> list[Finding]:
    """One finding per base package, one for ONNX Runtime, and one per extra."""
    required = list(requirements())
    extras = dict.fromkeys(one.extra for one in required if one.extra not in NOT_LISTED)
    base = [_base(one) for one in required if not one.extra]
    more = [_extra(name, [one for one in required if one.extra == name]) for name in extras]
    return [*base, _single_onnxruntime(), *more]


def requirements() -> Iterator[Requirement]:
    """The requirements in pyproject.toml that apply to this system."""
    for line in metadata.requires(DISTRIBUTION) or []:
        parts = REQUIREMENT.fullmatch(line)
        if parts is None or not _applies(parts["marker"] or ""):
            continue
        extra = re.search(r"extra == ['\"](.+?)['\"]", parts["marker"] or "")
        yield Requirement(parts["name"], parts["minimum"] or "0", extra[1] if extra else "")


def _applies(marker: str) -> bool:
    system = re.search(r"sys_platform (==|!=) ['\"](\w+)['\"]", marker)
    return system is None or (sys.platform == system[2]) == (system[1] == "==")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.split("+")[0])]


def _base(one: Requirement) -> Finding:
    if one.satisfied:
        return Finding("packages", one.name, State.works, one.version or "")
    detail = f"{one.version} is too old: {one.minimum} is needed" if one.version else "not installed"
    return Finding("packages", one.name, State.broken, detail, f"pip install -U '{one}'")


def _single_onnxruntime() -> Finding:
    found = [name for name in ONNXRUNTIMES if package_version(name)]
    if len(found) == 1:
        return Finding("packages", "one onnxruntime", State.works, found[0])
    wanted = "gpu" if "onnxruntime-gpu" in found else "cpu"
    detail, fix = "none", f"pip install '{DISTRIBUTION}[{wanted}]'"
    if found:
        detail = f"{' and '.join(found)} overwrite each other's files"
        fix = f"pip uninstall -y {' '.join(found)}; {fix}"
    return Finding("packages", "one onnxruntime", State.broken, detail, fix)


def _extra(name: str, required: list[Requirement]) -> Finding:
    missing = [one.name for one in required if one.version is None]
    old = [
        f"{one.name} {one.version} is too old: {one.minimum} is needed"
        for one in required
        if not one.satisfied
    ]
    fix = f"pip install -U '{DISTRIBUTION}[{name}]'"
    if missing:
        return Finding("extras", name, State.absent, f"not installed: {', '.join(missing)}", fix)
    if old:
        return Finding("extras", name, State.broken, "; ".join(old), fix)
    return Finding("extras", name, State.works, ", ".join(f"{one.name} {one.version}" for one in required))
