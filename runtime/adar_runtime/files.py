"""Files and folders: written whole or not at all, under another name, then renamed; and read with care."""

import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adar_runtime.errors import BundleError, UsageError, short
from adar_runtime.temporary_files import NAME, OCCUPIED, set_aside, temporary_file, temporary_folder

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for a pipe's other end
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EPERM)  # of a kernel or file system that has none


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk has against it is the user's to mend: an OSError becomes one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one move: whoever reads `path` sees the old content or all of the new."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path.parent) as (temporary, descriptor):
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
            temporary.replace(path)


def read_bundle_file(path: Path, most: int) -> bytes:
    """The content of a file that is a bundle's own: a link leads to somebody else's, and a pipe is none."""
    name = short(path.name)
    if path.is_symlink():
        raise BundleError(f"{name} is a link, and a bundle holds files: copy what it leads to")
    with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise BundleError(f"{name} is a pipe or a device, and a bundle holds files: remove it")
        if facts.st_nlink > 1:
            raise BundleError(f"{name} is a hard link to a file elsewhere: copy the bundle")
        if facts.st_size > most:
            raise BundleError(f"{name} has {facts.st_size:,} bytes, and {most:,} are allowed")
        return file.read(facts.st_size)


def find_by_hash(files: Iterable[Path], sha256: str | None) -> Path | None:
    """The first of the files that has these bytes."""
    return next((file for file in files if hashlib.sha256(file.read_bytes()).hexdigest() == sha256), None)


def check_writable(path: Path) -> None:
    """Refuse now what `write_file` would refuse when the work is done. Nothing is left behind."""
    made: list[Path] = []
    with writing(path):
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name a file")
        try:
            for folder in reversed(path.absolute().parents):
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
            with temporary_file(path.parent):
                path.exists()  # a name that is too long is found here
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
        path.parent.mkdir(parents=True, exist_ok=True)
    with changed_folder(path) as temporary:
        yield temporary


@contextmanager
def changed_folder(path: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `path`, whatever that holds, when the block ends well."""
    with writing(path), temporary_folder(path.parent) as temporary:
        yield temporary
        _sync(temporary)
        _swap(temporary, path)


def _sync(folder: Path) -> None:
    """Have the disk hold every file before the folder gets its name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _swap(new: Path, path: Path) -> None:
    """Put `new` in the place of `path`; what was there is at the place of `new` then, or gone."""
    while True:
        try:
            new.rename(path)  # nothing is there, or an empty folder
            return
        except OSError as error:
            if error.errno not in OCCUPIED:
                raise
        try:
            if not _exchange(new, path):
                _two_renames(new, path)
            return
        except OSError as error:  # another process has just taken it away, or put another in its place
            if error.errno not in (errno.ENOENT, *OCCUPIED):
                raise


def _exchange(new: Path, path: Path) -> bool:
    """Swap two folders in one move, so that at no moment there is none; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(path), RENAME_EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in NO_EXCHANGE:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))


def _two_renames(new: Path, path: Path) -> None:
    """The old folder is deleted only when the new one is there."""
    with set_aside(path):
        new.rename(path)


def check_replaceable(path: Path, *markers: str) -> None:
    """Refuse to replace what does not look like an older one of ours: it holds none of the markers."""
    with writing(path):
        taken = _taken(path, markers)
        while taken and taken != (taken := _taken(path, markers)):
            pass  # another process replaced it during the look
    if taken:
        raise UsageError(
            f"{path} is there already and holds no {markers[0]}: choose another --out, or move it away"
        )


def _taken(path: Path, markers: tuple[str, ...]) -> int | None:
    """Which file or folder is at this place, if it is neither ours nor empty."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = path.stat()
        if not path.is_dir():
            return found.st_ino
        names = {each.name for each in path.iterdir()}
        if not all(map(NAME.fullmatch, names)) and names.isdisjoint(markers):
            return found.st_ino
    return None
