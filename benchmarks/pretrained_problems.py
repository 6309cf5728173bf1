"""Validation problems for the closed-form start of the pretrained model, drawn once and kept in a folder.

No problem comes from cora-text, which is a test set. Problems with class descriptions are sets of classes of
the two other graphs with descriptions, block models, and graphs whose descriptions are made near the class
means. Problems with labels are whole graphs and sets of classes. coauthor-cs and amazon-computers have other
draws of labels here than in `benchmarks.pretrained`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from adar_runtime import Graph, read_graph, write_graph
from adar_train.data.context_episodes import block_model, made_descriptions, stored
from adar_train.data.episodes import EpisodeSource
from benchmarks.pretrained import few_labels
from benchmarks.pretrained_validation import class_sets

SETS, BLOCK_MODELS, MADE = 10, 20, 3  # problems of one kind
SET_NODES = 5_000  # at most, in a set of classes
EPISODE_NODES, SPARSE_NODES = (600, 2_000), (2_000, 3_000)
SPARSE_CLASSES, SPARSE_DEGREE = (5, 9), 4.0
MADE_KINDS = ("acm", "dblp-words", "blogcatalog", "flickr")
HARD_KINDS = ("actor", "chameleon-filtered", "twitch-engb", "twitch-es", "twitch-ptbr")  # results vary most
LABEL_KINDS = (*MADE_KINDS, *HARD_KINDS, "wisconsin")
COUNTED_KINDS = ("acm", "dblp-words", "blogcatalog", "wisconsin")  # with other numbers of labels
LEFT_OUT_KINDS = ("coauthor-cs", "amazon-computers")  # word counts; each is left out in turn
LABELS, DRAWS, MORE_DRAWS, MOST_DRAWS, FIRST_DRAW = 5, 3, 6, 24, 100

Drawing = Callable[[np.random.Generator], Iterator[Graph]]


@dataclass(frozen=True)
class Problems:
    """The problems of one kind. Labels outside of train_mask are to be predicted."""

    task: str  # descriptions, labels or both
    kind: str
    graphs: Sequence[Graph]


@dataclass(frozen=True)
class ProblemFolder:
    """The problems of all kinds, from the graph files in `data`. Drawn problems are kept in `kept`."""

    data: Path
    kept: Path

    def described(self) -> Iterator[Problems]:
        """Problems with descriptions and without labels."""
        for kind in self._kinds:
            yield Problems("descriptions", kind, self._described(kind))

    def both(self) -> Iterator[Problems]:
        """Problems with descriptions and a few labels of each class."""
        for kind in self._kinds:
            if kind != "arXiv whole":
                draws = DRAWS if kind == "dblp whole" else 1
                yield Problems("both", kind, _with_labels(self._described(kind)[:6], LABELS, draws))

    def labelled(self) -> Iterator[Problems]:
        """Problems with a few labels of each class and without descriptions."""
        texts = {"dblp-text": "dblp whole", "arXiv natural": "arXiv natural", "arXiv sparse": "arXiv sparse"}
        for name in (*LABEL_KINDS, *texts):
            graphs = self._described(texts[name])[:4] if name in texts else self._files([name])
            draws = MOST_DRAWS if name in HARD_KINDS else DRAWS
            yield Problems("labels", name, _without_descriptions(_with_labels(graphs, LABELS, draws)))
        blocks = _with_labels(self._described("block models"), LABELS, 1)
        yield Problems("labels", "block models", _without_descriptions(blocks))
        for count in (1, 20):
            graphs = _with_labels(self._files(COUNTED_KINDS), count, DRAWS)
            yield Problems("labels", f"{count} of each class", graphs)
        for name in LEFT_OUT_KINDS:
            for count in (1, LABELS, 20):
                draws = MORE_DRAWS if count == LABELS else DRAWS
                yield Problems("labels", f"{name}, {count} labels", self._counted(name, count, draws))

    @cached_property
    def _kinds(self) -> dict[str, Drawing]:
        """How the problems with descriptions are drawn."""
        arxiv, dblp = self._source("arxiv-2023-text"), self._source("dblp-text")
        return {
            "arXiv natural": lambda random: islice(class_sets(arxiv, random, SET_NODES), SETS),
            "arXiv even": lambda random: _episodes(arxiv, random, patches=True),
            "arXiv one patch": lambda random: _episodes(arxiv, random, patches=False),
            "arXiv sparse": lambda random: islice(_sparse(arxiv, random), SETS),
            "arXiv whole": lambda _: iter([arxiv.graph]),
            "dblp whole": lambda _: iter([dblp.graph]),
            "dblp thinned": lambda random: (_thinned(dblp.graph, random) for _ in range(MADE)),
            "dblp sets": lambda random: islice(class_sets(dblp, random, dblp.graph.nodes), 4),
            "dblp even": lambda random: _episodes(dblp, random, patches=True),
            "block models": lambda random: (block_model(random, 1_000) for _ in range(BLOCK_MODELS)),
            **{name: self._made(name) for name in MADE_KINDS},
        }

    def _made(self, name: str) -> Drawing:
        """A graph with made descriptions."""

        def drawing(random: np.random.Generator) -> Iterator[Graph]:
            [graph] = self._files([name])
            for _ in range(MADE):
                yield replace(graph, target_features=made_descriptions(graph, random))

        return drawing

    def _source(self, name: str) -> EpisodeSource:
        read = read_graph(self.data / f"{name}.npz")
        graph = replace(read, train_mask=None, val_mask=None, test_mask=None)
        return EpisodeSource(graph, np.arange(graph.nodes))

    def _described(self, kind: str) -> list[Graph]:
        return self._read_or_drawn(kind, self._kinds[kind])

    def _counted(self, name: str, count: int, draws: int) -> list[Graph]:
        """A graph of the folder with all its columns, and draws of `count` labels of each class."""
        return _with_labels([self._source(name).graph], count, draws)

    def _files(self, names: Sequence[str]) -> list[Graph]:
        """Graphs of the folder more/, with the columns that pretraining uses."""

        def drawing(name: str) -> Drawing:
            return lambda _: iter([stored(read_graph(self.data / "more" / f"{name}.npz"))])

        return [graph for name in names for graph in self._read_or_drawn(f"file {name}", drawing(name))]

    def _read_or_drawn(self, kind: str, drawing: Drawing) -> list[Graph]:
        """The kept problems of a kind; if there are none, new ones."""
        folder = self.kept / kind.replace(" ", "-")
        if not folder.exists():
            random = np.random.default_rng([ord(letter) for letter in kind])
            folder.mkdir(parents=True)
            for number, graph in enumerate(drawing(random)):
                write_graph(folder / f"{number:02}.npz", graph)
        return [read_graph(path) for path in sorted(folder.iterdir())]


def _episodes(source: EpisodeSource, random: np.random.Generator, *, patches: bool) -> Iterator[Graph]:
    return (source.draw(random, EPISODE_NODES, patches=patches) for _ in range(SETS))


def _sparse(source: EpisodeSource, random: np.random.Generator) -> Iterator[Graph]:
    """Sets of a few classes, with about four neighbours of each node."""
    while True:
        graph = source.draw(random, SPARSE_NODES, patches=True)
        has_classes = SPARSE_CLASSES[0] <= graph.targets <= SPARSE_CLASSES[1]
        if has_classes and graph.nodes >= SPARSE_NODES[0] and graph.edges >= SPARSE_DEGREE * graph.nodes:
            yield _thinned(graph, random)


def _thinned(graph: Graph, random: np.random.Generator) -> Graph:
    """The graph with SPARSE_DEGREE neighbours on average: random edges are left out, in both directions."""
    low, high = np.sort(graph.edge_index, axis=0).astype(np.int64)
    _, link = np.unique(low * graph.nodes + high, return_inverse=True)
    kept = random.random(link.max() + 1) < SPARSE_DEGREE * graph.nodes / graph.edges
    return replace(graph, edge_index=graph.edge_index[:, kept[link]])


def _with_labels(graphs: Sequence[Graph], count: int, draws: int) -> list[Graph]:
    seeds = range(FIRST_DRAW, FIRST_DRAW + draws)
    return [few_labels(graph, count, seed) for graph in graphs for seed in seeds]


def _without_descriptions(graphs: Sequence[Graph]) -> list[Graph]:
    return [replace(graph, target_features=None) for graph in graphs]
