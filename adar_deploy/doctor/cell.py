"""Whether all parts work together here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adar_deploy.doctor.findings import Finding, State
from adar_deploy.doctor.probes import probe
from adar_deploy.extras import present

GROUP = "end to end"


def look() -> list[Finding]:
    """Train a model for a moment; make a cell, export it, run it."""
    return [_tried("a model", "train", _about_model), _tried("a cell", "export", _about_cell)]


def _tried(name: str, extra: str, about: Callable[[dict[str, Any]], str]) -> Finding:
    mend = f"pip install -U 'adar-deploy[{extra}]'"
    if not present(extra):
        return Finding(GROUP, name, State.absent, f"not tried, for want of the extra {extra}", mend)
    found = probe(name.removeprefix("a "))
    if "error" in found:
        return Finding(GROUP, name, State.broken, found["error"], mend)
    return Finding(GROUP, name, State.works, about(found))


def _about_model(found: dict[str, Any]) -> str:
    return f"trained for a moment, on {found['device']}"


def _about_cell(found: dict[str, Any]) -> str:
    done = f"exported and run on {found['backend']} in {found['seconds']:.1f} s"
    return f"{done}, {found['difference']:.0e} from PyTorch"


def look_at_bundle(path: Path) -> list[Finding]:
    """Load it, and run it on a small graph."""
    found = probe("bundle", str(path))
    if "error" in found:
        mend = f"adar-deploy export --out {path}"
        return [Finding(GROUP, str(path), State.broken, found["error"], mend)]
    detail = f"ran {found['steps']} steps on {found['backend']} in {found['seconds']:.2f} s"
    return [Finding(GROUP, str(path), State.works, detail)]
