"""The list of engines that this user built on this machine. Other engines load only on explicit request.

An engine is a program. An engine that came with a downloaded bundle must not run just because the machine has
a GPU.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def remember(hashes: Iterable[str]) -> None:
    """Add engines to the list. Without a writable list, engines have to be requested by name."""
    with suppress(OSError, RuntimeError):
        path = _list_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="ascii") as file:
            file.write("".join(f"{one}\n" for one in hashes))  # one write: several processes may build


def built_here(hashes: Iterable[str]) -> bool:
    """Whether all of these engines are on the list."""
    try:
        known = set(_list_path().read_text(encoding="ascii").split())
    except (OSError, ValueError, RuntimeError):
        return False
    return known.issuperset(hashes)


def _list_path() -> Path:
    """Path of the list. Raises RuntimeError if the user has no home folder."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "adar-deploy" / "engines"
