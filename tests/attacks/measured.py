"""Run `adar-deploy …` in its own process, and record time, memory and forbidden system calls.

The time is processor time, which does not depend on the load of the machine.

    python measured.py report.json PRELOAD run g.npz

If PRELOAD is "torch", PyTorch is imported first, so that its import does not count.
"""

import json
import re
import sys
import time
from pathlib import Path

FORBIDDEN = {
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
    "os.rename",
}
WRITING = re.compile(r"[wax+]")


def main() -> None:
    report, preload, *words = sys.argv[1:]
    if preload == "torch":
        import onnx  # noqa: F401
        import torch_geometric.data  # noqa: F401
    import adar_runtime  # noqa: F401
    from adar_deploy.cli import main as command

    violations: list[str] = []

    def record(event: str, arguments: tuple) -> None:
        opened = event == "open" and isinstance(arguments[1], str) and WRITING.search(arguments[1])
        if event in FORBIDDEN or (opened and not str(arguments[0]).startswith("/dev/")):
            violations.append(f"{event} {arguments[:2]}")

    sys.addaudithook(record)
    sys.argv = ["adar-deploy", *words]
    started, code = time.process_time(), 0
    try:
        command()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    facts = {
        "seconds": time.process_time() - started,
        "megabytes": peak_megabytes(),
        "violations": list(violations),
    }
    Path(report).write_text(json.dumps(facts))
    sys.exit(code)


def peak_megabytes() -> float:
    """Peak memory of this process. `getrusage` would include the parent's."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else 0.0


if __name__ == "__main__":
    main()
