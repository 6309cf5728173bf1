"""Temporary files and folders, and the removal of those that a killed process left behind.

A process holds a lock on each temporary file that it writes. The operating system releases the lock when the
process ends, however it ends. A free lock therefore means that the owner is gone, and the next process that
writes in the folder removes the file. Nothing depends on the clock or on process ids.
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

OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)  # errors of a rename onto a non-empty folder
NAME = re.compile(r"\.adar-[0-9a-f]{16}")
ASIDE = re.compile(r"\.adar-aside-[0-9a-f]{16}")
"""Folders that hold an old folder while it is being replaced. This may be the only copy."""


@contextmanager
def temporary_file(folder: Path) -> Iterator[tuple[Path, int]]:
    """Create a file in this folder; yield its path and descriptor. Deleted unless the block renames it."""
    clear(folder)
    path, descriptor = _claim(folder, ".adar-", lambda path: path.touch(exist_ok=False), os.O_RDWR)
    try:
        yield path, descriptor
    finally:
        _surely_remove(path)
        os.close(descriptor)


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a folder in this folder. Whatever is at its path when the block ends is deleted."""
    clear(folder)
    path, descriptor = _claim(folder, ".adar-", Path.mkdir, os.O_RDONLY)
    try:
        yield path
    finally:
        _surely_remove(path)
        os.close(descriptor)


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on a folder, among processes and threads.

    Raises:
        BlockingIOError: Another process or thread holds the lock, and `wait` is False.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


@contextmanager
def set_aside(path: Path) -> Iterator[None]:
    """Move a folder away so that another can take its path. Move it back if none did.

    If the process is killed in between, the next process that writes in the parent folder moves it back.
    """
    aside, descriptor = _claim(path.parent, ".adar-aside-", Path.mkdir, os.O_RDONLY)
    try:
        path.rename(aside / path.name)
        yield
    finally:
        try:
            _restore(aside)
        finally:
            os.close(descriptor)


def _restore(aside: Path) -> None:
    """Move folders back whose path is free, and delete the others."""
    for old in aside.iterdir():
        if not (aside.parent / old.name).exists():
            try:
                old.rename(aside.parent / old.name)
            except OSError as error:
                if error.errno not in OCCUPIED:  # another process has just taken the path
                    raise
    _remove(aside)


def clear(folder: Path) -> None:
    """Remove temporary files in this folder whose process has ended."""
    for path in folder.iterdir():
        aside = ASIDE.fullmatch(path.name)
        if not aside and not NAME.fullmatch(path.name):
            continue
        with suppress(OSError):  # the owner may delete it first
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # do not wait on a pipe
            try:
                if _is_ours(descriptor) and _lock(descriptor, wait=False):
                    _restore(path) if aside else _remove(path)
            finally:
                os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    """Whether this is a file or folder. This module creates nothing else."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _claim(folder: Path, prefix: str, make: Callable[[Path], None], flags: int) -> tuple[Path, int]:
    """Create and lock a new path. Try again if another process removes it before it is locked."""
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
        except BaseException:  # Ctrl-C between creating and returning
            _remove(path)
            raise


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Try to lock; return whether it succeeded. Always False on file systems without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # another process holds the lock, or the file system has no locks
        return False
    return True


def _surely_remove(path: Path) -> None:
    """Remove a path, even if Ctrl-C interrupts the removal."""
    try:
        _remove(path)
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        with suppress(OSError):  # the old folder that was replaced may be write-protected
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
