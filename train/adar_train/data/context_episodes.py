"""Episodes for the pretrained model: small tasks with class descriptions, with a few labels, or with both.

They come from graph files and from generated block models. `adar_train.data.episodes` samples classes, nodes
and edges of a file; here features get noise, classes are merged, labels are given, and classes without
descriptions get some.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import NODE, Floats, Graph, Mask
from adar_runtime.graph.formats import read_graph
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.graph.smoothing import Smoothing
from adar_runtime.in_context.features import UnitRows, leading_directions, unit_rows
from adar_runtime.in_context.start import can_start
from adar_train.data.episodes import EpisodeSource

STORED_COLUMNS = 128  # of the features that episodes are drawn from
NODES = (300, 700)  # range of the number of nodes of an episode
ONE_PATCH = 0.25  # share of the episodes of files with all nodes around one seed
LABELS = (1, 10)  # range of the known labels of a class
FEWEST_LABELS = 100  # of a graph: episodes consist of nodes with labels
GENERATED = 0.25  # share of episodes from generated graphs
NOISY = MERGED = 0.25  # shares of episodes with noise in the features, and with two classes as one
BOTH = 0.25  # share of episodes with labels that also have descriptions
WRONG, VAGUE = 0.7, 2.0  # largest parts of another class and of noise in a made description


def stored(graph: Graph) -> Graph:
    """The graph with at most STORED_COLUMNS dense columns, to draw episodes from."""
    smoothing = Smoothing(Neighbours.in_graph(graph), 1)
    described = graph.target_features
    first = np.zeros((0, graph.width), np.float32) if described is None else described
    rows = UnitRows(graph)
    basis = leading_directions(rows, smoothing, STORED_COLUMNS, first)
    targets = None if described is None else unit_rows(described) @ basis
    return Graph(rows.times(basis), graph.edge_index, graph.labels, target_features=targets)


def source_of(
    path: Path, *, all_labels: bool = True, read: Callable[[Path], Graph] = read_graph
) -> tuple[EpisodeSource, bool]:
    """The episodes of a graph file, and whether its classes are described.

    Without `all_labels`, a graph with a train_mask gives only the labels of its first split. `read` reads it.
    """
    whole = read(path)
    if whole.labels is None or whole.level != NODE or whole.regression:
        raise GraphError(f"{path} has no classes of nodes (y) to train on: give another graph")
    mask = None if all_labels else whole.labelled("train")
    chosen = np.flatnonzero(whole.labels >= 0 if mask is None else mask)
    if len(chosen) < FEWEST_LABELS:
        raise GraphError(
            f"{path} has {len(chosen)} labels to train on, and {FEWEST_LABELS} are needed: run the "
            "pretrained model as it is, which uses the labels of train_mask"
        )
    graph = stored(whole)
    is_described = graph.target_features is not None
    if not is_described:
        graph = replace(graph, target_features=np.zeros((graph.targets, graph.width), np.float32))
    return EpisodeSource(graph, chosen), is_described


def draw_episode(
    sources: Sequence[tuple[EpisodeSource, bool]], random: np.random.Generator, *, labelled: bool
) -> Graph:
    """A small graph with class descriptions, or with a train_mask of few labels (and sometimes with both)."""
    while True:
        graph = _drawn(sources, random, labelled=labelled)
        if can_start(graph):  # rarely, all sampled nodes have one class
            return graph


def _drawn(
    sources: Sequence[tuple[EpisodeSource, bool]], random: np.random.Generator, *, labelled: bool
) -> Graph:
    if not sources or random.random() < GENERATED:
        graph = block_model(random)
    else:
        source, is_described = sources[int(random.integers(len(sources)))]
        graph = source.draw(random, NODES, patches=random.random() >= ONE_PATCH)
        if not is_described:
            graph = replace(graph, target_features=made_descriptions(graph, random))
    if random.random() < NOISY:
        graph = replace(graph, features=_noisy(graph.rows(0, graph.nodes), random))
    if random.random() < MERGED and graph.targets > 3:
        graph = _merged(graph, random)
    if not labelled:
        return graph
    keeps_descriptions = random.random() < BOTH
    described = graph.target_features if keeps_descriptions else None
    return replace(graph, train_mask=_few(graph, random), target_features=described)


def made_descriptions(graph: Graph, random: np.random.Generator) -> Floats:
    """Descriptions as texts could give them: near the mean of a class, near another class, and noisy."""
    rows = unit_rows(graph.rows(0, graph.nodes))
    assert graph.labels is not None
    members = np.eye(graph.targets, dtype=np.float32)[graph.labels.astype(np.int64)]
    means = unit_rows(members.T @ (rows - rows.mean(axis=0)))
    others = means[random.permutation(graph.targets)]
    noise = unit_rows(random.standard_normal(means.shape).astype(np.float32))
    found: Floats = means + np.float32(random.uniform(0, WRONG)) * others
    return found + np.float32(random.uniform(0, VAGUE)) * noise


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
