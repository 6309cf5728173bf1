"""One step by each form of the cell: the training cell, the plain cell and the exported cell."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional

from adar_export.plain_cell import PlainCell
from adar_runtime.bundle.signature import SCALARS, STATE, STEP
from adar_runtime.graph.neighbour_tables import Tables
from adar_runtime.graph.neighbours import Neighbours
from adar_train.cell import State
from adar_train.model import AdaR
from adar_train.sparse import SparseMatrix

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass
class Call:
    """The inputs of one cell call, in float64."""

    states: Arrays
    before: Arrays
    neighbours: Neighbours
    step_code: np.ndarray
    weight: float
    previous_weight: float
    lead: float

    def feeds(self, real: type = np.float64) -> Arrays:
        """Return the inputs by their names in an exported cell."""
        floats = self.states | {f"previous_{name}_velocity": v for name, v in self.before.items()}
        floats |= {name: np.array(getattr(self, name)) for name in STEP}
        floats |= {"step_code": self.step_code, "share": self.share()}
        tables = Tables.of(self.neighbours).arrays()
        floats |= {name: table for name, table in tables.items() if name.startswith("leaf_weight")}
        return tables | {k: v.astype(real) for k, v in floats.items()}

    def share(self) -> np.ndarray:
        """1 / (sum of the weights + 1), added node by node."""
        neighbours = self.neighbours
        weights = np.ones(len(neighbours.sources)) if neighbours.weights is None else neighbours.weights
        total = np.ones(neighbours.nodes)
        np.add.at(total, neighbours.targets, weights.astype(np.float64))
        return 1 / total[:, None]

    def in_float32(self) -> "Call":
        rounded = [{k: v.astype(np.float32) for k, v in part.items()} for part in (self.states, self.before)]
        return Call(
            *rounded,
            self.neighbours,
            self.step_code.astype(np.float32),
            self.weight,
            self.previous_weight,
            self.lead,
        )

    def edges(self) -> Arrays:
        found = {"edge_source": self.neighbours.sources, "edge_target": self.neighbours.targets}
        return found if self.neighbours.weights is None else found | {"edge_weight": self.neighbours.weights}

    def state(self) -> State:
        return State(*(torch.from_numpy(self.states[name]) for name in STATE))


def random_call(
    model: AdaR, edge_index: np.ndarray, nodes: int, classes: int, seed: int, moves: tuple[float, ...]
) -> Call:
    random = np.random.default_rng(seed)
    d, p = model.config.hidden, model.config.proxies
    rows = dict(zip(STATE, (nodes, classes, p, p), strict=True))
    states, before = ({name: random.normal(size=(k, d)) for name, k in rows.items()} for _ in range(2))
    weights = None
    if model.config.edge_weights:
        weights = random.exponential(size=edge_index.shape[1]).astype(np.float32) + np.float32(0.01)
    neighbours = Neighbours.of(edge_index, nodes, weights)
    return Call(states, before, neighbours, random.normal(size=d), *moves)


@contextmanager
def onnx_constants(model: AdaR) -> Iterator[None]:
    """Give PyTorch the slope and the epsilon of an ONNX model, whose attributes are float32."""
    slope = float(np.float32(0.01))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = float(np.float32(module.eps))
    with (
        patch.object(functional, "leaky_relu", partial(functional.leaky_relu, negative_slope=slope)),
        patch.object(functional, "leaky_relu_", partial(functional.leaky_relu_, negative_slope=slope)),
    ):
        yield


@torch.no_grad()
def by_plain_cell(model: AdaR, call: Call) -> Arrays:
    """Return the outputs of an exported cell, computed by the plain cell in float64."""
    edges, weights = torch.from_numpy(np.stack([call.neighbours.sources, call.neighbours.targets])), None
    state = call.state()
    if call.neighbours.weights is not None:
        weights = torch.from_numpy(call.neighbours.weights).to(state.nodes)
    with onnx_constants(model):
        velocities = PlainCell(model)(state, edges, torch.from_numpy(call.step_code), call.lead, weights)
    v = {name: velocity.numpy() for name, velocity in zip(STATE, velocities, strict=True)}
    after = {
        name: call.states[name] + call.weight * v[name] + call.previous_weight * call.before[name]
        for name in STATE
    }
    moved = State(*(torch.from_numpy(after[name]) for name in STATE))
    turned = v["nodes"] - call.before["nodes"]
    scalars = (model.alignment(moved).numpy(), *(np.sqrt((x**2).mean()) for x in (v["nodes"], turned)))
    return (
        {f"next_{name}": after[name] for name in STATE}
        | {f"{name}_velocity": v[name] for name in STATE}
        | dict(zip(SCALARS, scalars, strict=True))
    )


@torch.no_grad()
def by_training_cell(model: AdaR, call: Call) -> Arrays:
    """Return the next states by the training cell; the call must be a step of Euler's method."""
    assert call.weight == call.lead
    assert not call.previous_weight
    share = torch.from_numpy(call.share())
    step = torch.from_numpy(call.step_code)
    with onnx_constants(model):
        after = model.cell(call.state(), SparseMatrix(call.neighbours), share, step, call.weight)
    return {f"next_{name}": x.numpy() for name, x in zip(STATE, after, strict=True)}


def by_reference(cell: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Run an exported cell in float64 with onnx's slow evaluator: ONNX Runtime has no float64 LeakyRelu."""
    return dict(zip(_outputs(cell), ReferenceEvaluator(cell).run(None, feeds), strict=True))


def by_onnxruntime(cell: onnx.ModelProto, feeds: Arrays, threads: int = 1) -> Arrays:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    content = cell.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return dict(zip(_outputs(cell), session.run(None, feeds), strict=True))


def _outputs(cell: onnx.ModelProto) -> list[str]:
    return [value.name for value in cell.graph.output]


def assert_close(expected: Arrays, got: Arrays, tolerance: float) -> None:
    """Compare all entries, relative to the largest entry of each array."""
    for name, array in expected.items():
        assert got[name].shape == np.shape(array), name
    assert distance(expected, got) <= tolerance


def distance(expected: Arrays, got: Arrays) -> float:
    """Return the largest difference of an entry, relative to the largest entry of its array, or to 1."""
    return max(np.abs(x - got[name]).max() / max(1.0, np.abs(x).max()) for name, x in expected.items())
