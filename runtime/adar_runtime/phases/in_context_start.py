"""The start of a pretrained model on a graph store: closed form and label check, before the first step.

The closed form compares all nodes with each other, so it runs in the process that starts the inference. Dense
features stay on disk; the memory holds a few arrays [n, d] and [n, c], sparse features and the edges. The
label check runs its steps over the shards.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adar_runtime.bundle import memory
from adar_runtime.bundle.label_checks import Predicted, choose
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.signature import KNOWN, STATE
from adar_runtime.errors import GraphError
from adar_runtime.graph import Floats
from adar_runtime.graph.store import GraphStore
from adar_runtime.graph.store.store import part_folder
from adar_runtime.graph.store.whole import sparse_bytes, whole_graph
from adar_runtime.in_context.label_check import STEPS, LabelCheck, folds
from adar_runtime.in_context.start import SmoothedFeatures, Start, check_can_start, known_labels
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.solvers import Euler
from adar_runtime.loop.stopping import Final
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.run_record import RunRecord
from adar_runtime.phases.shard_arrays import FolderArrays
from adar_runtime.phases.shard_worker import PLACE
from adar_runtime.phases.sharded_recurrence import ShardedRecurrence
from adar_runtime.phases.step_kinds import InContextStep, still_proxies
from adar_runtime.phases.workers import Workers

TARGETS = STATE[1]
CHECKS, SPOOL = "check", "features.raw"  # in the folder of the unfinished inference; removed after the start
EDGE_BYTES = 48  # of an edge: its ends, a sort key and its copy, and the neighbours
JOINED_COPIES = 3  # of sparse features: by part, joined, and in the order of the graph


@dataclass(frozen=True)
class StoreStart:
    """Places the nodes of a store in the folders of its shards."""

    store: GraphStore
    manifest: Manifest
    models: PhaseModels
    workers: Workers
    work: Path

    def place(self) -> tuple[InContextStep, LabelCheck | None]:
        """Place all nodes, and let hidden labels decide how strongly they move.

        Returns:
            The first step, and what the hidden labels say; None if there are none.
        """
        store = self.store
        for number in range(store.parts):  # of an interrupted start, which may not have written all of them
            (self.work / part_folder(number) / f"{PLACE}.npy").unlink(missing_ok=True)
        graph = whole_graph(store, self.work / SPOOL)
        check_can_start(graph)
        labels, count = known_labels(graph), max(store.classes, graph.targets)
        features = SmoothedFeatures.of(graph, self.manifest.features)
        del graph
        (self.work / SPOOL).unlink(missing_ok=True)
        first, found = features.start(labels, count), []
        for hidden in folds(labels):
            part = features.start(np.where(hidden, -1, labels), count, first.choice)
            scores = {0.0: part.scores[hidden], 1.0: self._moved(part)[hidden]}
            found.append(Predicted(labels[hidden], scores))
        return self._written(first), choose(found, is_chance=first.choice.is_chance)

    def _moved(self, first: Start) -> Floats:
        """The scores of all nodes after the steps of a label check, over the shards."""
        folder = self.work / CHECKS
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted inference
        folder.mkdir()
        record = RunRecord(folder, {})
        kind = self._written(first)
        recurrence = ShardedRecurrence(self.models, self.store, self.workers, record, kind)
        for _ in Loop(recurrence, self.manifest, STEPS, Final(), Euler()):
            pass
        scores = np.array(recurrence.scores(kept=False))
        shutil.rmtree(folder)
        return scores

    def _written(self, first: Start) -> InContextStep:
        """Write the first state of the nodes and their known classes to the folders of the shards."""
        for number in range(self.store.parts):
            arrays = FolderArrays(self.work / part_folder(number))
            numbers = self.store.part(number).numbers
            arrays["nodes-0"] = first.nodes[numbers]
            arrays["velocity-0"] = np.zeros_like(first.nodes[numbers])
            arrays[KNOWN] = first.known[numbers]
        still = still_proxies(self.manifest.proxies, self.manifest.hidden)
        return InContextStep(self.store.nodes, {TARGETS: first.targets} | still)


def check_can_place(store: GraphStore, manifest: Manifest, limit: int | None) -> None:
    """Refuse a store that a pretrained model cannot start from, or whose start needs too much memory."""
    labels, described = store.known_labels, store.target_features
    if described is None and labels is None:
        raise GraphError(
            "a pretrained model needs class descriptions (target_x) or known labels (y with train_mask), and "
            "the store has neither: write it from a graph file that has them (data shard)"
        )
    known = 0 if labels is None else int((labels >= 0).sum())
    classes = max(store.classes, 0 if described is None else len(described))
    sizes = store.nodes, classes, store.features, manifest.hidden
    placing = memory.placing_bytes(sizes, known, described=described is not None)
    sparse = sparse_bytes(store)
    beside = max(sparse + placing, JOINED_COPIES * sparse) + EDGE_BYTES * store.edges
    needed = memory.PROCESS + beside
    if limit is not None and needed > limit:
        raise GraphError(
            f"the closed-form start of a pretrained model places all nodes in one process, which needs about "
            f"{needed:,} bytes, and {limit:,} are allowed: allow more memory (--memory), or train a model"
        )
