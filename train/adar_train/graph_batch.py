"""Many small graphs as one input of AdaR: padded to the same number of nodes, [b, n, d], with one mask.

One operation over a batch takes little longer than over one small graph, so an epoch is many times faster.
The states are those of the graphs one by one, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from adar_runtime.backends.prepared_batch import LARGEST, batches
from adar_runtime.graph import GRAPH, PARTS, Graph, SparseRows
from adar_runtime.graph.neighbours import Neighbours
from adar_train.cell import STANDARD, Cell, GlobalMessages, State, Velocity
from adar_train.model import AdaR, Model
from adar_train.sparse import SparseMatrix
from adar_train.tensors import Device, GraphTensors


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphBatch(GraphTensors):
    """Graphs with one label each. The rows of all graphs, padding included, are the nodes of one graph.

    Attributes:
        members: The position of each graph in the list that the batch was made from.
        absent: [b, 1, n], 0 for a node and -∞ for padding: added to logits.
        present: [b, n, 1], 1 / (number of nodes of the graph) for a node and 0 for padding: a weighted mean.
    """

    members: tuple[int, ...]
    absent: Tensor
    present: Tensor

    @classmethod
    def join(cls, graphs: Sequence[Graph], members: Sequence[int], device: Device = "cpu") -> "GraphBatch":
        """Join some of the graphs.

        Args:
            graphs: All graphs. They have one label each and dense features.
            members: The positions of the graphs to join.
            device: PyTorch device of the tensors.

        Returns:
            The batch.
        """
        chosen = [graphs[index] for index in members]
        sizes = np.array([graph.nodes for graph in chosen])
        count, rows = len(sizes), int(sizes.max())
        neighbours = Neighbours.in_graphs(chosen, rows)
        weights = neighbours.weights
        features = np.zeros((count, rows, chosen[0].width), np.float32)
        for padded, graph in zip(features, chosen, strict=True):
            padded[: graph.nodes] = graph.rows(0, graph.nodes)
        is_node = torch.from_numpy(np.arange(rows) < sizes[:, None]).to(device)  # [b, n]
        absent = torch.zeros(count, rows, device=device).masked_fill(~is_node, -torch.inf)
        share = is_node / torch.from_numpy(sizes).to(device)[:, None]
        known = all(graph.labels is not None for graph in chosen)
        labels = (
            np.concatenate([graph.labels for graph in chosen if graph.labels is not None]) if known else None
        )
        return cls(
            features=torch.from_numpy(features.reshape(count * rows, -1)).to(device),
            neighbours=SparseMatrix(neighbours, device),
            share=torch.from_numpy(neighbours.share).to(device),
            edge_index=torch.from_numpy(np.stack([neighbours.sources, neighbours.targets])).to(device),
            labels=None if labels is None else torch.from_numpy(labels).to(device),
            target_features=None,
            pairs=None,
            level=GRAPH,
            edge_weight=None if weights is None else torch.from_numpy(weights).to(device),
            members=tuple(members),
            absent=absent[:, None, :],
            present=share.float()[:, :, None],
        )

    def shaped(self, state: State) -> State:
        """Divide the rows of all nodes into graphs, and give each graph its own targets and proxies."""
        count, rows = self.present.shape[:2]
        nodes, *others = state
        return State(nodes.reshape(count, rows, -1), *(each.expand(count, -1, -1) for each in others))

    def readout(self, nodes: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """The mean node of each chosen graph, [k, d]."""
        return (nodes * self.present).sum(dim=1)[chosen]

    def targets_of(self, targets: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor:
        """The targets of each chosen graph, [k, c, d]."""
        return targets[chosen]

    def shares(self) -> Tensor | None:
        """The weight of each node in the mean over its graph."""
        return self.present

    def step(self, cell: Cell, state: State, code: Tensor, dt: float) -> State:
        """One step of every graph: `Cell.forward` with one more dimension."""
        h, c, pn, pc = state
        g, pn_next = _absorb(cell.node_abstraction, h, pn, pn, code, dt, self.absent)
        values_pn = cell.node_abstraction.values(g)
        _, pc_next = _absorb(cell.target_abstraction, c, pc, pc, code, dt)
        g, c_next = _absorb(cell.target_update, h, c, pn_next, code, dt, self.absent)
        values_cn = cell.target_update.values(g)
        local = self._local_messages(cell, h, (pn_next, c_next), (values_pn, values_cn))
        v = _velocity(cell.velocity, local, _inner(h, pc_next), code, h)
        return State(torch.add(h, v, alpha=dt), c_next, pn_next, pc_next)

    def _local_messages(
        self, cell: Cell, h: Tensor, surrogates: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor]
    ) -> Tensor:
        """`LocalMessages.forward` of every graph, [b, n, d]. M is kept as two factors here too."""
        layer, project = cell.message.linear, cell.velocity.representation.weight  # L [3d, 3d], W [d, 3d]
        pn, cn, own = torch.cat([layer.weight, project]).T.chunk(3)  # rows for M_pn, M_cn and H [d, 4d]
        left = torch.cat([_attend(h, each) for each in surrogates], dim=2)  # [b, n, p + c]
        right = torch.cat([values[0] @ pn, values[1] @ cn], dim=1)  # [b, p + c, 4d]
        bias = functional.pad(layer.bias, (0, len(project)))
        both = torch.baddbmm(functional.linear(h, own.T, bias), left, right)  # [b, n, 4d]
        to_message, to_own = torch.split(both, [len(layer.weight), len(project)], dim=2)
        sent = functional.linear(functional.leaky_relu(to_message), project)  # [b, n, d]
        received = (self.neighbours @ sent.flatten(0, 1)).view_as(sent)
        return (to_own + received) * self.share.view(*h.shape[:2], 1)


def graph_tensors(
    model: Model, graphs: Sequence[Graph], split: int, device: Device = "cpu"
) -> list[GraphTensors]:
    """Convert graphs to tensors: small graphs with one label each in batches, others one by one.

    Args:
        model: The model to train. Baselines and the zero-shot variant take graphs one by one.
        graphs: The graphs.
        split: Number of the split. All graphs of a batch are in the same part of it.
        device: PyTorch device of the tensors.

    Returns:
        One `GraphBatch` for many graphs, or one `GraphTensors` for each graph.
    """
    if not _can_batch(model, graphs):
        return [GraphTensors.of(graph, device) for graph in graphs]
    parts: dict[tuple[bool, ...], list[int]] = {}
    for index, graph in enumerate(graphs):
        key = tuple(graph.labelled(part, split) is not None for part in PARTS)
        parts.setdefault(key, []).append(index)
    return [
        GraphBatch.join(graphs, [members[i] for i in batch], device)
        for members in parts.values()
        for batch in batches([graphs[index] for index in members])
    ]


def members_of(tensors: Sequence[GraphTensors]) -> list[tuple[int, ...]]:
    """The positions of the graphs in each element of `graph_tensors`."""
    return [each.members if isinstance(each, GraphBatch) else (index,) for index, each in enumerate(tensors)]


def are_small(graphs: Sequence[Graph]) -> bool:
    """Whether these are many small graphs with one label each, which are computed in batches."""
    return len(graphs) > 1 and all(
        graph.level == GRAPH
        and graph.nodes <= LARGEST
        and graph.target_features is None
        and not isinstance(graph.features, SparseRows)
        for graph in graphs
    )


def _can_batch(model: Model, graphs: Sequence[Graph]) -> bool:
    return isinstance(model, AdaR) and model.config.variant == STANDARD and are_small(graphs)


def _absorb(
    messages: GlobalMessages,
    x_in: Tensor,
    x_sur: Tensor,
    x_cond: Tensor,
    code: Tensor,
    dt: float,
    absent: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`GlobalMessages.absorb` of every graph; padding gets no attention."""
    logits = _inner(x_sur, x_in)
    shares = (logits if absent is None else logits + absent).softmax(dim=2)
    g = _attend(x_sur, x_sur) @ (shares @ messages.value(x_in))
    velocity = messages.velocity
    v = _velocity(velocity, velocity.representation(g), _inner(x_sur, x_cond), code, x_sur)
    return g, torch.add(x_sur, v, alpha=dt)


def _velocity(velocity: Velocity, projected: Tensor, relation: Tensor, code: Tensor, x: Tensor) -> Tensor:
    """The velocity of x [b, k, d]: `Velocity.forward` on the rows of all graphs."""
    rows = (each.flatten(0, 1) for each in (projected, relation))
    return velocity(*rows, code, x.flatten(0, 1)).view(x.shape)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return a * a.shape[2] ** -0.5 @ b.mT


def _attend(a: Tensor, b: Tensor) -> Tensor:
    return _inner(a, b).softmax(dim=2)
