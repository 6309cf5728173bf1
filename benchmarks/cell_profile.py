"""Time of each kind of operator in one step, compared with the best rate of this machine.

python -m benchmarks.cell_profile --case board --threads 2

ONNX Runtime profiles the exported cell; the table has the shortest time of each operator over many steps.
Matrix products are compared with the fastest matrix product measured on this machine. Other operators are
compared with the time to copy their inputs and outputs in memory.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort

from adar_export.builder import OnnxBuilder
from benchmarks.cell_speed import CASES, FUSED, OPSET, cell_and_feeds

PRODUCTS = {"Gemm", "FusedGemm", "MatMul"}
SQUARE = 2048  # side of the square matrices of the reference product
NARROW = (10_000, 98, 64)  # a second reference product, of a shape that the cell has
COPIED = 64 * 2**20  # bytes
LEAST_SHARE = 0.01  # operators with a smaller share of the time get no row


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--case", choices=CASES, default="board")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    rate = max(product_rate(*sides, options.threads) for sides in ((SQUARE, SQUARE, SQUARE), NARROW))
    width = copy_rate()
    operators = profile(options)
    total = sum(one["seconds"] for one in operators)
    print(f"python -m benchmarks.cell_profile --case {options.case} --threads {options.threads}")
    print(f"best matrix product {rate / 1e9:.0f} GFLOP/s, best memory copy {width / 1e9:.1f} GB/s\n")
    print("| operator | share of time | ms | GFLOP or GB | share of best rate |")
    print("|---|---|---|---|---|")
    for kind, seconds, amount, best in rows(operators, rate, width):
        if seconds < LEAST_SHARE * total:
            break
        print(
            f"| {kind} | {100 * seconds / total:.0f} % | {1e3 * seconds:.2f} | {amount / 1e9:.3f} "
            f"| {100 * amount / seconds / best:.0f} % |"
        )
    print(f"| all | | {1e3 * total:.2f} | | |")


def rows(operators: list[dict[str, Any]], rate: float, width: float) -> list[tuple[str, float, float, float]]:
    """Kind, seconds, work and best rate for that work, the slowest kind first."""
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in operators:
        kind = "products" if one["kind"] in PRODUCTS else one["kind"]
        kinds[kind][0] += one["seconds"]
        kinds[kind][1] += one["flops"] if one["kind"] in PRODUCTS else one["bytes"]
    ordered = sorted(kinds.items(), key=lambda item: -item[1][0])
    return [(kind, spent, done, rate if kind == "products" else width) for kind, (spent, done) in ordered]


def profile(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Kind, shortest seconds, flops and bytes of every operator of the cell."""
    content, feeds = cell_and_feeds(FUSED, *CASES[options.case]())
    with TemporaryDirectory() as folder:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options.threads
        settings.log_severity_level = 3
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
        for _ in range(options.repeats):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    seen: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            one = seen.setdefault(event["name"], operator(event["args"]))
            one["seconds"] = min(one["seconds"], event["dur"] / 1e6)
    return list(seen.values())


def operator(facts: dict[str, Any]) -> dict[str, Any]:
    """Work of an operator, from the shapes of its inputs and outputs."""
    inputs, outputs = (
        [next(iter(shape.values())) for shape in facts.get(f"{side}_type_shape", [])]
        for side in ("input", "output")
    )
    kind = facts["op_name"]
    flops = 0.0
    if kind in PRODUCTS:
        inner = np.prod(inputs[0]) / max(1, outputs[0][0])  # columns of the left factor, transposed or not
        flops = 2.0 * float(np.prod(outputs[0])) * float(inner)
    numbers = sum(float(np.prod(shape)) for shape in [*inputs, *outputs])
    return {"kind": kind, "seconds": float("inf"), "flops": flops, "bytes": 4 * numbers}


def product_rate(rows: int, inner: int, columns: int, threads: int) -> float:
    """Floating-point operations per second of one matrix product in ONNX Runtime."""
    graph = OnnxBuilder("product", OPSET)
    a, b = graph.input("a", [rows, inner]), graph.input("b", [inner, columns])
    graph.output("y", graph.op("Gemm", a, b), [rows, columns])
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    session = ort.InferenceSession(
        graph.build({}).SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    random = np.random.default_rng(0)
    feeds = {
        name: random.random(side, np.float32)
        for name, side in (("a", (rows, inner)), ("b", (inner, columns)))
    }
    return 2.0 * rows * inner * columns / least(lambda: session.run(None, feeds))


def copy_rate() -> float:
    """Bytes per second, read and written, of a copy by one thread."""
    source, target = np.ones(COPIED, np.uint8), np.empty(COPIED, np.uint8)
    return 2.0 * COPIED / least(lambda: np.copyto(target, source))


def least(work: Callable[[], object], repeats: int = 15) -> float:
    """Seconds of the fastest of several repeats."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
