"""Folders of training runs: which ones are free, which one is the newest, and how one is replaced."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from adar_runtime.bundle import run_files
from adar_runtime.errors import RunFolderError, UsageError
from adar_runtime.files import Marker, changed_folder, check_replaceable, check_writable, writing
from adar_runtime.temporary_files import NAME, locked

MARKERS = (
    Marker(run_files.CONFIG, "kind"),
    Marker(run_files.CHECKPOINT),
    Marker(f"{run_files.TENSORBOARD}/{run_files.STARTED}"),
    Marker(run_files.TENSORBOARD),
)
"""A folder with one of these is a run, and may be replaced by another run. Of the last one, other programs
have a folder too: it is not enough if there are files that a run would replace."""


def check_free(path: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    """Refuse a folder that cannot be written, or that contains something other than a run to continue.

    `overwrite` allows to replace a run. `resume` allows to continue an unfinished one.
    """
    check_replaceable(path, *MARKERS)
    theirs = next((name for name in run_files.NAMES if (path / name).exists()), None)
    if theirs is not None and not any(marker.marks(path) for marker in MARKERS[:-1]):
        raise UsageError(
            f"{path / theirs} is not of a run of adar-deploy: choose another --out, or move it away"
        )
    if not overwrite:
        unfinished = (path / run_files.CHECKPOINT).is_file()
        if unfinished and not resume:
            raise UsageError(
                f"{path} contains an unfinished run: continue it with --resume, choose another --out, or "
                "replace it with --overwrite"
            )
        if not unfinished and any((path / name).is_file() for name in (run_files.CONFIG, run_files.WEIGHTS)):
            raise UsageError(
                f"{path} contains a finished run: choose another --out, or replace it with --overwrite"
            )
    refuse_folders(path)
    _refuse_links(path)
    check_writable(path / run_files.CONFIG)


def refuse_folders(path: Path) -> None:
    """Refuse folders with the names of files, before a file of the run that is replaced is removed."""
    theirs = next((path / name for name in run_files.NAMES if (path / name).is_dir()), None)
    if theirs is not None:
        raise UsageError(f"{theirs} is a folder: choose another --out, or move it away")


def _refuse_links(path: Path) -> None:
    """Refuse links in a stranger's run, through which a training would read or write other files."""
    logs = path / run_files.TENSORBOARD
    for link in (path / run_files.CHECKPOINT, logs, logs / run_files.STARTED):
        if link.is_symlink():
            raise UsageError(
                f"{link} is a link, and a training uses no links: remove it, or choose another --out"
            )


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep the folder of a run to one training, which makes it. If it stays empty, it is removed at the end.

    Two trainings that write to one folder would replace each other's weights and checkpoints.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with ExitStack() as stack:
        with writing(path):
            if missing:
                path.mkdir(parents=True, exist_ok=True)
            if path.is_dir():  # `check_free` refuses anything else
                try:
                    stack.enter_context(locked(path, wait=False))
                except BlockingIOError as error:
                    raise UsageError(
                        f"another training writes to {path} now: wait for its end, or choose another --out"
                    ) from error
        try:
            yield
        finally:
            with suppress(OSError):  # not empty
                for folder in missing:
                    folder.rmdir()


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """The folder to write a run to: a new one, which takes the place of `path` at the end.

    It gets links to all other files of an old one, such as the logs of TensorBoard. An old folder with other
    folders in it is written in place.
    """
    old = path.resolve()  # keep a link: replace the folder that it points to
    if not old.exists():
        old.parent.mkdir(parents=True, exist_ok=True)
    elif not _can_be_exchanged(old):
        yield path
        return
    with changed_folder(old) as new:
        if old.exists():
            shutil.copymode(old, new)
        yield new
        for other in old.iterdir() if old.exists() else ():
            if other.name in run_files.NAMES or NAME.fullmatch(other.name):
                continue
            if other.is_dir() and not other.is_symlink():  # the logs
                shutil.copytree(other, new / other.name, symlinks=True, copy_function=_link)
            else:
                _link(str(other), str(new / other.name))


def _can_be_exchanged(folder: Path) -> bool:
    """Whether a folder has nothing but files and the logs of TensorBoard, which can all be linked.

    The old folder is removed with all that is in it. Another folder in it may be mounted, or the working
    folder of a process.
    """
    if folder.is_mount() or folder.samefile(".") or not all(map(_is_open, (folder, folder.parent))):
        return False
    entries, logs = [*folder.iterdir()], folder / run_files.TENSORBOARD
    if logs.is_dir() and not (logs.is_symlink() or logs.is_mount() or logs.samefile(".")):
        if not _is_open(logs):
            return False
        entries.remove(logs)
        entries += logs.iterdir()
    return all(entry.is_symlink() or (entry.is_file() and os.access(entry, os.R_OK)) for entry in entries)


def _is_open(folder: Path) -> bool:
    """Whether this process can list the files of a folder, and remove them."""
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _link(source: str, target: str) -> None:
    """A second name of a file, or a copy on file systems without such names."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def newest_run(runs: Path) -> Path:
    """The folder of the run that was written last."""
    configs = runs.glob(f"*/{run_files.CONFIG}")
    found = sorted((each for each in configs if not NAME.fullmatch(each.parent.name)), key=_written_at)
    if not found:
        raise RunFolderError(f"no run in {runs}: make one with adar-deploy train, or give its folder")
    return found[-1].parent


def free_name(runs: Path, name: str) -> Path:
    """runs/name or, if that folder exists, runs/name-2, -3, …: a run never replaces another by default."""
    number = 1
    while (path := runs / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


def make_newest(path: Path) -> None:
    """Make this run's time of writing the latest, even if the clock was set back since another run."""
    runs = path.resolve().parent  # of "." as well
    latest = max(_written_at(file) for file in runs.glob(f"*/{run_files.CONFIG}"))
    if (path / run_files.CONFIG).stat().st_mtime_ns < latest:
        os.utime(path / run_files.CONFIG, ns=(latest + 1, latest + 1))


def _written_at(file: Path) -> int:
    """Time of writing in nanoseconds; 0 if another training has just removed the file to rewrite it."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
