"""One graph whose nodes are divided among processes: exact training of a graph that one device cannot hold.

Each process holds its nodes, and the edges that end at them. Proxies and targets are the same everywhere. Two
operations of a step need other processes, and both have a handwritten gradient that sends in the opposite
direction:

| operation | forward | backward |
|---|---|---|
| softmax over all nodes | maximum, sum of exponentials, sum of values | the result's gradient is summed |
| sums over neighbours | rows of nodes of other processes | gradients of these rows return, and are added |

The loss of the graph is the sum of the losses of all processes, `ShardedGraph.weight` times the mean over the
own outputs. A parameter's gradient is the sum over all processes (`sum_gradients`). Losses and gradients are
those of one process, up to rounding.

All processes call the same operations in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from adar_runtime.errors import MissingExtraError, UsageError
from adar_runtime.graph import NODE, Graph, Integers, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.store.partition import metis_parts
from adar_train.cell import STANDARD, Cell, GlobalMessages, ModelConfig, State, inner
from adar_train.distributed import world_size
from adar_train.fused_autograd import multiplied
from adar_train.graph_batch import graph_tensors
from adar_train.model import AdaR, Model
from adar_train.sparse import SparseMatrix
from adar_train.tensors import Device, GraphTensors


class ShardedMatrix(SparseMatrix):
    """The rows of A that belong to this process, as a matrix over its own nodes and the nodes it receives.

    Args:
        rows: Neighbours of the own nodes; columns are the own nodes, then the received ones.
        sends: For each process, the own rows that it receives.
        receives: For each process, the number of rows that come from it.
        device: PyTorch device.
    """

    def __init__(
        self, rows: Neighbours, sends: list[Tensor], receives: list[int], device: Device = "cpu"
    ) -> None:
        own = rows.nodes
        total = own + sum(receives)
        padded = Neighbours(
            np.concatenate([rows.starts, np.full(total - own, rows.starts[-1])]), rows.sources, rows.weights
        )  # square, so that the transposed layout exists; received nodes have no edges here
        super().__init__(padded, device)
        self._own, self._received = own, receives
        self._rows = torch.cat(sends).to(device)
        self._sent = [len(each) for each in sends]

    def __matmul__(self, x: Tensor) -> Tensor:
        return _ShardedProduct.apply(x, self)  # type: ignore[no-untyped-call]

    def times(self, x: Tensor) -> Tensor:
        """A x without autograd: fetches the rows of other processes."""
        rows = x.detach().contiguous()
        received = _exchanged(rows[self._rows], self._sent, self._received)
        return super().times(torch.cat([rows, received]))[: self._own]

    def transposed_times(self, x: Tensor) -> Tensor:
        """Aᵀ x without autograd: returns the gradients of fetched rows to the processes that sent them."""
        padding = x.new_zeros(sum(self._received), x.shape[1])
        found = super().transposed_times(torch.cat([x.detach(), padding]))
        returned = _exchanged(found[self._own :].contiguous(), self._received, self._sent)
        return found[: self._own].index_add(0, self._rows, returned)


class _ShardedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: ShardedMatrix) -> Tensor:
        ctx.matrix = matrix
        return matrix.times(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.matrix.transposed_times(gradient), None


class _ShardedDiffuse(torch.autograd.Function):
    """softmax(X_sur X_inᵀ / √d) · V [k, d] over the rows of X_in and V in all processes."""

    @staticmethod
    def forward(ctx: Any, x_sur: Tensor, x_in: Tensor, values: Tensor) -> Tensor:
        logits = x_sur * x_sur.shape[1] ** -0.5 @ x_in.T  # [k, own nodes]
        largest = logits.max(dim=1, keepdim=True).values
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        shares = (logits - largest).exp()
        sums = torch.cat([shares @ values, shares.sum(dim=1, keepdim=True)], dim=1)  # [k, d + 1]
        distributed.all_reduce(sums)
        found, total = sums[:, :-1] / sums[:, -1:], sums[:, -1:]
        ctx.save_for_backward(x_sur, x_in, values, shares / total, found)
        return found

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_sur, x_in, values, shares, found = ctx.saved_tensors
        d_out = d_out.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(d_out)  # every process uses the result
        with torch.autocast(d_out.device.type, enabled=False):
            d_logits = shares * (d_out @ values.T - (d_out * found).sum(dim=1, keepdim=True))
            d_logits *= x_sur.shape[1] ** -0.5
            return d_logits @ x_in, d_logits.T @ x_sur, shares.T @ d_out


@dataclass(frozen=True, eq=False, kw_only=True)
class ShardedGraph(GraphTensors):
    """The part of a graph that this process holds.

    Attributes:
        members: The numbers of its nodes in the graph, ascending [n].
    """

    members: Tensor

    @classmethod
    def part(
        cls, graph: Graph, part_of: Integers, config: ModelConfig, device: Device = "cpu"
    ) -> "ShardedGraph":
        """Take the nodes of this process from a graph. All processes have to call this.

        Args:
            graph: The whole graph, with outputs for nodes. It stays in the memory of the host.
            part_of: The process of each node [n], such as from `adar_runtime.graph.store.partition`.
            config: The settings of the model.
            device: PyTorch device of the tensors.

        Returns:
            The tensors of the nodes of this process.

        Raises:
            UsageError: The graph or the model cannot be divided, or a process has no node.
        """
        rank, size = distributed.get_rank(), distributed.get_world_size()
        if graph.level != NODE or config.variant != STANDARD or config.edge_weights:
            raise UsageError(
                "training in shards is for outputs of nodes, the standard variant, and edges without weights"
            )
        if len(np.unique(part_of)) != size or part_of.min() < 0 or part_of.max() >= size:
            raise UsageError(f"each of the {size} processes needs at least one node")
        neighbours = Neighbours.in_graph(graph, weighted=False)
        members = [np.flatnonzero(part_of == one) for one in range(size)]
        outside = [_outside(neighbours, part_of, one, own) for one, own in enumerate(members)]
        own, received = members[rank], outside[rank]
        received = received[np.argsort(part_of[received], kind="stable")]
        row = np.full(graph.nodes, -1)
        row[own], row[received] = np.arange(len(own)), len(own) + np.arange(len(received))
        mine = _rows_of(neighbours, own)
        sends = [np.searchsorted(own, each[part_of[each] == rank]) for each in outside]
        matrix = ShardedMatrix(
            Neighbours(mine.starts, row[mine.sources]),
            [torch.from_numpy(each) for each in sends],
            np.bincount(part_of[received], minlength=size).tolist(),
            device,
        )
        targets = graph.target_features
        return cls(
            features=_features(graph, own, device),
            neighbours=matrix,
            share=torch.from_numpy(mine.share).to(device),
            edge_index=torch.zeros((2, 0), dtype=torch.int64, device=device),
            labels=None if graph.labels is None else torch.from_numpy(graph.labels[own]).to(device),
            target_features=None if targets is None else torch.from_numpy(targets).to(device),
            pairs=None,
            level=NODE,
            members=torch.from_numpy(own).to(device),
        )

    def own(self, chosen: Tensor) -> Tensor:
        """The own rows among some nodes of the graph, which are given by their numbers."""
        return torch.isin(self.members, chosen).nonzero().squeeze(1)

    def labels_of(self, chosen: Tensor) -> Tensor:
        """The labels of the chosen outputs of all processes."""
        return torch.cat([each.to(self.share.device) for each in _from_all(super().labels_of(chosen).cpu())])

    def weight(self, chosen: Tensor) -> float:
        """The share of the own outputs `chosen` in those of all processes: what the own loss is scaled by.

        Raises:
            UsageError: A process has none of these outputs.
        """
        counts = _from_all(len(chosen))
        if not min(counts):
            raise UsageError("a process has no node to train on: start fewer processes")
        return len(chosen) / sum(counts)

    def gathered(self, scores: Tensor) -> Tensor:
        """The scores of all nodes of the graph [n, c]."""
        parts = _from_all((self.members.cpu(), scores.cpu()))
        found = scores.new_empty(sum(len(members) for members, _ in parts), scores.shape[1])
        for members, rows in parts:
            found[members.to(found.device)] = rows.to(found.device)
        return found

    def averaged(self, alignment: Tensor) -> Tensor:
        """The mean of the alignments of all processes, weighted with their numbers of nodes."""
        sums = torch.stack(
            [alignment.double() * len(self.members), alignment.new_tensor(len(self.members)).double()]
        )
        distributed.all_reduce(sums)
        return (sums[0] / sums[1]).to(alignment.dtype)

    def step(self, cell: Cell, state: State, code: Tensor, dt: float) -> State:
        """One step of the recurrence: `Cell.forward`, with both exchanges."""
        nodes, c, pn, pc = state
        h = multiplied(nodes)
        g, pn_next = self._absorb(cell.node_abstraction, h, pn, pn, code, dt)
        values_pn = cell.node_abstraction.values(g)
        _, pc_next = cell.target_abstraction.absorb(c, pc, pc, code, dt)
        g, c_next = self._absorb(cell.target_update, h, c, pn_next, code, dt)
        values_cn = cell.target_update.values(g)
        surrogates, values, project = (pn_next, c_next), (values_pn, values_cn), cell.velocity.representation
        local = cell.message(h, surrogates, values, project.weight, self.neighbours, self.share, cell.parts)
        v = cell.velocity(local, inner(h, pc_next), code, nodes)
        return State(torch.add(nodes, v, alpha=dt), c_next, pn_next, pc_next)

    @staticmethod
    def _absorb(
        messages: GlobalMessages, h: Tensor, x_sur: Tensor, x_cond: Tensor, code: Tensor, dt: float
    ) -> tuple[Tensor, Tensor]:
        """`GlobalMessages.absorb` from the nodes of all processes."""
        values = functional.leaky_relu(messages.value.linear(h))
        full = torch.promote_types(x_sur.dtype, torch.float32)
        with torch.autocast(h.device.type, enabled=False):  # sums over all nodes are in full precision
            g = _ShardedDiffuse.apply(x_sur.to(full), h.to(full), values.to(full))  # type: ignore[no-untyped-call]
        return messages.refine(g, x_sur, x_cond, code, dt)


def training_tensors(model: Model, graphs: Sequence[Graph], split: int, device: Device) -> list[GraphTensors]:
    """Convert graphs to tensors. Several processes share the graphs or, if there is one, its nodes.

    Raises:
        UsageError: There are more processes than graphs to train on, and the graph cannot be divided.
    """
    processes, trained = (
        world_size(),
        [graph for graph in graphs if graph.labelled("train", split) is not None],
    )
    if processes <= len(trained):
        return graph_tensors(model, graphs, split, device)
    config = model.config
    fits = isinstance(model, AdaR) and config.variant == STANDARD and not config.edge_weights
    if len(graphs) > 1 or graphs[0].level != NODE or not fits:
        raise UsageError(
            f"{processes} processes for {len(trained)} training graphs: start at most one process per graph "
            "(torchrun --nproc-per-node). Only one graph with labels of nodes, without descriptions and edge "
            "weights, is divided among processes"
        )
    return [ShardedGraph.part(graphs[0], parts_of(graphs[0], processes), config, device)]


def parts_of(graph: Graph, parts: int) -> Integers:
    """The process of each node: by METIS (few rows are exchanged) if it is installed, otherwise in order."""
    try:
        return metis_parts(graph, parts)
    except MissingExtraError:
        return np.arange(graph.nodes) * parts // graph.nodes


def sum_gradients(module: nn.Module) -> None:
    """Replace each gradient by its sum over all processes, after the backward pass."""
    for weight in module.parameters():
        if weight.requires_grad:
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            distributed.all_reduce(gradient)
            weight.grad = gradient


def _features(graph: Graph, own: Integers, device: Device) -> Tensor | SparseMatrix:
    """The features of the own nodes; sparse features stay sparse."""
    x = graph.features
    if not isinstance(x, SparseRows):
        return torch.from_numpy(x[own]).to(device)
    counts = np.diff(x.starts)[own]
    starts = np.concatenate([[0], np.cumsum(counts)])
    entries = np.repeat(x.starts[own] - starts[:-1], counts) + np.arange(starts[-1])
    rows = SparseRows(starts, x.columns[entries], x.values[entries], (len(own), x.shape[1]))
    return SparseMatrix(rows, device)


def _from_all(value: Any) -> list[Any]:
    """A value of each process, in their order."""
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def _exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send the rows of each process, one block after the other, and return the rows that arrive."""
    found = rows.new_empty(sum(received), rows.shape[1])
    distributed.all_to_all_single(found, rows, received, sent)
    return found


def _rows_of(neighbours: Neighbours, nodes: Integers) -> Neighbours:
    """The neighbours of some nodes."""
    counts = neighbours.counts[nodes]
    starts = np.concatenate([[0], np.cumsum(counts)])
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    return Neighbours(starts, neighbours.sources[np.repeat(neighbours.starts[nodes], counts) + inside])


def _outside(neighbours: Neighbours, part_of: Integers, one: int, own: Integers) -> Integers:
    """The nodes of other processes that send to the nodes of one process, ascending."""
    sources = np.unique(_rows_of(neighbours, own).sources)
    return sources[part_of[sources] != one]
