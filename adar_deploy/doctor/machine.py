"""Python, the system, and the settings that are heard here."""

import os
import platform
import sys
from pathlib import Path

from adar_deploy.defaults import FILES, PREFIX
from adar_deploy.doctor.findings import Finding, State
from adar_deploy.speed import all_cores

GROUP = "machine"
LEAST_PYTHON = (3, 11)


def look() -> list[Finding]:
    """Always there, so rather told than checked."""
    from adar_runtime.bundle.memory import limit_bytes

    free = limit_bytes()
    found = [
        _python(),
        Finding(GROUP, "system", State.works, f"{platform.system()} {platform.machine()}"),
        Finding(GROUP, "cores", State.works, str(all_cores())),
    ]
    if free is not None:
        found.append(Finding(GROUP, "free memory", State.works, f"{free / 1e9:.1f} GB"))
    heard = [name for name in FILES if Path(name).is_file()]
    heard += sorted(name for name in os.environ if name.startswith(f"{PREFIX}_"))
    settings = ", ".join(heard) or "the command line alone"
    return [*found, Finding(GROUP, "settings from", State.works, settings)]


def _python() -> Finding:
    good = sys.version_info[:2] >= LEAST_PYTHON
    wanted = ".".join(map(str, LEAST_PYTHON))
    return Finding(
        GROUP,
        "Python",
        State.works if good else State.broken,
        f"{platform.python_version()}, {sys.executable}",
        "" if good else f"make an environment with Python {wanted} or later",
    )
