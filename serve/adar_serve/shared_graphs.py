"""Graphs that stay, for several worker processes: files in one folder that every worker reads.

A graph is the file `names/NAME.json` with facts, and the folder `data/TOKEN` with its arrays; each PUT makes
a new token. A worker prepares the graph when it first needs it. The facts are replaced in one step, so that
they are read without a lock, and their time of change is the last use. The kept inference of a graph is a
mapped folder, so that all workers see changed nodes.
"""

import fcntl
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime import Bundle, Graph
from adar_runtime.errors import GraphError
from adar_runtime.graph.formats.npy import map_array, write_array
from adar_runtime.graph.formats.npz import encode, read
from adar_runtime.phases.context import Context
from adar_runtime.phases.context_files import load_context
from adar_serve.graph_store import (
    GraphFacts,
    GraphStore,
    KeptInference,
    Make,
    StoredGraph,
    no_graph,
    of_other_model,
)
from adar_serve.limits import Limits
from adar_serve.models import NAME, Model, Models
from adar_serve.refusals import RefusedError

FACTS = ".json"  # after the name of a graph
GRAPH = "graph.npz"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. It ends with the process, whatever happens."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class SharedInference(KeptInference):
    """A kept inference in files that all workers map. One of them uses it at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._data = folder
        self._lock_file, self._state_file = folder / "lock", folder / "kept.json"
        self._folder = folder / "context"
        self._edge_files = folder / "changed-nodes.npy", folder / "changed-edges.npy"
        self._made, self._updates = "", 0  # the inference that is mapped, and the updates of its edges

    @contextmanager
    def use(self, bundle: Bundle, options: dict[str, Any], make: Make) -> Iterator[Context]:
        """The inference with these options. It is made if the last one, of any worker, had others.

        Raises:
            RefusedError: The graph was replaced or removed before its inference was ready.
        """
        with self._lock, self._present():
            state = self._state()
            if state.get("changing"):
                raise RefusedError(
                    409, "a worker ended while it changed nodes of this graph: send the graph again with PUT"
                )
            if state.get("options") != options:
                self._context = None
                made = make()
                # A worker that ends after this leaves files that nobody takes for the last ones.
                self._state_file.unlink(missing_ok=True)
                made.save(self._folder)
                state = {"options": options, "made": secrets.token_hex(8), "updates": 0}
                self._write(state)
            if self._context is None or self._made != state["made"]:
                self._context = load_context(bundle, self._folder, shared=True)
                self._made, self._updates = state["made"], 0
            if self._updates != state["updates"]:
                self._context.kept.edges.take_over(*(np.array(map_array(file)) for file in self._edge_files))
                self._updates = state["updates"]
            yield self._context

    @contextmanager
    def _present(self) -> Iterator[None]:
        """Hold the lock of the graph. Files that are written after its removal are removed too."""
        try:
            with locked(self._lock_file):
                yield
        except FileNotFoundError as error:
            if self._lock_file.exists():
                raise
            raise RefusedError(409, "the graph was replaced or removed just now: ask again") from error
        finally:
            if not self._lock_file.exists():
                shutil.rmtree(self._data, ignore_errors=True)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A worker that ends inside the block leaves a mark: the rows of some calls are old, others new."""
        state = self._state()
        self._write(state | {"changing": True})
        try:
            yield
        finally:  # `Context.update` raises exceptions before it changes anything
            assert self._context is not None
            for file, array in zip(self._edge_files, self._context.kept.edges.changes, strict=True):
                write_array(file, array)
            self._updates += 1
            self._write(state | {"updates": self._updates})

    def _state(self) -> dict[str, Any]:
        try:
            return json.loads(self._state_file.read_bytes())
        except FileNotFoundError:
            return {}

    def _write(self, state: dict[str, Any]) -> None:
        _replace(self._state_file, json.dumps(state).encode())


class SharedGraphs(GraphStore):
    """The graphs by name, in a folder that all workers share.

    Args:
        limits: The limits. `graphs` is for the graphs of all workers together, counted once.
        folder: The folder, which nobody else can read.
        models: The models of this worker.
    """

    def __init__(self, limits: Limits, folder: Path, models: Models) -> None:
        super().__init__(limits)
        self._folder, self._models = folder, models
        self._names, self._data = folder / "names", folder / "data"
        for each in (self._names, self._data):
            each.mkdir(exist_ok=True)
        self._prepared: dict[str, StoredGraph] = {}  # token -> the graph in the memory of this worker
        self._preparing = threading.Lock()

    def add(self, name: str, model: Model, graph: Graph) -> tuple[GraphFacts, list[str]]:
        """Prepare a graph, and write it for all workers."""
        token = secrets.token_hex(8)
        stored = self._stored(name, model, graph, token)
        self.check_size(stored.bytes)
        (self._data / token).mkdir()
        (self._data / token / GRAPH).write_bytes(encode(graph, compressed=False))
        with self._changing():
            self._remove(name)
            self._write(stored.facts, token)
            self._prepared[token] = stored
            return stored.facts, self._evict(name)

    def account(self, graph: StoredGraph) -> list[str]:
        """Write the memory that a graph needs now, unless it was replaced or removed."""
        self.check_size(graph.bytes)
        with self._changing():
            found = self._entry(graph.name)
            if found is not None and self._prepared.get(found[1]) is graph:
                self._write(replace(found[0], bytes=max(found[0].bytes, graph.bytes)), found[1])
            return self._evict(graph.name)

    def use(self, name: str, model: Model | None = None) -> StoredGraph:
        """A graph by its name. It is read and prepared if this worker has not used it yet."""
        while True:
            facts, token = self._used(name)
            if model is not None and not facts.is_of(model):
                raise of_other_model(facts, model)
            current = model or self._models.find(facts.model, facts.version)
            found = self._prepared.get(token)
            if found is not None and found.model is current:
                return found
            try:
                return self._prepare(name, current, token)
            except GraphError:
                if self._entry(name) == (facts, token):
                    raise
                # replaced or removed just now

    def facts(self, name: str) -> GraphFacts:
        """Facts about a graph, which is now the most recently used one."""
        return self._used(name)[0]

    def remove(self, name: str) -> None:
        """Remove a graph, for all workers."""
        with self._changing():
            if not self._remove(name):
                raise no_graph(name)

    def all(self) -> list[GraphFacts]:
        """All graphs, the most recently used one last. Prepared graphs that are gone leave the memory."""
        listed = self._listed()
        tokens = {token for _, token in listed}
        for token in [*self._prepared]:
            if token not in tokens:
                self._prepared.pop(token, None)
        return [facts for facts, _ in listed]

    def _prepare(self, name: str, model: Model, token: str) -> StoredGraph:
        with self._preparing:
            found = self._prepared.get(token)  # another thread may have prepared it
            if found is None or found.model is not model:
                graph = read(self._data / token / GRAPH)
                found = self._prepared[token] = self._stored(name, model, graph, token)
            return found

    def _stored(self, name: str, model: Model, graph: Graph, token: str) -> StoredGraph:
        return StoredGraph.of(name, model, graph, SharedInference(self._data / token))

    def _used(self, name: str) -> tuple[GraphFacts, str]:
        found = self._entry(name)
        if found is None:
            raise no_graph(name)
        with suppress(FileNotFoundError):  # removed just now
            _touch(self._names / (name + FACTS))
        return found

    def _entry(self, name: str) -> tuple[GraphFacts, str] | None:
        """The facts and the token of a graph. A name from outside is checked: it becomes a path."""
        if not NAME.fullmatch(name):
            return None
        try:
            content = json.loads((self._names / (name + FACTS)).read_bytes())
        except FileNotFoundError:
            return None
        token = content.pop("token")
        return GraphFacts(**content), token

    def _listed(self) -> list[tuple[GraphFacts, str]]:
        by_time = list[tuple[int, GraphFacts, str]]()
        for path in self._names.glob(f"*{FACTS}"):
            with suppress(FileNotFoundError):
                used, found = path.stat().st_mtime_ns, self._entry(path.name.removesuffix(FACTS))
                if found is not None:
                    by_time.append((used, *found))
        return [(facts, token) for _, facts, token in sorted(by_time, key=lambda each: each[0])]

    def _write(self, facts: GraphFacts, token: str) -> None:
        path = self._names / (facts.name + FACTS)
        _replace(path, json.dumps({**facts.to_dict(), "token": token}).encode())
        _touch(path)

    def _remove(self, name: str) -> bool:
        found = self._entry(name)
        if found is None:
            return False
        (self._names / (name + FACTS)).unlink()
        gone = self._data / f"removed-{found[1]}"  # one step: a worker may still write to the folder
        with suppress(FileNotFoundError):
            (self._data / found[1]).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)  # mapped files stay until nobody maps them
        self._prepared.pop(found[1], None)
        return True

    def _evict(self, newest: str) -> list[str]:
        """Remove the graphs that were not used for the longest time, while all need too much memory."""
        left, listed = list[str](), [facts for facts, _ in self._listed()]
        others = (facts for facts in [*listed] if facts.name != newest)
        while sum(facts.bytes for facts in listed) > self.limit:
            oldest = next(others)
            listed.remove(oldest)
            self._remove(oldest.name)
            left.append(oldest.name)
        return left

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock, locked(self._folder / "lock"):
            yield


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step, for readers without a lock."""
    temporary = path.parent.parent / f"new-{secrets.token_hex(8)}"
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    """Set the time of change. That of the system is too coarse to order two uses."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))
