"""The child process that measures rows: it reads tasks as JSON lines and answers with JSON lines.

{"share": …, "text": …} while it works, at the end of a task {"row": …} or {"error": …}.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.paper.table import Key
from benchmarks.paper.tasks import Work


def main() -> None:
    """Measure rows until the parent closes the input."""
    for line in sys.stdin:
        started = time.perf_counter()
        try:
            found = measure(json.loads(line))
        except Exception as error:  # every failure becomes a row that says so
            say(error=f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        from adar_runtime.benchmarking.race import peak_bytes

        seconds = round(time.perf_counter() - started, 1)
        say(row=found | {"wall_seconds": seconds, "peak_mb": peak_bytes() >> 20})


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """The values of the row."""
    import torch

    from benchmarks.paper.parts import PARTS

    warnings.simplefilter("ignore")  # of PyTorch, about features that are in beta
    torch.set_num_threads(int(task["options"].get("threads", 1)))
    key = Key(**task["key"])
    work = Work(key, task["options"], Path(task["data"]), task["quick"], progress)
    return PARTS[key.part].measure(work)


def progress(share: float, text: str) -> None:
    """Report progress to the parent."""
    say(share=min(round(share, 4), 0.99), text=text)  # 1 means: the row is written


def say(**message: Any) -> None:
    """Write one line to the parent."""
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
