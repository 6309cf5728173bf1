"""Time of one step: the exported cell on ONNX Runtime, compared with other implementations.

python -m benchmarks.cell_speed --case board --threads 2 --repeats 15

All sides have the same weights. Their results have to agree before the sides take turns:

* fused: the cell that `adar-deploy export` writes
* plain onnx: the paper's formulas (scatter_add) through `torch.onnx.export`, as `export --plain` writes them
* eager: the paper's formulas in PyTorch, with messages transformed once per node
* eager per edge: the same, transformed once per edge, as in Eq. local-mp and PyG's MessagePassing.message
* compiled: eager through `torch.compile`
* trained: the cell of `adar_train` in PyTorch

A turn is one untimed step, which fills the caches, and then a block of timed steps.
"""

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from adar_export.fused_cell import FusedCell
from adar_export.plain_cell import PlainCell, export_plain_cell
from adar_export.precision import PRECISIONS
from adar_runtime.benchmarking.race import Turn, Worker, race, spread
from adar_runtime.bundle.signature import STATE, STEP
from adar_runtime.graph import Graph
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.synthetic import minesweeper
from adar_runtime.loop.schedule import step_code
from adar_train import AdaR, GraphTensors, ModelConfig, State
from adar_train.untrained import random_model

FUSED, PLAIN, EAGER, PER_EDGE, COMPILED, TRAINED = SIDES = (
    "fused",
    "plain onnx",
    "eager",
    "eager per edge",
    "compiled",
    "trained",
)
TOLERANCE = 1e-4
OPSET = 17
TIME, SIZE = 0.25, 0.1
Arrays = dict[str, NDArray[Any]]
Step = Callable[[], NDArray[np.float32]]


def board() -> tuple[Graph, ModelConfig]:
    """The demo's board: n = 10,000, m = 78,804, d = 64, p = 32, c = 2."""
    graph = minesweeper(side=100)
    return graph, ModelConfig(graph.width, targets=2)


def large() -> tuple[Graph, ModelConfig]:
    """Size and degree distribution of ogbn-arxiv: n = 170,000, m about 2,300,000, d = 128, c = 40."""
    random = np.random.default_rng(0)
    nodes, links = 170_000, 1_150_000
    popular = (nodes * random.random(links) ** 2.5).astype(np.int64)
    ends = np.stack([random.integers(0, nodes, links), popular])
    edges = np.concatenate([ends, ends[::-1]], axis=1)
    return Graph(_features(random, nodes), edges), ModelConfig(8, targets=40, hidden=128)


def hub() -> tuple[Graph, ModelConfig]:
    """300,000 random edges, and one node with 100,000 neighbours."""
    random = np.random.default_rng(0)
    nodes = 100_001
    spokes = np.stack([np.arange(1, nodes), np.zeros(nodes - 1, np.int64)])
    edges = np.concatenate([spokes, random.integers(0, nodes, (2, 300_000))], axis=1)
    return Graph(_features(random, nodes), edges), ModelConfig(8, targets=2)


CASES = {"board": board, "large": large, "hub": hub}


def _features(random: np.random.Generator, nodes: int) -> NDArray[np.float32]:
    return random.normal(size=(nodes, 8)).astype(np.float32)


def main() -> None:
    """Measure and print a table."""
    options = parse()
    sides = [side for side in SIDES if side not in options.without]
    workers = {side: Worker(take_turn, side, options) for side in sides}
    answers = {side: worker.turn()[1] for side, worker in workers.items()}
    difference = max(float(np.abs(answers[FUSED] - answer).max()) for answer in answers.values())
    if not difference < TOLERANCE:
        raise SystemExit(f"error: the sides differ by {difference:.1e}, so their times cannot be compared")
    race(workers, 1)  # warm-up
    seconds = race(workers, options.repeats)
    print_report(options, difference, seconds)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--case", choices=CASES, default="board")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side")
    parser.add_argument("--block", type=int, default=5, help="timed steps per turn")
    parser.add_argument("--without", nargs="*", default=[], choices=SIDES[1:], help="sides to leave out")
    return parser.parse_args()


def take_turn(side: str, options: argparse.Namespace) -> Turn:
    """One untimed step, then a block of timed steps."""
    torch.set_num_threads(options.threads)
    step = build(side, *CASES[options.case](), options.threads)

    def turn() -> tuple[float, NDArray[np.float32]]:
        nodes = step()
        started = time.perf_counter()
        for _ in range(options.block):
            step()
        return (time.perf_counter() - started) / options.block, nodes

    return turn


def build(side: str, graph: Graph, config: ModelConfig, threads: int) -> Step:
    """The step of one side, from the first state."""
    if side in (FUSED, PLAIN):
        return onnx_step(*cell_and_feeds(side, graph, config), threads)
    return torch_step(side, frozen_model(config), GraphTensors.of(graph))


def frozen_model(config: ModelConfig) -> AdaR:
    """The model; its weights are the same for every side."""
    return random_model(config).eval().requires_grad_(False)


def cell_and_feeds(side: str, graph: Graph, config: ModelConfig) -> tuple[bytes, Arrays]:
    """The ONNX cell of this side, and its inputs for a step from the first state."""
    model, neighbours = frozen_model(config), Neighbours.of(graph.edge_index, graph.nodes)
    if side == FUSED:
        content = FusedCell(model, OPSET, PRECISIONS["fp32"]).builder.build({}).SerializeToString()
        structure: Arrays = Tables.of(neighbours).arrays() | {"share": neighbours.share}
    else:
        content = export_plain_cell(model, OPSET).SerializeToString()
        structure = {"edge_source": neighbours.sources, "edge_target": neighbours.targets}
    first = model.encode(GraphTensors.of(graph).features)
    states = {name: part.numpy() for name, part in first._asdict().items()}
    feeds: Arrays = states | structure | {"step_code": step_code(TIME, config.hidden)}
    feeds |= {f"previous_{name}_velocity": np.zeros_like(part) for name, part in states.items()}
    feeds |= {name: np.array(0 if name == "previous_weight" else SIZE, np.float32) for name in STEP}
    return content, feeds


def onnx_step(content: bytes, feeds: Arrays, threads: int) -> Step:
    """A step in ONNX Runtime with I/O binding, as in the runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    results = {f"next_{name}": np.empty_like(feeds[name]) for name in STATE}
    results |= {f"{name}_velocity": np.empty_like(feeds[name]) for name in STATE}
    for name in (output.name for output in session.get_outputs()):
        array = results.setdefault(name, np.empty((), np.float32))
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))

    def step() -> NDArray[np.float32]:
        session.run_with_iobinding(binding)
        return results["next_nodes"]

    return step


def torch_step(side: str, model: AdaR, tensors: GraphTensors) -> Step:
    """A step in PyTorch, without gradients."""
    state = model.encode(tensors.features)
    code = torch.from_numpy(step_code(TIME, model.config.hidden))
    if side == TRAINED:

        def trained() -> NDArray[np.float32]:
            with torch.no_grad():
                return model.cell(state, tensors.neighbours, tensors.share, code, SIZE).nodes.numpy()

        return trained
    plain = PlainCell(model, per_edge=side == PER_EDGE)
    cell = torch.compile(plain) if side == COMPILED else plain

    def step() -> NDArray[np.float32]:
        with torch.no_grad():
            velocities = cell(state, tensors.edge_index, code, SIZE)
            return State(*(x + v * SIZE for x, v in zip(state, velocities, strict=True))).nodes.numpy()

    return step


def print_report(options: argparse.Namespace, difference: float, seconds: dict[str, list[float]]) -> None:
    """Print the command, the versions and the table."""
    given = " ".join(f"--{name} {getattr(options, name)}" for name in ("case", "threads", "repeats", "block"))
    print(f"python -m benchmarks.cell_speed {given}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, onnxruntime {ort.__version__}")
    print(f"{CASES[options.case].__doc__} Largest difference {difference:.1e}.\n")
    print("| side | ms per step, median [quartiles] | time relative to fused, median [quartiles] |")
    print("|---|---|---|")
    for side, values in seconds.items():
        ratio = np.divide(values, seconds[FUSED])
        print(f"| {side} | {spread(1e3 * np.array(values), 2)} | {spread(ratio, 2)} |")


if __name__ == "__main__":
    main()
