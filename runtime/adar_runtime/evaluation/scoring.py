"""Choose the outputs to score: a training graph is scored on the test part of its training split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adar_runtime.evaluation.metrics import scored_part
from adar_runtime.evaluation.training_data import KEY, TrainingData
from adar_runtime.graph import ALL, EDGE, GRAPH, NODE, PARTS, Graph, Mask
from adar_runtime.in_context.start import of_split

OVERLAP = 0.2  # least share of scored outputs that look trained on, for a warning
UNITS = {NODE: "nodes", EDGE: "pairs", GRAPH: "graphs"}


@dataclass(frozen=True, eq=False)
class Scored:
    """Graphs with the masks to score them by."""

    graphs: list[Graph]
    part: str  # "test", or "all" where there is no test part
    recognised: bool = False  # the masks are those of the training split
    warnings: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What is scored: "test labels" or, on a training graph, "test nodes of the training split"."""
        return scored_title(self.part, self.graphs[0].level, recognised=self.recognised)


def scored_title(part: str, level: str, *, recognised: bool) -> str:
    """What a metric was measured on, for people."""
    return f"{part} {UNITS[level]} of the training split" if recognised else f"{part} labels"


def choose_outputs(training: Mapping[str, Any], graphs: Sequence[Graph], split: int = 0) -> Scored:
    """Give training graphs without a test mask the masks that the model was trained with.

    Args:
        training: The manifest's `training`, or the same of a run; without a record of the training data,
            the graphs stay as they are.
        graphs: The graphs that are scored together. Masks of their own are kept.
        split: Number of the split, for graphs with masks.

    Returns:
        The graphs, the part to score, and warnings where trained outputs are scored.

    Raises:
        BundleError: The record of the training data is damaged.
        GraphError: A graph has no such split.
    """
    data, warnings = TrainingData(training.get(KEY)), []
    masks = [None if graph.labels is None else data.split_of(graph) for graph in graphs]
    filled = [_fill(graph, of_one, split) for graph, of_one in zip(graphs, masks, strict=True)]
    recognised = any(new is not old for new, old in zip(filled, graphs, strict=True))
    if recognised:  # new graphs among training graphs are test graphs
        everything = [np.ones((split + 1, graph.outputs), np.bool_) for graph in filled]
        filled = [
            replace(graph, test_mask=every) if graph.test_mask is None else graph
            for graph, every in zip(filled, everything, strict=True)
        ]
    part = scored_part(filled)
    unit = UNITS[graphs[0].level]
    if recognised and all(graph.labelled(part, split) is None for graph in filled):
        part, recognised, filled = ALL, False, list(graphs)
        warnings.append(f"all labelled {unit} were used for training or validation: the score is too high")
    else:
        warnings += _leaks(data, filled, masks, part, split, training.get("split"))
    return Scored(filled, part, recognised, warnings)


def choose_unknown(training: Mapping[str, Any], graphs: Sequence[Graph], split: int) -> Scored:
    """Like `choose_outputs`, for a model that uses the labels of train_mask: the others are scored.

    Returns:
        The graphs with one split, number 0.
    """
    given = [of_split(graph, split) for graph in graphs]
    found = choose_outputs(training, given)
    # Labels of its training are not known to the model here, unless the graph says so.
    pairs = zip(found.graphs, given, strict=True)
    found = replace(found, graphs=[replace(new, train_mask=old.train_mask) for new, old in pairs])
    scored, known = 0, 0
    for graph in found.graphs:
        chosen, told = graph.labelled(found.part), graph.labelled("train")
        scored += 0 if chosen is None else int(chosen.sum())
        known += 0 if chosen is None or told is None else int((chosen & told).sum())
    if known:
        found.warnings.append(
            f"the model knew {known:,} of the {scored:,} scored labels (train_mask): the score is too high"
        )
    return found


def _fill(graph: Graph, masks: dict[str, Mask] | None, split: int) -> Graph:
    """The graph with the masks of its training, unless it has a test mask; the same masks for every split.

    Without a test part, the outputs that were in no part are the test part.
    """
    if masks is None or graph.test_mask is not None:
        return graph
    known = graph.labelled(ALL)
    if known is not None and not masks["test"].any() and graph.level != GRAPH:
        masks = masks | {"test": known & ~masks["train"] & ~masks["val"]}
    rows: dict[str, Any] = {f"{part}_mask": np.tile(masks[part], (split + 1, 1)) for part in PARTS}
    return replace(graph, **rows)


def _leaks(
    data: TrainingData,
    graphs: Sequence[Graph],
    masks: Sequence[dict[str, Mask] | None],
    part: str,
    split: int,
    trained_split: Any,
) -> list[str]:
    """A warning if outputs are scored that were trained on."""
    scored = [graph.labelled(part, split) for graph in graphs]
    total = sum(int(mask.sum()) for mask in scored if mask is not None)
    certain, estimated = 0, 0.0
    for graph, chosen, known in zip(graphs, scored, masks, strict=True):
        if chosen is None:
            continue
        if known is not None:
            certain += int((chosen & known["train"]).sum())
        else:
            estimated += data.trained_share(graph, chosen) * int(chosen.sum())
    unit = UNITS[graphs[0].level]
    if certain:
        other = isinstance(trained_split, int) and trained_split != split
        advice = f"; the model was trained on split {trained_split} (--split)" if other else ""
        return [f"{certain:,} of {total:,} scored {unit} were trained on: the score is too high{advice}"]
    if total and estimated / total >= OVERLAP:
        share = f"about {100 * estimated / total:.0f} % of the scored {unit}"
        return [f"{share} look like training {unit}: the score may be too high; give the graph a test_mask"]
    return []
