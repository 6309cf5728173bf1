"""`adar-deploy …` in a process of its own that watches itself: time, memory, and what it should never do.

The time is that of the processor, which does not depend on what else a machine is doing.

    python measured.py report.json PRELOAD run g.npz

What it takes to import PyTorch is not the attacker's doing; where PRELOAD is "torch", it is not counted.
"""

import json
import re
import sys
import time
from pathlib import Path

NEVER = {
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
    report, preload, *arguments = sys.argv[1:]
    if preload == "torch":
        import onnx  # noqa: F401
        import torch_geometric.data  # noqa: F401
    import adar_runtime  # noqa: F401
    from adar_deploy.cli import main as command

    seen: list[str] = []

    def watch(event: str, given: tuple) -> None:
        opened = event == "open" and isinstance(given[1], str) and WRITING.search(given[1])
        if event in NEVER or (opened and not str(given[0]).startswith("/dev/")):
            seen.append(f"{event} {given[:2]}")

    sys.addaudithook(watch)
    sys.argv = ["adar-deploy", *arguments]
    started, code = time.process_time(), 0
    try:
        command()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    facts = {"seconds": time.process_time() - started, "megabytes": peak_megabytes(), "seen": list(seen)}
    Path(report).write_text(json.dumps(facts))
    sys.exit(code)


def peak_megabytes() -> float:
    """The most that this process has held. What `getrusage` says would include its parent's."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak[1]) / 1024 if peak else 0.0


if __name__ == "__main__":
    main()
