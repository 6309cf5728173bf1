"""A bundle: a folder on disk -> something that runs."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from adar_runtime.backends import AUTO, TENSORRT, Settings, open_backend
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle import memory, onnx_guard, signature
from adar_runtime.bundle.convergence import behaves_like_ode, measured_settings
from adar_runtime.bundle.manifest import Manifest, OnnxFile
from adar_runtime.errors import BundleError, GraphError, UsageError, reason, short
from adar_runtime.files import read_own
from adar_runtime.graph import EDGE, Graph
from adar_runtime.graph.labels import split_trained_on
from adar_runtime.loop.loop import Loop, Result, check_budget
from adar_runtime.loop.prefetch import read_ahead
from adar_runtime.loop.solvers import SOLVERS, Euler, Solver, make_solver
from adar_runtime.loop.stopping import StopRule, is_exit_time, make_rule

MAX_BYTES = 2**31  # protobuf's own limit for one ONNX file
MAX_THREADS = 1024


def load(
    path: str | Path,
    backend: str = AUTO,
    threads: int | None = None,
    *,
    rebuild: bool = False,
    trust_engines: bool | None = None,
) -> "Bundle":
    """Open a bundle on one of `adar_runtime.backends.BACKENDS` or, with "auto", on the best that works.

    With `rebuild`, TensorRT engines that do not fit are built again instead of refused. An engine is a
    program: `trust_engines` says whether one that was not built on this machine may be loaded. Who asks for
    the backend "tensorrt" and says nothing of trust trusts; who asks for any other does not.
    """
    return Bundle(Path(path), backend, threads, rebuild=rebuild, trust_engines=trust_engines)


class Bundle:
    """An exported model, checked and ready to run any graph for any budget."""

    def __init__(
        self,
        path: Path,
        backend: str = AUTO,
        threads: int | None = None,
        *,
        rebuild: bool = False,
        trust_engines: bool | None = None,
    ) -> None:
        if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS):
            raise UsageError(f"threads is {short(repr(threads))}: choose 1 to {MAX_THREADS}")
        self.path = path
        self.manifest, onnx_models = read_bundle(path)
        trusted = backend == TENSORRT if trust_engines is None else trust_engines
        self.backend = open_backend(
            backend, onnx_models, self.manifest, Settings(threads, path, rebuild, trusted)
        )
        signature.check(self.manifest, self.backend.ports)

    def run(
        self, graph: Graph, budget: int = 300, stop: StopRule | None = None, solver: Solver | str = "euler"
    ) -> Result:
        """Loop to the end that the rule chooses."""
        loop = self.loop(graph, budget, stop, solver)
        for _ in loop:
            pass
        return loop.result()

    def run_many(
        self,
        graphs: Iterable[Graph],
        budget: int = 300,
        stop: StopRule | None = None,
        solver: Solver | str = "euler",
    ) -> Iterator[Result]:
        """The results of many graphs, in their order; the next graph is fetched while one is computed.

        Give a generator such as `(read_graph(path) for path in paths)`, so that fetching is reading.
        """
        for graph in read_ahead(graphs):
            yield self.run(graph, budget, stop, solver)

    def loop(
        self, graph: Graph, budget: int = 300, stop: StopRule | None = None, solver: Solver | str = "euler"
    ) -> Loop:
        """The same, to be driven step by step."""
        started = time.perf_counter()
        check_budget(budget)
        self._check(graph)
        memory.check(graph, self.manifest)
        stop = self.stop_rule() if stop is None else stop
        solver = self.solver(solver) if isinstance(solver, str) else self._fitting(solver)
        recurrence = self.backend.start(graph)
        prepared = time.perf_counter() - started
        return Loop(recurrence, self.manifest, budget, stop, solver, prepared, self._class_names(graph))

    def stop_rule(self, name: str | None = None, **settings: Any) -> StopRule:
        """A new rule: the one that the bundle asks for, or another by its name."""
        own, calibrated = self.manifest.exit, self.manifest.training.get("exit_time")
        chosen: dict[str, Any] = dict(own) if name in (None, own.get("rule")) else {"rule": name}
        if chosen["rule"] == "peak" and is_exit_time(calibrated):
            chosen = {"fallback": calibrated} | chosen
        if name == "time" and "t" not in chosen:
            chosen["t"] = calibrated
            if calibrated is None:
                raise UsageError("the bundle has no calibrated exit time: use another --exit, such as peak")
        return make_rule(chosen | settings)

    def solver(self, name: str = "euler", **settings: Any) -> Solver:
        """A solver by its name, with what was measured to be enough where no settings are given."""
        if name != "euler":
            self._check_order(repr(name))
        if name in SOLVERS and name != "euler" and not settings:
            measured = measured_settings(self.manifest, name)
            if measured is None:
                raise UsageError(
                    f"the solver {name!r} was not measured to come to the answer of many steps with this "
                    "bundle: give --calls (ab2) or --tolerance (adaptive), or use euler"
                )
            settings = measured
        return make_solver(name, **settings)

    def _fitting(self, solver: Solver) -> Solver:
        """A solver of the caller's own: what holds for a name holds for it."""
        if not isinstance(solver, Euler):
            self._check_order(type(solver).__name__)
        return solver

    def _check_order(self, solver: str) -> None:
        if not behaves_like_ode(self.manifest):
            raise UsageError(
                f"the solver {solver} is for a cell that behaves like an ODE, which this one was not found "
                "to do: use the solver euler"
            )

    def split_for(self, graph: Graph) -> int:
        """The split to measure on: the one that the model was trained on, where the graph has it."""
        return split_trained_on(self.manifest.training, graph)

    def _class_names(self, graph: Graph) -> tuple[str, ...] | None:
        """What the answers are called: by the model or, where the graph describes the classes, by that."""
        if self.manifest.regression:
            return None
        return graph.class_names if self.manifest.targets is None else self.manifest.class_names

    def _check(self, graph: Graph) -> None:
        if not isinstance(graph, Graph):
            raise UsageError(f"graph is {short(repr(graph))}: give a Graph, such as read_graph returns")
        if self.manifest.level == EDGE and graph.pairs is None:
            raise GraphError("the bundle judges links, and the graph has no pairs of nodes to judge")
        if graph.width != self.manifest.features:
            raise GraphError(
                f"the graph has {graph.width} features and the bundle takes {self.manifest.features}"
            )
        if self.manifest.targets is None and graph.target_features is None:
            raise GraphError("the bundle was trained on described targets, and the graph has no target_x")


def read_bundle(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the ONNX files that it names, checked and not yet run."""
    manifest = read_manifest(path)
    return manifest, {name: _read_onnx_file(path, file) for name, file in manifest.onnx_models.items()}


def read_manifest(path: Path) -> Manifest:
    """What the bundle in this folder says about itself."""
    file = path / manifests.FILE_NAME
    try:
        if not file.is_file():
            raise BundleError(f"no {manifests.FILE_NAME}, hence no bundle: make one with adar-deploy export")
        manifest = Manifest.from_json(read_own(file, manifests.MAX_BYTES).decode("utf-8"))
        make_rule(manifest.exit)  # refuse a rule that cannot be before any work is done
    except (OSError, UnicodeDecodeError, BundleError, UsageError) as error:
        raise BundleError(f"{path}: {reason(error)}") from error
    return manifest


def _read_onnx_file(folder: Path, expected: OnnxFile) -> bytes:
    """The bytes of a graph, if they are the ones that the manifest speaks of and harmless."""
    path = folder / expected.file
    name = str(folder / short(expected.file))
    try:
        if not path.is_file():
            raise BundleError("the bundle has no such file; export it again")
        size = path.stat().st_size
        if size != expected.bytes or size > MAX_BYTES:
            raise BundleError(f"{size} bytes where the manifest says {short(expected.bytes)}")
        content = read_own(path, expected.bytes)
    except BundleError as error:
        raise BundleError(f"{name}: {error}") from error
    except OSError as error:
        raise BundleError(f"{name} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise BundleError(f"{name} was changed after it was exported: its sha256 is not the manifest's")
    onnx_guard.check(name, content)
    return content
