"""Atomic writing of files and folders, and safe reading of files of a bundle.

New content is written under a temporary name (see `temporary_files`) and then renamed.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from adar_runtime.errors import BundleError, UsageError, short
from adar_runtime.json_files import parse_json
from adar_runtime.temporary_files import NAME, OCCUPIED, set_aside, temporary_file, temporary_folder

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # constants of Linux
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # and do not wait on a pipe
MAX_MARKER_BYTES = 16 * 2**20
HOLES_FROM_BYTES = 256 * 2**20  # smaller files are read whatever is in them
MOST_BYTES_FOR_ONE = 100  # bytes of files for each byte of them on the disk
BLOCK_BYTES = 512  # of the system's count of blocks
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EPERM)  # the kernel or file system has no exchange


class Marker(NamedTuple):
    """A file that shows that this program wrote a folder.

    Other programs write files of the same name (`manifest.json`, `config.json`), so a JSON file needs a key,
    or a key with a value.
    """

    name: str
    key: str | None = None  # of the JSON object in the file; None: the name is enough
    value: str | None = None  # of the key; None: any value
    own: str | None = None  # pattern of the paths in the folder that this program writes; None: not checked

    def marks(self, folder: Path) -> bool:
        """Whether the folder has this file. A file that cannot be read does not count."""
        path = folder / self.name
        if self.key is None:
            return path.exists()
        try:
            if not path.is_file() or path.stat().st_size > MAX_MARKER_BYTES:
                return False
            content = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if not isinstance(content, dict) or self.key not in content:
            return False
        return self.value is None or content[self.key] == self.value


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a UsageError with one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def write_file(path: Path, content: bytes, check: Callable[[], object] = lambda: None) -> None:
    """Write a file atomically: readers see the old content or the whole new content.

    `check` may refuse the file at `path`, which somebody may have written meanwhile.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path.parent) as (temporary, descriptor):
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
            check()
            temporary.replace(path)


def read_bundle_file(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of a bundle. Links, pipes and devices are refused."""
    name = short(path.name)
    if path.is_symlink():
        raise BundleError(
            f"{name} is a link, which a bundle may not contain: replace it with a copy of the file"
        )
    if path.is_dir():
        raise BundleError(f"{name} is a folder, not a file: remove it")
    with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise BundleError(f"{name} is not a regular file (a pipe or a device): remove it")
        if facts.st_nlink > 1:
            raise BundleError(f"{name} is a hard link, which a bundle may not contain: copy the bundle")
        if facts.st_size > max_bytes:
            raise BundleError(f"{name} has {facts.st_size:,} bytes, but at most {max_bytes:,} are allowed")
        try:
            check_holes([path])
        except ValueError as error:
            raise BundleError(f"{name}: {error}: copy the bundle again") from error
        return file.read(facts.st_size)


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a file from outside. Links, pipes and devices are refused: they may never end.

    Raises:
        OSError: The file is missing or a link, or cannot be read.
        ValueError: It is not a regular file.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | NO_LINK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{short(path.name)} is not a regular file")
        yield file


def check_holes(paths: Iterable[Path]) -> None:
    """Refuse large files that are almost empty: 4 kB on the disk can have terabytes of zeros to read.

    A small count of blocks is no proof: some file systems count none, count late, or count compressed bytes.
    Only holes are.

    Raises:
        OSError: A file is missing.
        ValueError: Less than a hundredth of the bytes of these files is not in holes.
    """
    files = [(path, path.stat()) for path in paths]
    size = sum(facts.st_size for _, facts in files)
    blocks = sum(getattr(facts, "st_blocks", 0) for _, facts in files)
    if size <= max(HOLES_FROM_BYTES, MOST_BYTES_FOR_ONE * BLOCK_BYTES * blocks):
        return
    stored = sum(_bytes_outside_holes(*each) for each in files)
    if size > MOST_BYTES_FOR_ONE * stored:
        raise ValueError(f"there are {size:,} bytes to read, of which the disk has only {stored:,}")


def _bytes_outside_holes(path: Path, facts: os.stat_result) -> int:
    """The bytes of a file that are not in holes: all of them where the system cannot tell."""
    if not (stat.S_ISREG(facts.st_mode) and hasattr(os, "SEEK_DATA")):
        return facts.st_size
    found = end = 0
    try:
        with path.open("rb", buffering=0) as file:
            while end < facts.st_size:
                start = file.seek(end, os.SEEK_DATA)
                end = file.seek(start, os.SEEK_HOLE)
                found += end - start
    except OSError as error:  # ENXIO: there is nothing but a hole from here on
        return found if error.errno == errno.ENXIO else facts.st_size
    return found


def check_writable(path: Path) -> None:
    """Raise UsageError if `write_file` would fail for this path. Leaves no files behind."""
    created: list[Path] = []
    with writing(path):
        if path.is_dir():
            raise UsageError(f"{path} is a folder: name a file")
        try:
            for folder in reversed(path.absolute().parents):
                if not folder.exists():
                    folder.mkdir()
                    created.append(folder)
            with temporary_file(path.parent):
                path.exists()  # raises OSError if the name is too long
        finally:
            for folder in reversed(created):
                folder.rmdir()


@contextmanager
def new_folder(path: Path, marker: Marker, check: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """Create a temporary folder that becomes `path` when the block succeeds and is deleted if it fails.

    An older folder at `path` is replaced only if it has the marker, and nothing that this program did not
    write. A mistyped path therefore never deletes files of the user. `check` may refuse the folder at `path`.
    Both are checked at the start and again at the end: somebody may have written the folder meanwhile.
    """
    check()
    check_replaceable(path, marker)
    with writing(path):
        path = path.resolve()  # keep a link: replace the folder that it points to
        path.parent.mkdir(parents=True, exist_ok=True)
    with changed_folder(path) as temporary:
        yield temporary
        check()
        check_replaceable(path, marker)


@contextmanager
def changed_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder that replaces `path`, whatever it contains, when the block succeeds."""
    with writing(path), temporary_folder(path.parent) as temporary:
        yield temporary
        _sync(temporary)
        _swap(temporary, path)


def _sync(folder: Path) -> None:
    """Write every file to disk before the folder gets its final name."""
    for path in folder.rglob("*"):
        if path.is_file():
            with suppress(PermissionError), path.open("rb") as file:  # a link to a file of somebody else
                os.fsync(file.fileno())


def _swap(new: Path, path: Path) -> None:
    """Move `new` to `path`. An older folder at `path` ends up at `new` or is deleted."""
    while True:
        try:
            new.rename(path)  # succeeds if `path` is free or an empty folder
            return
        except OSError as error:
            if error.errno not in OCCUPIED:
                raise
        try:
            if not _exchange(new, path):
                _two_renames(new, path)
            return
        except OSError as error:  # another process has just moved or replaced `path`: try again
            if error.errno not in (errno.ENOENT, *OCCUPIED):
                raise


def _exchange(new: Path, path: Path) -> bool:
    """Swap two folders atomically. Returns False if the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(path), RENAME_EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in NO_EXCHANGE:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))


def _two_renames(new: Path, path: Path) -> None:
    """Replace a folder without an atomic swap. The old folder is deleted last."""
    with set_aside(path):
        new.rename(path)


def check_replaceable(path: Path, *markers: Marker) -> None:
    """Raise UsageError if `path` exists, is not empty and has none of the markers, or has files of others."""
    with writing(path):
        foreign = _foreign_inode(path, markers)
        while foreign and foreign != (foreign := _foreign_inode(path, markers)):
            pass  # another process replaced the folder during the check
    if foreign:
        raise UsageError(
            f"{path} already exists and contains no {markers[0].name} of adar-deploy: choose another --out, "
            "or move it away"
        )
    for marker in markers:
        if marker.own is not None and (other := _other_path(path, marker.own)) is not None:
            raise UsageError(
                f"{path} also contains {short(other)}, which would be deleted: move it out of the folder, or "
                "choose another --out"
            )


def _foreign_inode(path: Path, markers: tuple[Marker, ...]) -> int | None:
    """Inode of a file or non-empty folder at `path` that this program did not write; None otherwise."""
    with suppress(FileNotFoundError, NotADirectoryError):
        found = path.stat()
        if not path.is_dir():
            return found.st_ino
        names = {each.name for each in path.iterdir()}
        if not all(map(NAME.fullmatch, names)) and not any(marker.marks(path) for marker in markers):
            return found.st_ino
    return None


def _other_path(path: Path, own: str) -> str | None:
    """The first path in a folder, or in its folders, that this program does not write; None without one."""
    with writing(path), suppress(FileNotFoundError, NotADirectoryError):
        found = sorted(each.relative_to(path) for each in path.rglob("*"))
        others = (each for each in found if not NAME.fullmatch(each.parts[0]))
        return next((str(each) for each in others if not re.fullmatch(own, each.as_posix())), None)
    return None
