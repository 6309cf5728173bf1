"""Pretraining of the equivariant variant on episodes of many graphs. `make pretrain` runs it.

Every update draws a small task: classes, nodes and edges of one graph (or of a generated graph), with class
descriptions, with a few labels, or with both. The start is the closed form of `adar_runtime.in_context`; the
gates learn to improve it. Checkpoints hold the updates done, the weights and the optimiser. A killed
pretraining continues from the last one with the same episodes: each update has a random generator of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

from adar_runtime.errors import GraphError
from adar_runtime.files import write_file
from adar_runtime.graph import NODE, Floats, Graph, Mask
from adar_runtime.graph.formats import read_graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.start import can_start, known_labels
from adar_runtime.loop.schedule import times
from adar_train.data.episodes import EpisodeSource
from adar_train.equivariant import EquivariantAdaR, PlacedGraph

STORED_COLUMNS = 128  # of the features that episodes are drawn from
STEPS = (4, 12)  # range of the number of steps of an episode
NODES = (300, 900)  # range of the number of nodes of an episode
LABELS = (1, 10)  # range of the known labels of a class
FEWEST_LABELS = 100  # of a graph: episodes consist of nodes with labels
GENERATED = 0.25  # share of episodes from generated graphs
LR, WARMUP, CLIP, DECAY = 3e-3, 20, 1.0, 1e-4
MIDDLE = 0.5  # weight of the loss at a random step before the last
EPISODES = 4  # of one update
SAVE_EVERY = 20
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Task:
    """A graph, with the labels to predict."""

    graph: PlacedGraph
    labels: Tensor  # [n], -1 where a label is unknown or given

    @classmethod
    def of(cls, graph: Graph) -> "Task":
        assert graph.labels is not None
        labels = np.where(known_labels(graph) >= 0, -1, graph.labels)
        return cls(PlacedGraph.of(graph), torch.from_numpy(labels.astype(np.int64)))

    def accuracy(self, scores: Tensor) -> float:
        """The share of right predictions among the nodes to predict."""
        chosen = self.labels >= 0
        return float((scores.argmax(dim=1) == self.labels)[chosen].float().mean())


def stored(graph: Graph) -> Graph:
    """The graph with at most STORED_COLUMNS dense columns, to draw episodes from."""
    smoothing = Smoothing(Neighbours.in_graph(graph), 1)
    described = graph.target_features
    first = np.zeros((0, graph.width), np.float32) if described is None else described
    rows = UnitRows(graph)
    basis = leading_directions(rows, smoothing, STORED_COLUMNS, first)
    targets = None if described is None else unit_rows(described) @ basis
    return Graph(rows.times(basis), graph.edge_index, graph.labels, target_features=targets)


def source_of(path: Path, *, all_labels: bool = True) -> tuple[EpisodeSource, bool]:
    """The episodes of a graph file, and whether its classes are described.

    Without `all_labels`, a graph with a train_mask gives only the labels of its first split.
    """
    read = read_graph(path)
    if read.labels is None or read.level != NODE or read.regression:
        raise GraphError(f"{path} has no classes of nodes (y) to train on: give another graph")
    mask = None if all_labels else read.labelled("train")
    chosen = np.flatnonzero(read.labels >= 0 if mask is None else mask)
    if len(chosen) < FEWEST_LABELS:
        raise GraphError(
            f"{path} has {len(chosen)} labels to train on, and {FEWEST_LABELS} are needed: run the "
            "pretrained model as it is, which uses the labels of train_mask"
        )
    graph = stored(read)
    is_described = graph.target_features is not None
    if not is_described:
        graph = replace(graph, target_features=np.zeros((graph.targets, graph.width), np.float32))
    return EpisodeSource(graph, chosen), is_described


def draw_episode(sources: Sequence[tuple[EpisodeSource, bool]], random: np.random.Generator) -> Graph:
    """A small graph with a train_mask of few labels, with class descriptions, or with both."""
    while True:
        graph = _drawn(sources, random)
        if can_start(graph):  # rarely, all sampled nodes have one class
            return graph


def _drawn(sources: Sequence[tuple[EpisodeSource, bool]], random: np.random.Generator) -> Graph:
    if random.random() < GENERATED or not sources:
        graph, is_described = block_model(random), True
    else:
        source, is_described = sources[int(random.integers(len(sources)))]
        graph = source.draw(random, NODES)
    if random.random() < 0.25:
        graph = replace(graph, features=_noisy(graph.rows(0, graph.nodes), random))
    assert graph.labels is not None
    if random.random() < 0.25 and graph.targets > 3:
        graph = _merged(graph, random)
    use_labels = not is_described or random.random() < 0.6
    use_descriptions = is_described and (not use_labels or random.random() < 0.3)
    mask = _few(graph, random) if use_labels else None
    return replace(
        graph, train_mask=mask, target_features=graph.target_features if use_descriptions else None
    )


def _few(graph: Graph, random: np.random.Generator) -> Mask:
    count, labels = int(random.integers(LABELS[0], LABELS[1] + 1)), graph.labels
    assert labels is not None
    mask = np.zeros(graph.nodes, np.bool_)
    for number in range(graph.targets):
        mask[random.permutation(np.flatnonzero(labels == number))[:count]] = True
    return mask


def _noisy(rows: Floats, random: np.random.Generator) -> Floats:
    noise = random.standard_normal(rows.shape).astype(np.float32) * rows.std()
    return rows + np.float32(random.uniform(0, 2)) * noise


def _merged(graph: Graph, random: np.random.Generator) -> Graph:
    """The graph with two of its classes as one, described by the mean of both descriptions."""
    first, second = np.sort(random.choice(graph.targets, 2, replace=False))
    assert graph.labels is not None
    assert graph.target_features is not None
    number = np.arange(graph.targets)
    number[second], number[second + 1 :] = first, number[second + 1 :] - 1
    targets = np.delete(graph.target_features, second, axis=0)
    targets[first] = graph.target_features[[first, second]].mean(axis=0)
    return replace(graph, labels=number[graph.labels.astype(np.int64)], target_features=targets)


def block_model(random: np.random.Generator, nodes: int | None = None) -> Graph:
    """A contextual block model: random classes, homophily from 0 to 1, degrees, noise and dimension."""
    nodes = nodes or int(random.integers(*NODES))
    count, width = int(random.integers(2, 9)), int(random.integers(16, 129))
    labels = random.choice(count, nodes, p=random.dirichlet(np.full(count, 5.0)))
    labels[:count] = np.arange(count)
    centres = random.standard_normal((count, width))
    noise = random.uniform(0.5, 6) * random.standard_normal((nodes, width))
    weight = np.exp(random.uniform(0, 1.5) * random.standard_normal(nodes))
    homophily, links = random.beta(1.2, 0.9), int(nodes * random.uniform(1, 10))
    source = random.choice(nodes, links, p=weight / weight.sum())
    target = np.empty(links, np.int64)
    partner = random.permutation(count)  # heterophilous classes have a preferred other class
    wanted = np.where(random.random(links) < homophily, labels[source], partner[labels[source]])
    wanted = np.where(random.random(links) < random.uniform(0, 0.5), random.integers(0, count, links), wanted)
    for number in range(count):
        members, chosen = np.flatnonzero(labels == number), np.flatnonzero(wanted == number)
        share = weight[members] / weight[members].sum()
        target[chosen] = random.choice(members, len(chosen), p=share)
    edges = np.stack([source, target])[:, source != target]
    described = centres + random.uniform(0, 1.5) * random.standard_normal(centres.shape)
    return Graph(
        (centres[labels] + noise).astype(np.float32),
        np.concatenate([edges, edges[::-1]], axis=1),
        labels,
        target_features=described.astype(np.float32),
    )


def episode_loss(
    model: EquivariantAdaR, task: Task, random: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of one episode, and its scores at the start and at the end.

    Episodes that end worse than they start count more: the gates learn when to stay at the closed form.
    """
    steps = int(random.integers(STEPS[0], STEPS[1] + 1))
    states = list(model.trajectory(task.graph, times(steps).tolist()))
    chosen = (states[0], states[int(random.integers(1, steps))], states[-1])
    first, middle, last = (model.scores(state, task.graph) for state in chosen)
    losses = [
        functional.cross_entropy(scores, task.labels, ignore_index=-1) for scores in (first, middle, last)
    ]
    return losses[2] + MIDDLE * losses[1] + (losses[2] - losses[0]).relu(), first, last


class Pretraining:
    """A pretraining in a folder: it continues from the folder's checkpoint, if there is one."""

    def __init__(
        self,
        out: Path,
        updates: int,
        seed: int,
        *,
        step_info: bool = True,
        lr: float = LR,
        first: Mapping[str, Tensor] | None = None,  # weights to start from
    ) -> None:
        torch.manual_seed(seed)
        self.seed, self.updates, self.lr, self.file = seed, updates, lr, out / CHECKPOINT
        self.model = EquivariantAdaR(step_info=step_info)
        if first is not None:
            self.model.load_state_dict(first)
        weights = [p for p in self.model.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(weights, lr, weight_decay=DECAY)
        self.done = 0
        out.mkdir(parents=True, exist_ok=True)
        if self.file.exists():
            self._load()

    def run(
        self,
        paths: Sequence[Path],
        on_update: Callable[[int, float], None] = lambda *_: None,
        *,
        all_labels: bool = True,
    ) -> None:
        """Train on episodes of graph files; a file that is given twice is drawn twice as often.

        Without `all_labels`, graphs with a train_mask give only the labels of their first split.
        """
        loaded = {path: source_of(path, all_labels=all_labels) for path in dict.fromkeys(paths)}
        sources = [loaded[path] for path in paths]
        while self.done < self.updates:
            self._optimiser.zero_grad()
            gains = []
            for number in range(EPISODES):
                random = np.random.default_rng([self.seed, self.done, number])
                task = Task.of(draw_episode(sources, random))
                loss, first, last = episode_loss(self.model, task, random)
                (loss / EPISODES).backward()  # type: ignore[no-untyped-call]
                gains.append(task.accuracy(last) - task.accuracy(first))
            self._step()
            self.done += 1
            if self.done % SAVE_EVERY == 0 or self.done == self.updates:
                self._save()
            on_update(self.done, float(np.mean(gains)))

    def _step(self) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = self.lr * lr_factor(self.done, self.updates)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self._optimiser.step()

    def _save(self) -> None:
        """Write weights, moments of the optimiser and the number of updates as one safetensors file."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for number, state in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{number}.{name}": value for name, value in state.items()}
        tensors["done"] = torch.tensor(self.done)
        write_file(self.file, safetensors.torch.save(tensors))

    def _load(self) -> None:
        tensors = safetensors.torch.load(self.file.read_bytes())
        self.model.load_state_dict(weights_in(tensors))
        settings = self._optimiser.state_dict()
        for name in tensors:
            if name.startswith("optimiser."):
                _, number, moment = name.split(".")
                settings["state"].setdefault(int(number), {})[moment] = tensors[name]
        self._optimiser.load_state_dict(settings)
        self.done = int(tensors["done"])


def weights_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model in a checkpoint."""
    return {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}


def load_model(file: Path) -> EquivariantAdaR:
    """The model of a checkpoint, with `d` of its weights."""
    weights = weights_in(safetensors.torch.load(file.read_bytes()))
    model = EquivariantAdaR(weights["cell.node_gates.step.weight"].shape[1])
    model.load_state_dict(weights)
    return model.eval()


def lr_factor(update: int, updates: int) -> float:
    """A short linear rise, then a cosine to zero."""
    return min(1.0, (update + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * update / updates))
