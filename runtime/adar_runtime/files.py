"""Files and folders that are whole or absent: written under another name, then renamed."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adar_runtime.errors import UsageError


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one move: whoever reads `path` sees the old content or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, marker: str) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it does not.

    An older folder at `path` is replaced only if it holds the file `marker`, so that a mistyped
    name never costs anyone a folder that this program did not write.
    """
    check_replaceable(path, marker)
    temporary, old = _beside(path), _beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_replaceable(path: Path, *markers: str) -> None:
    """Refuse to replace what does not look like an older one of ours: it holds none of the markers."""
    empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not empty and not any((path / marker).exists() for marker in markers):
        raise UsageError(
            f"{path} is there already and holds no {markers[0]}: choose another --out, or move it away"
        )


def _beside(path: Path) -> Path:
    """A name in the same folder, hence on the same disk, that nobody else uses."""
    path = path.absolute()
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")
