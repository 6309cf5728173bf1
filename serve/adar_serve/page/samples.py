"""Graphs for the page that need no file: the synthetic families that fit a bundle, and random communities."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from adar_runtime import Graph
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import UsageError
from adar_runtime.graph import EDGE, NODE
from adar_runtime.graph.synthetic import FAMILIES, make

SIZES = (400, 1_000, 2_500, 10_000)  # nodes; a family may make a few more or less
SEEDS = 10_000
BOARD = "minesweeper"  # its nodes are the cells of a square
COMMUNITIES = "communities"
MAX_COMMUNITIES = 8
PAIRS = 1_000


@dataclass(frozen=True)
class Sample:
    """A kind of graph that a model takes.

    Attributes:
        name: Its name in requests.
        about: One sentence: what the model has to predict.
        sizes: Numbers of nodes to choose from.
        make: Makes a graph from a number of nodes and a seed.
    """

    name: str
    about: str
    sizes: tuple[int, ...]
    make: Callable[[int, int], Graph]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "about": self.about, "nodes": list(self.sizes)}


def samples_for(manifest: Manifest, most: int) -> dict[str, Sample]:
    """The samples of at most `most` nodes that a bundle takes, by name."""
    found = [_family(name, manifest, most) for name in FAMILIES]
    found.append(_communities(manifest, most))
    return {each.name: each for each in found if each is not None and each.sizes}


def _family(name: str, manifest: Manifest, most: int) -> Sample | None:
    """A synthetic family, if it has the features and the classes of the bundle."""
    if manifest.targets is None or manifest.regression:
        return None
    settings = {"classes": manifest.targets} if "classes" in FAMILIES[name].settings else {}
    made = partial(_make_family, name, settings)
    sizes = [size for size in SIZES if size <= most]
    while sizes:
        try:
            graph = made(sizes[0], 0)
        except UsageError:  # the family needs more nodes for these classes
            sizes.pop(0)
            continue
        names = manifest.class_names or graph.class_names
        shapes = (graph.width, graph.targets, graph.level, graph.class_names)
        if shapes == (manifest.features, manifest.targets, manifest.level, names):
            return Sample(name, FAMILIES[name].about, tuple(sizes), made)
        return None
    return None


def _make_family(name: str, settings: dict[str, Any], nodes: int, seed: int) -> Graph:
    return make(name, nodes=nodes, seed=seed, **settings)


def _communities(manifest: Manifest, most: int) -> Sample:
    """Random communities, with the features that the bundle needs."""
    about = "communities around random centres, which describe the classes"
    if manifest.targets is not None:
        about = "communities with random features: shows the loop, not the accuracy of the model"
    sizes = tuple(size for size in SIZES if size <= most)
    return Sample(COMMUNITIES, about, sizes, partial(communities, manifest))


def communities(manifest: Manifest, nodes: int, seed: int) -> Graph:
    """Communities whose nodes have the features of a random centre, plus noise.

    A model that takes descriptions gets the centres as the descriptions of its classes, and the communities
    as labels. For other models the features have no meaning, so the graph has no labels.
    """
    count = min(max(2, manifest.targets or 4), MAX_COMMUNITIES)
    graph = make("blocks", nodes=nodes, classes=count, seed=seed)
    random = np.random.default_rng(seed)
    centres = random.normal(size=(count, manifest.features)).astype(np.float32)
    noise = random.normal(size=(nodes, manifest.features)).astype(np.float32)
    assert graph.labels is not None
    described = manifest.targets is None
    return replace(
        graph,
        features=centres[graph.labels] + noise,
        labels=graph.labels if described and manifest.level == NODE else None,
        train_mask=None,
        val_mask=None,
        test_mask=None,
        target_features=centres if described else None,
        class_names=tuple(f"community {number}" for number in range(count)) if described else None,
        pairs=random.integers(0, nodes, (2, PAIRS)) if manifest.level == EDGE else None,
        level=manifest.level,
    )
