"""Which engines this user built on this machine: the only ones that are loaded unless asked for by name.

An engine is a program. One that came with somebody's bundle must not run because a GPU happens to be there.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def remember(hashes: Iterable[str]) -> None:
    """Write down that these were built here; where that cannot be, they are to be asked for by name."""
    with suppress(OSError, RuntimeError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write("".join(f"{one}\n" for one in hashes))  # one write: several processes may build


def built_here(hashes: Iterable[str]) -> bool:
    """Whether all of them were."""
    try:
        known = set(_path().read_text(encoding="ascii").split())
    except (OSError, ValueError, RuntimeError):
        return False
    return known.issuperset(hashes)


def _path() -> Path:
    """A RuntimeError where the user has no home."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "adar-deploy" / "engines"
