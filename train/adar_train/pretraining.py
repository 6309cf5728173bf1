"""Pretraining of the equivariant variant on episodes of many graphs. `make pretrain` runs it.

An episode is a small task: classes, nodes and edges of one graph (or of a generated graph), with class
descriptions, with a few labels, or with both. Every update has some episodes without known labels and some
with labels; each kind trains gates of its own. The start is the closed form of `adar_runtime.in_context`; the
gates learn to improve it. Checkpoints hold the updates done, the weights and the optimiser. A killed
pretraining continues from the last one with the same episodes: each update has a random generator of its own.

Episodes do not depend on the gates. A folder keeps them placed, so several trainings with the same graphs and
the same seed (ablations, more updates) place them once.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional

import adar_runtime.graph
import adar_runtime.in_context
import adar_train.data
from adar_runtime.files import write_file
from adar_runtime.graph import Graph
from adar_runtime.graph.formats import read_graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.in_context.start import known_labels
from adar_runtime.loop.schedule import times
from adar_train.data.context_episodes import draw_episode, source_of
from adar_train.data.episodes import EpisodeSource
from adar_train.equivariant import EquivariantAdaR, PlacedGraph

STEPS = (4, 12)  # range of the number of steps of an update
LR, WARMUP, CLIP, DECAY = 3e-3, 20, 1.0, 1e-4
MIDDLE = 0.5  # weight of the loss at a random step before the last
WORSE = 3.0  # weight of what an episode ends worse than it starts
PLAIN = 0.1  # weight of the cross-entropy at the end, so that scores are probabilities
FACTORS = (2.0, 4.0)  # of scores, in the smooth error
EPISODES = 4  # of each task in one update
BLOCK, PASSES = 50, 4  # the episodes of 50 updates are used four times: placing one costs as much as a use
SAVE_EVERY = 20
EPISODE_CODE = (adar_runtime.graph, adar_runtime.in_context, adar_train.data)  # it draws and places episodes
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Task:
    """A graph, with the labels to predict. Several graphs have a first dimension more."""

    graph: PlacedGraph
    labels: Tensor  # [n], -1 where a label is unknown or given

    @classmethod
    def of(cls, graph: Graph) -> "Task":
        assert graph.labels is not None
        labels = np.where(known_labels(graph) >= 0, -1, graph.labels)
        return cls(PlacedGraph.of(graph), torch.from_numpy(labels.astype(np.int64)))

    @classmethod
    def read(cls, file: Path) -> "Task":
        """A task that `write` wrote."""
        tensors = safetensors.torch.load(file.read_bytes())
        edges = Neighbours(tensors["starts"].numpy(), tensors["sources"].numpy())
        nodes, targets, known = (tensors[name] for name in ("nodes", "targets", "known"))
        return cls(PlacedGraph.at(nodes, targets, known, edges), tensors["labels"])

    def write(self, file: Path) -> None:
        """Write the task of one graph as a safetensors file."""
        first, edges = self.graph.first, self.graph.edges
        tensors = {"nodes": first.nodes, "targets": first.targets, "known": self.graph.known}
        tensors |= {"starts": torch.from_numpy(edges.starts), "sources": torch.from_numpy(edges.sources)}
        write_file(file, safetensors.torch.save(tensors | {"labels": self.labels}))

    @classmethod
    def joined(cls, tasks: "Sequence[Task]") -> "Task":
        """Several tasks side by side."""
        rows = max(len(task.labels) for task in tasks)
        labels = [functional.pad(task.labels, (0, rows - len(task.labels)), value=-1) for task in tasks]
        return cls(PlacedGraph.joined([task.graph for task in tasks]), torch.stack(labels))

    def losses(self, scores: Tensor) -> Tensor:
        """The smooth error of each graph: the mean of 1 − p(label), with scores that are larger than given.

        It is near the share of wrong predictions. Larger scores alone reduce the cross-entropy, but hardly
        this loss.
        """
        wanted = self.labels.clamp(min=0)[..., None]
        right = [(factor * scores).softmax(dim=-1).gather(-1, wanted)[..., 0] for factor in FACTORS]
        return self._means(1 - torch.stack(right).mean(dim=0))

    def cross_entropies(self, scores: Tensor) -> Tensor:
        """The cross-entropy of each graph."""
        return self._means(
            functional.cross_entropy(scores.mT, self.labels, ignore_index=-1, reduction="none")
        )

    def _means(self, values: Tensor) -> Tensor:
        chosen = self.labels >= 0
        return (values * chosen).sum(dim=-1) / chosen.sum(dim=-1)

    def accuracies(self, scores: Tensor) -> Tensor:
        """The share of right predictions among the nodes to predict, of each graph."""
        return self._means((scores.argmax(dim=-1) == self.labels).float())


def drawn_steps(random: np.random.Generator) -> tuple[int, int]:
    """The number of steps of some episodes, and a step before the last one."""
    steps = int(random.integers(STEPS[0], STEPS[1] + 1))
    return steps, int(random.integers(1, steps))


def episode_loss(
    model: EquivariantAdaR, task: Task, steps: int, between: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean loss of joined episodes, and their scores at the start and at the end.

    Episodes that end worse than they start count more: the gates learn when to stay at the closed form.
    """
    states = list(model.trajectory(task.graph, times(steps).tolist()))
    chosen = (states[0], states[between], states[-1])
    first, middle, last = (model.scores(state, task.graph) for state in chosen)
    before, during, after = (task.losses(scores) for scores in (first, middle, last))
    worse = (after - before).relu()
    losses = after + MIDDLE * during + WORSE * worse + PLAIN * task.cross_entropies(last)
    return losses.mean(), first, last


@dataclass(frozen=True)
class Sources:
    """The graph files of a pretraining; a file that is given twice is drawn twice as often.

    Without `all_labels`, graphs with a train_mask give only the labels of their first split.
    `read` reads each file once.
    """

    paths: Sequence[Path]
    all_labels: bool = True
    read: Callable[[Path], Graph] = read_graph

    @cached_property
    def graphs(self) -> list[tuple[EpisodeSource, bool]]:
        source = partial(source_of, all_labels=self.all_labels, read=self.read)
        loaded = {path: source(path) for path in dict.fromkeys(self.paths)}
        return [loaded[path] for path in self.paths]

    def digest(self, seed: int) -> str:
        """What the episodes of a seed depend on: the files, and the code that draws and places them."""
        folders = (Path(module.__path__[0]) for module in EPISODE_CODE)
        code = (file for folder in folders for file in sorted(folder.rglob("*.py")))
        found = hashlib.sha256(f"{seed} {self.all_labels}".encode())
        for file in (*self.paths, *code):
            found.update(hashlib.sha256(file.read_bytes()).digest())
        return found.hexdigest()


@dataclass
class _Episodes:
    """The episodes of each update. They depend on the seed and on the number of the update only."""

    sources: Sources
    seed: int
    labelled: bool
    folder: Path | None  # keeps the episodes
    _block: int = -1
    _tasks: dict[int, Task] = field(default_factory=dict)

    def of_update(self, update: int) -> Task:
        """The EPISODES episodes of an update. Each episode of a block occurs once in every pass."""
        block, within = divmod(update, BLOCK * PASSES)
        if block != self._block:
            self._block, self._tasks = block, {}
        turn, position = divmod(within, BLOCK)
        order = np.random.default_rng([self.seed, self.labelled, block, turn]).permutation(BLOCK * EPISODES)
        numbers = order[position * EPISODES : (position + 1) * EPISODES].tolist()
        return Task.joined([self._task(block, number) for number in numbers])

    def _task(self, block: int, number: int) -> Task:
        if number not in self._tasks:
            self._tasks[number] = self._kept(block, number)
        return self._tasks[number]

    def _kept(self, block: int, number: int) -> Task:
        """An episode of the folder; it is drawn if the folder does not have it."""
        if self.folder is None:
            return self._drawn(block, number)
        file = self.folder / f"{'labels' if self.labelled else 'descriptions'}-{block}-{number}.safetensors"
        if not file.exists():
            self._drawn(block, number).write(file)
        return Task.read(file)

    def _drawn(self, block: int, number: int) -> Task:
        random = np.random.default_rng([self.seed, self.labelled, block, PASSES, number])
        return Task.of(draw_episode(self.sources.graphs, random, labelled=self.labelled))


class Pretraining:
    """A pretraining in a folder: it continues from the folder's checkpoint, if there is one."""

    def __init__(
        self,
        out: Path,
        updates: int,
        seed: int,
        without: str | None = None,
        *,
        lr: float = LR,
        first: Mapping[str, Tensor] | None = None,  # weights to start from
    ) -> None:
        torch.manual_seed(seed)
        self.seed, self.updates, self.lr, self.file = seed, updates, lr, out / CHECKPOINT
        self.model = EquivariantAdaR(without=without)
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
        episodes: Path | None = None,
        read: Callable[[Path], Graph] = read_graph,
    ) -> None:
        """Train on episodes of graph files, see `Sources`. The folder `episodes` keeps them placed."""
        sources = Sources(paths, all_labels, read)
        folder = None if episodes is None else episodes / sources.digest(self.seed)
        kinds = [_Episodes(sources, self.seed, labelled, folder) for labelled in (False, True)]
        while self.done < self.updates:
            random = np.random.default_rng([self.seed, self.done])
            self._optimiser.zero_grad()
            gains = [self._gain(each.of_update(self.done), *drawn_steps(random)) for each in kinds]
            self._step()
            self.done += 1
            if self.done % SAVE_EVERY == 0:
                self._save()
            on_update(self.done, float(np.mean(gains)))
        self._save()

    def _gain(self, task: Task, steps: int, between: int) -> float:
        """Add the gradients of one task, and return its mean gain of accuracy over the start."""
        loss, first, last = episode_loss(self.model, task, steps, between)
        loss.backward()  # type: ignore[no-untyped-call]
        return float((task.accuracies(last) - task.accuracies(first)).mean())

    def _step(self) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = self.lr * lr_factor(self.done, self.updates)
        for number in range(2):  # each task has gates of its own
            own = [weight for name, weight in self.model.named_parameters() if f"_gates.{number}." in name]
            torch.nn.utils.clip_grad_norm_(own, CLIP)
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
    model = EquivariantAdaR(weights["cell.node_gates.0.step.weight"].shape[1])
    model.load_state_dict(weights)
    return model.eval()


def lr_factor(update: int, updates: int) -> float:
    """A short linear rise, then a cosine to zero."""
    return min(1.0, (update + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * update / updates))
