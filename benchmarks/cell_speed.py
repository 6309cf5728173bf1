"""How long one step takes on ONNX Runtime: the exported cell against the obvious ways.

python -m benchmarks.cell_speed --case board --threads 2 --repeats 15

Sides, all with the same weights, which have to agree before they are timed and then take turns:

* fused: the cell that `adar-deploy export` writes
* plain onnx: what `torch.onnx.export` makes of the paper's formulas (scatter_add), `export --plain`
* eager: those formulas in PyTorch, with messages transformed once for every node
* eager per edge: the same, once for every edge, as Eq. local-mp reads and PyG's MessagePassing.message has it
* compiled: eager through `torch.compile`
* trained: PyTorch, as `adar_train` arranges the cell

A turn is one step that is not timed, since the caches hold another side's data, and then a few that are, as
in a run.
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
    """As large and as skewed as ogbn-arxiv: n = 170,000, m about 2,300,000, d = 128, c = 40."""
    random = np.random.default_rng(0)
    nodes, links = 170_000, 1_150_000
    popular = (nodes * random.random(links) ** 2.5).astype(np.int64)
    ends = np.stack([random.integers(0, nodes, links), popular])
    edges = np.concatenate([ends, ends[::-1]], axis=1)
    return Graph(_features(random, nodes), edges), ModelConfig(8, targets=40, hidden=128)


def hub() -> tuple[Graph, ModelConfig]:
    """A board's worth of edges at random, and one node with 100,000 neighbours."""
    random = np.random.default_rng(0)
    nodes = 100_001
    spokes = np.stack([np.arange(1, nodes), np.zeros(nodes - 1, np.int64)])
    edges = np.concatenate([spokes, random.integers(0, nodes, (2, 300_000))], axis=1)
    return Graph(_features(random, nodes), edges), ModelConfig(8, targets=2)


CASES = {"board": board, "large": large, "hub": hub}


def _features(random: np.random.Generator, nodes: int) -> NDArray[np.float32]:
    return random.normal(size=(nodes, 8)).astype(np.float32)


def main() -> None:
    """Compare, and print a table."""
    options = parse()
    sides = [side for side in SIDES if side not in options.without]
    workers = {side: Worker(take_turn, side, options) for side in sides}
    answers = {side: worker.turn()[1] for side, worker in workers.items()}
    difference = max(float(np.abs(answers[FUSED] - answer).max()) for answer in answers.values())
    if not difference < TOLERANCE:
        raise SystemExit(f"error: the sides differ by {difference:.1e}, so their times say nothing")
    race(workers, 1)  # to warm up
    seconds = race(workers, options.repeats)
    print_report(options, difference, seconds)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--case", choices=CASES, default="board")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15, help="turns of each side")
    parser.add_argument("--block", type=int, default=5, help="timed steps of a turn")
    parser.add_argument("--without", nargs="*", default=[], choices=SIDES[1:], help="sides to leave out")
    return parser.parse_args()


def take_turn(side: str, options: argparse.Namespace) -> Turn:
    """One step that is not timed, then a block of them that is."""
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
    """One side's step from the first state, ready to be called."""
    if side in (FUSED, PLAIN):
        return onnx_step(*cell_and_feeds(side, graph, config), threads)
    return torch_step(side, frozen_model(config), GraphTensors.of(graph))


def frozen_model(config: ModelConfig) -> AdaR:
    """The same for every side."""
    return random_model(config).eval().requires_grad_(False)


def cell_and_feeds(side: str, graph: Graph, config: ModelConfig) -> tuple[bytes, Arrays]:
    """The ONNX cell of that side, and what it takes for a step from the first state."""
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
    """Through an I/O binding, as in the runtime."""
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
    """In PyTorch, without gradients."""
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
    """The table, and all that is needed to make it again."""
    given = " ".join(f"--{name} {getattr(options, name)}" for name in ("case", "threads", "repeats", "block"))
    print(f"python -m benchmarks.cell_speed {given}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, onnxruntime {ort.__version__}")
    print(f"{CASES[options.case].__doc__} Largest difference {difference:.1e}.\n")
    print("| side | ms a step, median [quartiles] | over fused, median [quartiles] |")
    print("|---|---|---|")
    for side, values in seconds.items():
        ratio = np.divide(values, seconds[FUSED])
        print(f"| {side} | {spread(1e3 * np.array(values), 2)} | {spread(ratio, 2)} |")


if __name__ == "__main__":
    main()
