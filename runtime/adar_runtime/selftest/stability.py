"""Check a backend over several runs: repeated shapes, threads, memory; for TensorRT, captures."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from adar_runtime.backends import TENSORRT, Capturing
from adar_runtime.backends.tensorrt.cuda import used_gpu_memory
from adar_runtime.backends.tensorrt.recurrence import TensorRtRecurrence
from adar_runtime.bundle.bundle import Bundle
from adar_runtime.graph import Floats, Graph
from adar_runtime.loop.stopping import Final
from adar_runtime.selftest.findings import Findings
from adar_runtime.selftest.graphs import HUB, SMALL

EULER = "euler"  # one cell call per step, whatever solver the bundle prefers
STEPS = 48  # three blocks of the GPU's loop
GROWTH = 2**22  # bytes that a GPU's memory may grow by over many runs


def check_stability(
    name: str, bundle: Bundle, graphs: Mapping[str, Graph], runs: int, findings: Findings
) -> None:
    """Run the checks of one backend. `runs` is the number of runs without growth."""
    small, hub = graphs[SMALL], graphs[HUB]
    on_gpu = _is_on_gpu(bundle, small)
    with findings.failing(f"{name}, first and second run"):
        _first_and_second(name, bundle, hub, findings)
    with findings.failing(f"{name}, shapes A, B, A"):
        _shapes(name, bundle, small, hub, findings)
    with findings.failing(f"{name}, two threads"):
        _threads(name, bundle, small, hub, findings)
    if bundle.backend.name == TENSORRT:
        with findings.failing(f"{name}, captured"):
            _captures(name, bundle, hub, findings)
    if on_gpu:
        with findings.failing(f"{name}, memory"):
            _growth(name, bundle, small, runs, findings)


def _is_on_gpu(bundle: Bundle, graph: Graph) -> bool:
    return isinstance(bundle.loop(graph, 1).recurrence, Capturing)


def _scores(bundle: Bundle, graph: Graph) -> Floats:
    return bundle.run(graph, STEPS, Final(), EULER).scores


def _first_and_second(name: str, bundle: Bundle, graph: Graph, findings: Findings) -> None:
    seconds, results = [], []
    for _ in range(2):
        started = time.perf_counter()
        results.append(_scores(bundle, graph))
        seconds.append(time.perf_counter() - started)
    detail = f"{seconds[0]:.3f} s, then {seconds[1]:.3f} s, equal bit by bit"
    findings.check(
        f"{name}, first and second run",
        np.array_equal(results[0], results[1]),
        detail,
        first=seconds[0],
        second=seconds[1],
    )


def _shapes(name: str, bundle: Bundle, small: Graph, hub: Graph, findings: Findings) -> None:
    first, _, again = (_scores(bundle, graph) for graph in (small, hub, small))
    findings.check(f"{name}, shapes A, B, A", np.array_equal(first, again), "both results of A are equal")


def _threads(name: str, bundle: Bundle, small: Graph, hub: Graph, findings: Findings) -> None:
    alone = [_scores(bundle, graph) for graph in (small, hub)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda graph: _scores(bundle, graph), (small, hub)))
    same = all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
    findings.check(f"{name}, two threads", same, "the same results as one after the other")


def _captures(name: str, bundle: Bundle, graph: Graph, findings: Findings) -> None:
    """Whether steps were captured, and whether queued steps give the same bits."""
    results, scratch, device = {}, 0, 0
    for captured in (True, False):
        loop = bundle.loop(graph, STEPS, Final(), EULER)
        recurrence = loop.recurrence
        if not isinstance(recurrence, TensorRtRecurrence):
            findings.check(f"{name}, captured", passed=False, detail=f"the graph ran on {recurrence.name}")
            return
        recurrence.use_captured_steps(captured)
        for _ in loop:
            pass
        results[captured] = loop.result()
        scratch, device = recurrence.device_bytes, recurrence.device
        recurrence.use_captured_steps(True)
    capture = results[True].capture
    findings.check(f"{name}, captured", bool(capture and capture.captured), str(capture))
    equal = np.array_equal(results[True].scores, results[False].scores)
    equal = equal and results[True].alignment == results[False].alignment
    findings.check(f"{name}, captured and queued runs", equal, "equal bit by bit")
    used = used_gpu_memory(device)
    detail = f"{scratch / 1e6:.1f} MB for this graph"
    detail += "" if used is None else f", {used / 1e6:.0f} MB in use on the GPU"
    findings.check(f"{name}, device memory", used is not None, detail, session_bytes=scratch, used_bytes=used)


def _growth(name: str, bundle: Bundle, graph: Graph, runs: int, findings: Findings) -> None:
    for _ in range(5):
        _scores(bundle, graph)
    before = used_gpu_memory(0)
    for _ in range(runs):
        bundle.run(graph, 17, Final(), EULER)
    after = used_gpu_memory(0)
    if before is None or after is None:
        findings.skip(f"{name}, {runs} runs", "the GPU's memory cannot be read without cuda-python")
        return
    growth = after - before
    findings.check(
        f"{name}, {runs} runs", growth < GROWTH, f"memory grew by {growth / 1e6:.1f} MB", growth_bytes=growth
    )
