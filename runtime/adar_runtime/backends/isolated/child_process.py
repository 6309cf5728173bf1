"""A child process of this Python that is talked to over its standard input and output."""

import subprocess
import sys

from adar_runtime.backends.isolated.messages import Channel

Process = subprocess.Popen[bytes]


def child_command(module: str) -> list[str]:
    """The command that starts the function `main` of a module and imports from the same folders."""
    code = f"import sys; sys.path[:] = sys.argv[1:]; from {module} import main; main()"
    return [sys.executable, "-P", "-c", code, *(folder for folder in sys.path if folder)]


def start_child(module: str) -> tuple[Process, Channel]:
    """Start the function `main` of a module in a new process."""
    process = subprocess.Popen(  # noqa: S603
        child_command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, Channel(process.stdout.fileno(), process.stdin.fileno())


def end_child(process: Process) -> None:
    """End the child and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
