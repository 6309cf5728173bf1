"""Files and folders that are whole or absent: written under another name, then renamed."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adar_runtime.errors import UsageError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk has against it is the user's to mend: an OSError becomes one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one move: whoever reads `path` sees the old content or all of the new."""
    temporary = _beside(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def find_by_hash(files: Iterable[Path], sha256: str | None) -> Path | None:
    """The first of the files that has these bytes."""
    return next((file for file in files if hashlib.sha256(file.read_bytes()).hexdigest() == sha256), None)


def check_writable(path: Path) -> None:
    """Refuse now what `write_file` would refuse when the work is done. Nothing is left behind."""
    probe, made = _beside(path), []
    with writing(path):
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name a file")
        try:
            for folder in reversed(path.absolute().parents):
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
            probe.touch(exist_ok=False)
            probe.unlink()
        finally:
            for folder in reversed(made):
                folder.rmdir()


@contextmanager
def new_folder(path: Path, marker: str) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it does not.

    An older folder at `path` is replaced only if it holds the file `marker`, so that a mistyped
    name never costs anyone a folder that this program did not write.
    """
    check_replaceable(path, marker)
    with writing(path):
        path = path.resolve()  # a link stays a link: the folder that it leads to is the one replaced
        temporary = _beside(path)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            _swap(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, path: Path) -> None:
    """Put `new` in the place of `path`; the old one is deleted only when the new one is there."""
    if not path.exists():
        new.rename(path)
        return
    old = _beside(path)
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def check_replaceable(path: Path, *markers: str) -> None:
    """Refuse to replace what does not look like an older one of ours: it holds none of the markers."""
    with writing(path):
        empty = path.is_dir() and not any(path.iterdir())
        ours = any((path / marker).exists() for marker in markers)
        taken = path.exists() and not empty and not ours
    if taken:
        raise UsageError(
            f"{path} is there already and holds no {markers[0]}: choose another --out, or move it away"
        )


def _beside(path: Path) -> Path:
    """A name in the same folder, hence on the same disk, that nobody else uses."""
    return path.absolute().parent / f".adar-{secrets.token_hex(8)}"
