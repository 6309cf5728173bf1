"""The server under load, against the same runtime in process; a long run; and a server that is killed.

    python -m benchmarks.serving load                 # server and runtime in turns
    python -m benchmarks.serving added                # what the server adds to one request, one client
    python -m benchmarks.serving soak --seconds 300   # memory, handles and threads over time
    python -m benchmarks.serving kill --seconds 60    # kill -9 under load, with a client that retries

All requests make the same number of cell calls. The clients are threads of this process and share the
processor with the server, so that processor time is the better measure.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime import Bundle, Graph, load
from adar_runtime.benchmarking.race import spread

HERE = Path(__file__).parents[1]
HEADER_LENGTH = "Inference-Header-Content-Length"
CONCURRENT = 2  # threads of the server, and of the runtime in process
DEGREE = 8


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)  # of each answer
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Question:
    """A graph, its request, and the right answer."""

    graph: Graph
    body: bytes
    headers: dict[str, str]
    prediction: bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("mode", choices=["load", "added", "soak", "kill"])
    parser.add_argument("--bundle", type=Path, default=Path("bundle"))
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn, or of the long run")
    parser.add_argument("--repeats", type=int, default=3, help="turns (load), starts of the server (added)")
    parser.add_argument("--workers", type=int, default=1, help="server processes of the long run")
    parser.add_argument("--against", type=Path, help="another checkout, whose server takes turns (added)")
    parser.add_argument("--pairs", type=int, default=200, help="of a request and a run in process (added)")
    parser.add_argument("--turn", type=int, default=10, help="requests in a row, then runs in a row (added)")
    options = parser.parse_args()
    bundle = load(options.bundle, "onnxruntime-cpu", 1)
    manifest = bundle.manifest
    print(f"d = {manifest.hidden}, {manifest.features} features, {options.steps} cell calls a request")
    {"load": measure_load, "added": measure_added, "soak": soak, "kill": kill}[options.mode](
        options.bundle, bundle, options
    )


def question(bundle: Bundle, nodes: int, steps: int, *, binary: bool = True) -> Question:
    """A random graph of this size as a request, with tensors as bytes or in JSON."""
    chance = np.random.default_rng(nodes)
    x = chance.normal(size=(nodes, bundle.manifest.features)).astype(np.float32)
    edge_index = chance.integers(0, nodes, (2, DEGREE * nodes))
    graph = Graph(x, edge_index)
    inputs: list[dict[str, Any]] = [
        {
            "name": name,
            "datatype": datatype,
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, datatype, array in (("x", "FP32", x), ("edge_index", "INT64", edge_index))
    ]
    parameters = {"max_steps": steps, "exit": "final", "solver": "euler"}
    wanted = [{"name": "prediction", "parameters": {"binary_data": binary}}]
    found = _run(bundle, graph, steps).astype(np.int64)
    if not binary:
        for one, numbers in zip(inputs, (x.ravel().tolist(), edge_index.ravel().tolist()), strict=True):
            one |= {"parameters": {}, "data": numbers}
        body = json.dumps({"inputs": inputs, "parameters": parameters, "outputs": wanted}).encode()
        return Question(graph, body, {}, json.dumps(found.tolist(), separators=(",", ":")).encode())
    header = json.dumps({"inputs": inputs, "parameters": parameters, "outputs": wanted}).encode()
    prediction = found.tobytes()
    headers = {HEADER_LENGTH: str(len(header))}
    return Question(graph, header + x.tobytes() + edge_index.tobytes(), headers, prediction)


def _run(bundle: Bundle, graph: Graph, steps: int) -> Any:
    """A run of the arrays of a graph, with the same checks as for a request."""
    checked = Graph(graph.features, graph.edge_index)
    return bundle.run(checked, steps, "final", "euler").predictions


@contextmanager
def server(
    path: Path, port: int = 0, workers: int = 1, checkout: Path = HERE
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server process and its port; it is the parent of several workers."""
    packages = [str(checkout / each) for each in ("", "train", "export", "runtime", "serve")]
    words = ["serve", f"model={path.absolute()}", "--backend", "onnxruntime-cpu", "--threads", "1"]
    words += ["--no-grpc", "--json", "--drain-seconds", "0"]
    options = ["--port", str(port), "--limit-concurrent", str(CONCURRENT), "--limit-queue", "128"]
    options += ["--workers", str(workers)]
    with subprocess.Popen(
        [sys.executable, "-m", "adar_deploy", *words, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(packages)},
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["http"]
            yield int(address.rpartition(":")[2]), process
        finally:
            process.terminate()


def client(port: int, questions: list[Question], until: Callable[[], bool], load: Load, retry: bool) -> None:
    """Ask one question after the other over one connection. `retry`: ask again after a failure."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked = itertools.cycle(random.sample(questions, len(questions)))
    one = next(asked)
    while not until():
        started = time.perf_counter()
        try:
            connection.request("POST", "/v2/models/model/infer", one.body, one.headers)
            response = connection.getresponse()
            content, status = response.read(), response.status
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            status, content = 0, repr(error).encode()
        with load.lock:
            if status == 200:
                load.seconds.append(time.perf_counter() - started)
                load.wrong += not content.endswith(one.prediction)
            elif not retry:
                load.errors.append(content[:200].decode(errors="replace"))
        if status == 200 or not retry:
            one = next(asked)
        else:
            time.sleep(0.05)
    connection.close()


def ask(port: int, questions: list[Question], clients: int, seconds: float, *, retry: bool = False) -> Load:
    """Ask with several clients at the same time, for some seconds."""
    load, end = Load(), time.monotonic() + seconds

    def is_over() -> bool:
        return time.monotonic() > end

    _in_threads(clients, lambda: client(port, questions, is_over, load, retry))
    return load


def in_process(bundle: Bundle, one: Question, threads: int, steps: int, seconds: float) -> list[float]:
    """Seconds of each run of the runtime, with this many threads."""
    found, end = list[float](), time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < end:
            started = time.perf_counter()
            _run(bundle, one.graph, steps)
            found.append(time.perf_counter() - started)

    _in_threads(threads, work)
    return found


def _in_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure_load(path: Path, bundle: Bundle, options: argparse.Namespace) -> None:
    """Server and runtime in turns, for each size and each number of clients."""
    print("requests/s ×: of the server / of the runtime; CPU ms and CPU ×: of one request")
    print("| nodes | clients | requests/s | p50 ms | p99 ms | requests/s × | CPU ms | CPU × |")
    print("|---|---|---|---|---|---|---|---|")
    with server(path) as (port, process):
        for nodes, clients in itertools.product(options.nodes, options.clients):
            one = question(bundle, nodes, options.steps)
            ask(port, [one], clients, options.seconds / 4)
            answers, rates, ratios, used, of_cpu = (list[float]() for _ in range(5))
            for _ in range(options.repeats):
                before, own = time.monotonic(), time.process_time()
                alone = in_process(bundle, one, min(clients, CONCURRENT), options.steps, options.seconds)
                rate = len(alone) / (time.monotonic() - before)
                cpu = (time.process_time() - own) / len(alone)
                before, spent = time.monotonic(), cpu_seconds(process.pid)
                found = ask(port, [one], clients, options.seconds)
                rates.append(len(found.seconds) / (time.monotonic() - before))
                assert not found.errors, found.errors[0]
                assert not found.wrong
                answers += found.seconds
                ratios.append(rates[-1] / rate)
                used.append((cpu_seconds(process.pid) - spent) / len(found.seconds) * 1e3)
                of_cpu.append(used[-1] / 1e3 / cpu)
            p50, p99 = np.quantile(answers, [0.5, 0.99]) * 1e3
            served = f"{np.median(rates):.1f} | {p50:.1f} | {p99:.1f} | {spread(ratios, 2)}"
            processor = f"{np.median(used):.1f} | {spread(of_cpu, 2)}"
            print(f"| {nodes:,} | {clients} | {served} | {processor} |", flush=True)


def measure_added(path: Path, bundle: Bundle, options: argparse.Namespace) -> None:
    """Requests and runs in process in short turns, so that both see the same load of the machine."""
    print("p50 ms of a request and of the run in process; added: of each pair; ×: run / request of each pair")
    print("| nodes | tensors | server | request | in process | added ms | × | CPU ms added | CPU × |")
    print("|---|---|---|---|---|---|---|---|---|")
    checkouts = {"this": HERE} | ({} if options.against is None else {"other": options.against.absolute()})
    for nodes, binary in itertools.product(options.nodes, (True, False)):
        one = question(bundle, nodes, options.steps, binary=binary)
        pairs: dict[str, list[tuple[float, ...]]] = {name: [] for name in checkouts}
        for _ in range(options.repeats):  # a process is faster or slower by its place in memory
            with ExitStack() as stack:
                servers = {
                    name: stack.enter_context(server(path, checkout=checkout))
                    for name, checkout in checkouts.items()
                }
                _add_pairs(pairs, servers, bundle, one, options)
        for name, found in pairs.items():
            served, used, run, own = np.array(found).T * 1e3
            p50 = f"{np.median(served):.2f} | {np.median(run):.2f}"
            wall = f"{spread([*(served - run)], 2)} | {spread([*(run / served)], 2)}"
            cpu = f"{spread([*(used - own)], 2)} | {np.median(own) / np.median(used):.2f}"
            tensors = "bytes" if binary else "JSON"
            print(f"| {nodes:,} | {tensors} | {name} | {p50} | {wall} | {cpu} |", flush=True)


def _add_pairs(
    pairs: dict[str, list[tuple[float, ...]]],
    servers: dict[str, tuple[int, subprocess.Popen[str]]],
    bundle: Bundle,
    one: Question,
    options: argparse.Namespace,
) -> None:
    """Seconds and processor seconds of requests and of runs in process, in turns, without the first turn."""
    alone, request = partial(_run, bundle, one.graph, options.steps), as_http(one)
    with ExitStack() as stack:
        connections = {
            name: stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            for name, (port, _) in servers.items()
        }
        for turn in range(options.pairs // options.repeats // options.turn + 1):
            for name, (_, process) in servers.items():
                ask_one = partial(_ask, connections[name], request, one.prediction)
                asked = _turn(ask_one, partial(thread_seconds, process.pid), options.turn)
                run = _turn(alone, time.thread_time, options.turn)
                if turn:
                    pairs[name] += zip(*asked, *run, strict=True)


def as_http(one: Question) -> bytes:
    """A request as a client sends it."""
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(one.body)), **one.headers}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    return "".join(["POST /v2/models/model/infer HTTP/1.1\r\n", *lines, "\r\n"]).encode() + one.body


def _turn(work: Callable[[], Any], cpu: Callable[[], float], count: int) -> tuple[list[float], list[float]]:
    """Seconds of some calls in a row, and the processor seconds of each one on average."""
    seconds, spent = [], cpu()
    for _ in range(count):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return seconds, [(cpu() - spent) / count] * count


def _ask(connection: socket.socket, request: bytes, prediction: bytes) -> None:
    """Send a request and receive the answer, with as little work of the client as possible."""
    connection.sendall(request)
    content, missing = b"", 1
    while missing > 0:
        received = connection.recv(2**20)
        if not received:
            raise ConnectionError("the server closed the connection")
        content += received
        head, end, body = content.partition(b"\r\n\r\n")
        if end:
            missing = int(head.partition(b"\r\ncontent-length: ")[2].split()[0]) - len(body)
    assert prediction in content or prediction in content.replace(b" ", b""), content[:200]


def soak(path: Path, bundle: Bundle, options: argparse.Namespace) -> None:
    """Full load for a long time; the state of the server's processes ten times."""
    questions = [question(bundle, nodes, options.steps) for nodes in options.nodes]
    print("| seconds | answers | errors | memory MB | handles | threads |\n|---|---|---|---|---|---|")
    with server(path, workers=options.workers) as (port, process):
        started, answers, children = time.monotonic(), 0, _children(process.pid)
        for _ in range(10):
            found = ask(port, questions, options.clients[-1], options.seconds / 10)
            answers += len(found.seconds)
            seen = f"{answers:,} | {len(found.errors) + found.wrong}"
            state = " | ".join(map(str, _state([process.pid, *children])))
            print(f"| {time.monotonic() - started:.0f} | {seen} | {state} |", flush=True)
        assert _children(process.pid) == children, "a worker ended"


def _state(pids: list[int]) -> tuple[int, int, int]:
    """The memory in MB, the handles and the threads of processes."""
    found = [dict(line.split(":\t", 1) for line in _proc(pid, "status").splitlines()) for pid in pids]
    memory = sum(int(each["VmRSS"].split()[0]) for each in found) // 1024
    handles = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)
    return memory, handles, sum(int(each["Threads"]) for each in found)


def _children(pid: int) -> list[int]:
    return [*map(int, _proc(pid, f"task/{pid}/children").split())]


def kill(path: Path, bundle: Bundle, options: argparse.Namespace) -> None:
    """Kill the server again and again; each client asks until it has an answer."""
    questions = [question(bundle, nodes, options.steps) for nodes in options.nodes]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    kills, over = 0, threading.Event()

    def keep_killing() -> None:
        nonlocal kills
        while not over.is_set():
            with suppress(json.JSONDecodeError), server(path, port) as (_, process):
                if over.wait(random.uniform(2, 6)):  # noqa: S311
                    return
                process.send_signal(signal.SIGKILL)
                kills += 1

    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        load = ask(port, questions, options.clients[-1], options.seconds, retry=True)
    finally:
        over.set()
        killer.join()
    print(f"{kills} kills, {len(load.seconds):,} answers, {load.wrong} wrong")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process."""
    fields = _proc(pid, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def thread_seconds(pid: int) -> float:
    """Processor time of a process, to the nanosecond."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


if __name__ == "__main__":
    main()
