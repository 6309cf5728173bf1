"""Where things are written until they are whole, and what becomes of those that nobody finished.

Whoever writes holds a lock on what it writes to. The system takes the lock away when the process ends,
however it ends, so a lock that can be had says that its owner is gone: the next one to write in that folder
clears what was left there. Nothing depends on a clock, or on the numbers of processes.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)  # what it is called where a folder is not to be replaced
NAME = re.compile(r"\.adar-[0-9a-f]{16}")
ASIDE = re.compile(r"\.adar-aside-[0-9a-f]{16}")
"""Folders of something whole, under its own name, that is to be replaced: perhaps the only copy."""


@contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[Path, int]]:
    """A new file in this folder, and its descriptor; it vanishes unless it is renamed within the block."""
    clear(folder)
    path, descriptor = _claim(folder, ".adar-", lambda path: path.touch(exist_ok=False), os.O_RDWR)
    try:
        yield path, descriptor
    finally:
        _surely_remove(path)
        os.close(descriptor)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A new folder in this one; whatever is at its place when the block ends vanishes."""
    clear(folder)
    path, descriptor = _claim(folder, ".adar-", Path.mkdir, os.O_RDONLY)
    try:
        yield path
    finally:
        _surely_remove(path)
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process, or thread, does this with the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def set_aside(path: Path) -> Iterator[None]:
    """Take a folder out of the way of another; where none is in its place in the end, it comes back.

    If the process is killed in between, whoever next writes beside it brings it back.
    """
    aside, descriptor = _claim(path.parent, ".adar-aside-", Path.mkdir, os.O_RDONLY)
    try:
        path.rename(aside / path.name)
        yield
    finally:
        try:
            _settle(aside)
        finally:
            os.close(descriptor)


def _settle(aside: Path) -> None:
    """Bring back what lacks a successor, and remove the rest."""
    for old in aside.iterdir():
        if not (aside.parent / old.name).exists():
            try:
                old.rename(aside.parent / old.name)
            except OSError as error:
                if error.errno not in OCCUPIED:  # otherwise somebody else has put a successor there just now
                    raise
    _remove(aside)


def clear(folder: Path) -> None:
    """Remove what processes that are gone have left in this folder."""
    for path in folder.iterdir():
        aside = ASIDE.fullmatch(path.name)
        if not aside and not NAME.fullmatch(path.name):
            continue
        with suppress(OSError):  # its owner may be faster
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait
            try:
                if _is_ours(descriptor) and _lock(descriptor, wait=False):
                    _settle(path) if aside else _remove(path)
            finally:
                os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    """Only files and folders are made here: anything else of such a name is somebody's joke."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _claim(folder: Path, prefix: str, make: Callable[[Path], None], flags: int) -> tuple[Path, int]:
    """A new path that this process has locked; another one, where it was cleared before that."""
    while True:
        path = folder / f"{prefix}{secrets.token_hex(8)}"
        try:
            make(path)
            with suppress(FileNotFoundError):
                descriptor = os.open(path, flags)
                _lock(descriptor, wait=True)
                if path.exists():
                    return path, descriptor
                os.close(descriptor)
        except BaseException:  # Ctrl-C, when it was made and nobody knew of it yet
            _remove(path)
            raise


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Whether the lock could be had; never where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # held by another, or a file system without locks
        return False
    return True


def _surely_remove(path: Path) -> None:
    """Even where Ctrl-C arrives in the middle of it."""
    try:
        _remove(path)
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
