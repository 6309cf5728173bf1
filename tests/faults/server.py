"""Fault injection: a server process that forks one process per command and disturbs it.

The server imports PyTorch and the other packages before the first fork, so a command starts at once. If the
system allows it, the server has its own mount namespace, where it can fill or lock a disk. Requests and
answers are lines of JSON.
"""

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
CAPABILITIES = 0x20080522  # of the kernel's interface: its version


def main() -> None:
    import onnx  # noqa: F401
    import torch_geometric.data  # noqa: F401

    import adar_train.job  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        answer = globals()[f"do_{request.pop('do')}"](**request)
        print(json.dumps(answer), flush=True)


def do_mount(folder: str, kilobytes: int) -> bool:
    """A disk of that size."""
    return _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder)


def do_lock(folder: str) -> bool:
    """Make that disk read-only."""
    return _mount("-o", "remount,ro", folder)


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def do_run(
    arguments: list[str],
    folder: str,
    after: float | None = None,
    write: int | None = None,
    number: int = signal.SIGKILL,
    powerless: bool = False,
    clock: float = 0.0,
) -> dict[str, Any]:
    """A command; the signal is sent after so many seconds, or just before its n-th change of a file.

    `powerless` takes away an administrator's right to ignore permissions; `clock` moves the clock by so many
    seconds each time that it is looked at.
    """
    errors, counted = Path(folder).with_suffix(".stderr"), Path(folder).with_suffix(".writes")
    counted.unlink(missing_ok=True)  # an older command's
    started = time.monotonic()
    child = os.fork()
    if not child:
        _be_the_command(arguments, folder, errors, counted, write, number, powerless, clock)
    if after is not None:
        while time.monotonic() - started < after and not os.waitid(
            os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.002)
        os.kill(child, number)
    _, status = os.waitpid(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "stderr": errors.read_text(),
        "seconds": time.monotonic() - started,
        "writes": int(counted.read_text() or 0)
        if counted.exists()
        else 0,  # it may be killed while it counts
    }


def _be_the_command(
    arguments: list[str],
    folder: str,
    errors: Path,
    counted: Path,
    write: int | None,
    number: int,
    powerless: bool,
    clock: float,
) -> None:
    code = 70
    try:
        for descriptor, place in ((0, os.devnull), (1, os.devnull), (2, str(errors))):
            os.dup2(os.open(place, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
        os.chdir(folder)
        if powerless:
            _drop_all_capabilities()
        if clock:
            _turn_back_the_clock(clock)
        seen = _count_writes(Path(folder).resolve(), write, number)
        from adar_deploy import console
        from adar_deploy.cli import main as command

        console.OFTEN = console.SELDOM = math.inf  # on stderr, what a busy machine takes long for is no error
        sys.argv = ["adar-deploy", *arguments]
        try:
            command()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        counted.write_text(str(len(seen)))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _count_writes(folder: Path, at: int | None, number: int) -> list[str]:
    """What is changed inside the folder, as it happens; the signal comes before change number `at`."""
    seen: list[str] = []

    def watch(event: str, given: tuple) -> None:
        if event not in WRITES or not isinstance(given[0], str | os.PathLike):
            return
        if event == "open" and not _for_writing(*given[1:]):
            return
        if not Path(given[0]).absolute().is_relative_to(folder):
            return
        seen.append(event)
        if at is not None and len(seen) == at:
            os.kill(os.getpid(), number)

    sys.addaudithook(watch)
    return seen


def _for_writing(mode: str | None, flags: int) -> bool:
    return bool(set("wax+") & set(mode) if mode else flags & (os.O_WRONLY | os.O_RDWR))


def _drop_all_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
    none = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def _turn_back_the_clock(seconds: float) -> None:
    now = [time.time()]

    def earlier() -> float:
        now[0] += seconds
        return now[0]

    time.time = earlier  # type: ignore[assignment]
    time.time_ns = lambda: int(earlier() * 1e9)  # type: ignore[assignment]


if __name__ == "__main__":
    main()
