"""A bundle: a folder on disk -> an object that runs graphs."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_runtime.backends import AUTO, TENSORRT, Backend, Settings, open_backend, open_isolated
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle import hub, known_models, memory, signature, small_graphs
from adar_runtime.bundle.fit import check_fits
from adar_runtime.bundle.label_checks import prepare_for
from adar_runtime.bundle.measured_solvers import make_measured, solver_for
from adar_runtime.bundle.onnx_facts import encodes_by_row
from adar_runtime.bundle.pack import is_pack
from adar_runtime.bundle.predictor import Predictor
from adar_runtime.bundle.reading import read_bundle
from adar_runtime.bundle.small_graphs import SmallGraphs
from adar_runtime.errors import AdarError, UsageError, short
from adar_runtime.graph import Graph
from adar_runtime.graph.in_memory import as_graph, own_graph
from adar_runtime.graph.labels import split_trained_on
from adar_runtime.loop.checks import check_budget
from adar_runtime.loop.loop import Loop
from adar_runtime.loop.prefetch import prefetch
from adar_runtime.loop.registry import find
from adar_runtime.loop.result import Result
from adar_runtime.loop.solvers import DEFAULT_SOLVER, REFERENCE_STEPS, Solver
from adar_runtime.loop.stopping import RULES, StopRule, make_rule
from adar_runtime.summaries import Facts, manifest_facts

if TYPE_CHECKING:
    from adar_runtime.evaluation.evaluate import Subject
    from adar_runtime.phases.context import Context


def load(
    path: str | Path,
    backend: str = AUTO,
    threads: int | None = None,
    *,
    rebuild: bool = False,
    trust_engines: bool | None = None,
    allow_unknown_model: bool = False,
    device: int = 0,
    allow_tf32: bool = False,
    cuda_graph: bool = False,
) -> "Bundle":
    """Open an exported bundle.

    Args:
        path: Folder of the bundle, a file of `adar-deploy pack`, or "hf://owner/name", which is downloaded
            from the Hugging Face hub.
        backend: A name from `adar_runtime.backends.BACKENDS`, or "auto" for the fastest one that works.
        threads: Threads of ONNX Runtime or OpenVINO; one per core by default.
        rebuild: Rebuild TensorRT engines that do not fit, instead of raising an error.
        trust_engines: Whether to load TensorRT engines that were not built on this machine. An engine is a
            program. `trust_engines` defaults to True for backend="tensorrt", else False.
        allow_unknown_model: Whether to accept ONNX models that this version of adar-deploy does not export.
            They run in a child process on the CPU, with limits of memory and time.
        device: Number of the CUDA device, for the backends on a GPU.
        allow_tf32: Whether onnxruntime-cuda may round the factors of float32 products to TF32 (10 bits).
        cuda_graph: Whether onnxruntime-cuda captures the cell as a CUDA graph. Not yet tested on a GPU.

    Returns:
        The bundle, checked and ready to run.

    Raises:
        BundleError: The folder is not a bundle, its files were changed or are unsafe, or a model is unknown.
        BackendError: The backend does not work on this machine or with this bundle.
        UsageError: `path` is not a path, or `threads` or `device` is out of range.

    Examples:
        >>> bundle = load("bundle", backend="onnxruntime-cpu", threads=4)  # doctest: +SKIP
    """
    return Bundle(
        hub.local_path(path),
        backend,
        threads,
        rebuild=rebuild,
        trust_engines=trust_engines,
        allow_unknown_model=allow_unknown_model,
        device=device,
        allow_tf32=allow_tf32,
        cuda_graph=cuda_graph,
    )


class Bundle(Predictor):
    """An exported model that runs any graph for any budget. `load` makes one and explains the arguments.

    Attributes:
        path: Folder or packed file of the bundle.
        manifest: The bundle's description of itself.
        backend: What runs the models.

    Examples:
        >>> bundle = load("bundle")  # doctest: +SKIP
        >>> bundle.run(read_graph("graph.npz"), budget=300).predictions  # doctest: +SKIP
    """

    def __init__(
        self,
        path: Path,
        backend: str = AUTO,
        threads: int | None = None,
        *,
        rebuild: bool = False,
        trust_engines: bool | None = None,
        allow_unknown_model: bool = False,
        device: int = 0,
        allow_tf32: bool = False,
        cuda_graph: bool = False,
        made_here: bool = False,  # this process made the models, so that they need no check
    ) -> None:
        trusted = backend == TENSORRT if trust_engines is None else trust_engines
        folder = None if is_pack(path) else path
        settings = Settings(threads, folder, rebuild, trusted, device, allow_tf32, cuda_graph)
        self.path = path
        self.manifest, onnx_models = read_bundle(path, allow_unknown_model=True)
        is_known = made_here or known_models.are_known(
            self.manifest, onnx_models, allow_others=allow_unknown_model
        )
        self.by_row = encodes_by_row(onnx_models["encoder"])
        open_models = open_backend if is_known else open_isolated
        self.backend: Backend = open_models(backend, onnx_models, self.manifest, settings)
        signature.check(self.manifest, self.backend.ports)
        self.small_graphs = SmallGraphs.of(self, known=made_here)
        self.is_made_here, self.threads = made_here, threads

    def run(
        self,
        graph: Any,
        budget: int = 300,
        stop: StopRule | str | None = None,
        solver: Solver | str = DEFAULT_SOLVER,
    ) -> Result:
        """Run a graph until the stop rule ends the loop.

        Args:
            graph: The graph to answer, or anything that `as_graph` converts to one.
            budget: Euler steps in the total time. Euler's method makes one cell call per step.
            stop: When to stop, and which state to answer from; the bundle's own rule by default. A rule, or
                its name.
            solver: A solver, or the name of one with the settings that were measured for this bundle. The
                default is "auto", see `solver`; "euler" is the reference.

        Returns:
            The answer, and how the loop reached it.

        Raises:
            GraphError: The graph does not fit the bundle or the machine's memory.
            UsageError: The budget, rule or solver is not valid for this bundle.
            BackendError: The backend failed.
            DivergedError: Numbers stopped being finite.

        Examples:
            >>> bundle.run(graph, budget=300, solver="ab2").predictions  # doctest: +SKIP
        """
        loop = self.loop(graph, budget, stop, solver)
        for _ in loop:
            pass
        return loop.result()

    def run_many(
        self,
        graphs: Iterable[Any],
        budget: int = 300,
        stop: StopRule | str | None = None,
        solver: Solver | str = DEFAULT_SOLVER,
    ) -> Iterator[Result]:
        """Run many graphs. Small graphs share calls of the cell; the next graph is fetched in the background.

        Args:
            graphs: The graphs; a generator that reads files makes the most of the background thread. It may
                change a graph in memory after it gave it: copies are run.
            budget: As in `run`.
            stop: As in `run`.
            solver: As in `run`.

        Yields:
            The result of each graph, in order.

        Raises:
            AdarError: As in `run`; an error of the generator is raised in its place.

        Examples:
            >>> for result in bundle.run_many(read_graph(path) for path in paths):  # doctest: +SKIP
            ...     print(result.predictions)
        """
        budget, stop, solver = self._chosen(budget, stop, solver)
        several = isinstance(graphs, Iterable) or hasattr(
            graphs, "__getitem__"
        )  # some Datasets only have items
        if isinstance(graphs, str) or not several:
            raise UsageError(f"run_many takes several graphs, not {short(repr(graphs))}: give a list of them")
        listed = isinstance(graphs, list | tuple)
        source = map(as_graph, graphs) if listed else prefetch(map(own_graph, graphs))
        for found in small_graphs.outcomes(self, source, budget, stop, solver):
            if isinstance(found, AdarError):
                raise found
            yield found

    def loop(
        self,
        graph: Any,
        budget: int = 300,
        stop: StopRule | str | None = None,
        solver: Solver | str = DEFAULT_SOLVER,
    ) -> Loop:
        """Start a run that the caller drives step by step.

        Args:
            graph: As in `run`; or a graph that `prepare` prepared, which saves the time to prepare it again.
            budget: As in `run`.
            stop: As in `run`.
            solver: As in `run`.

        Returns:
            An iterator of steps.

        Raises:
            AdarError: As in `run`.

        Examples:
            >>> for step in bundle.loop(graph, budget=300):  # doctest: +SKIP
            ...     print(step.time, step.alignment)
        """
        started = time.perf_counter()
        budget, stop, solver = self._chosen(budget, stop, solver)
        kept = graph if isinstance(graph, PreparedGraph) else None
        graph = as_graph(graph) if kept is None else kept.graph
        self.check(graph, prepared=kept is not None)
        recurrence = self.backend.start(kept := kept or self.prepare(graph))
        prepared = time.perf_counter() - started
        names, ids = self.manifest.class_names_for(graph), graph.output_ids
        return Loop(recurrence, self.manifest, budget, stop, solver, prepared, names, ids, graph, kept.check)

    def remember(
        self,
        graph: Any,
        budget: int = 300,
        stop: StopRule | str | None = None,
        solver: Solver | str = DEFAULT_SOLVER,
        *,
        folder: str | Path | None = None,
        half: bool = False,
        max_bytes: int | None = None,
    ) -> "Context":
        """Run a graph once, and keep what is needed to answer for new nodes in milliseconds.

        Args:
            graph: As in `run`.
            budget: As in `run`.
            stop: As in `run`.
            solver: As in `run`. A solver with few calls keeps less, and answers faster.
            folder: Folder for a memory-mapped temporary file; in memory by default.
            half: True keeps 16-bit numbers: half the space, three digits.
            max_bytes: Most bytes to keep; by default the free memory, or the free space of the folder's disk.

        Returns:
            The context. It keeps n · d numbers per cell call, for n nodes and d hidden columns.

        Raises:
            AdarError: As in `run`; or the bundle cannot answer for single nodes, or needs more bytes.

        Examples:
            >>> context = bundle.remember(graph, budget=300, solver="ab2")  # doctest: +SKIP
        """
        from adar_runtime.phases.kept_calls import Storage
        from adar_runtime.phases.remember import remember

        storage = Storage(folder, half, max_bytes)
        return remember(self, as_graph(graph), *self._chosen(budget, stop, solver), storage)

    def _chosen(self, budget: int, stop: Any, solver: Solver | str) -> tuple[int, StopRule, Solver]:
        """The budget, the rule and the solver of a run."""
        budget = check_budget(budget)
        stop = self.stop_rule(stop) if stop is None or isinstance(stop, str) else stop
        return budget, stop, solver_for(self.manifest, solver, budget)

    def check(self, graph: Graph, *, prepared: bool = False) -> None:
        """Raise an error if a graph does not fit the bundle or the free memory.

        Args:
            graph: The graph.
            prepared: Whether the graph is that of a `PreparedGraph`.

        Raises:
            GraphError: The graph does not fit.
        """
        check_fits(graph, self.manifest)
        memory.check(graph, self.manifest, by_row=self.by_row, prepared=prepared)

    def prepare(self, graph: Graph) -> PreparedGraph:
        """Build the inputs of this bundle's models from a graph, for `backend.start`.

        Args:
            graph: A graph that fits the bundle.

        Returns:
            The inputs, which every backend accepts.
        """
        return prepare_for(self, graph)

    def stop_rule(self, name: str | None = None, **settings: Any) -> StopRule:
        """Make a stop rule with the bundle's calibrated settings.

        Args:
            name: A name from `adar_runtime.loop.stopping.RULES`; the bundle's own rule by default.
            settings: Settings of the rule. They replace those of the bundle.

        Returns:
            A new rule.

        Raises:
            UsageError: There is no such rule, or the rule does not accept the settings.

        Examples:
            >>> bundle.stop_rule("peak", patience=20)  # doctest: +SKIP
            Peak(patience=20, prominence=0.01, minimum_steps=0, fallback=0.69)
        """
        own = self.manifest.exit
        chosen: dict[str, Any] = dict(own) if name in (None, own.get("rule")) else {"rule": name}
        rule = find(RULES, "stop rule", chosen.get("rule"))
        return make_rule(rule.complete(chosen | settings, self.manifest.training.get("exit_time")))

    def solver(self, name: str = DEFAULT_SOLVER, budget: int = REFERENCE_STEPS, **settings: Any) -> Solver:
        """Make a solver. Without settings, it gets those that were measured for this bundle.

        Args:
            name: A name from `adar_runtime.loop.solvers.SOLVERS`, or "auto" for the cheapest one that export
                proved to give the predictions of 300 Euler steps; Euler's method if none was proven.
            budget: Euler steps in the total time. "auto" makes more calls for more than 300 steps.
            settings: Settings of the solver; "auto" has none.

        Returns:
            A new solver.

        Raises:
            UsageError: There is no such solver, it does not accept the settings, or it is not valid for this
                bundle.

        Examples:
            >>> bundle.solver("ab2")  # doctest: +SKIP
            AdamsBashforth2(calls=32)
        """
        return make_measured(self.manifest, name, budget, **settings)

    def split_for(self, graph: Graph) -> int:
        """The split to evaluate on.

        Args:
            graph: The graph to evaluate.

        Returns:
            The index of the split that the model was trained on, where the graph has that split; otherwise 0.
        """
        return split_trained_on(self.manifest.training, graph)

    def subject(self) -> "Subject":
        """The bundle as `evaluate` uses it."""
        from adar_runtime.evaluation.evaluate import Subject

        return Subject.of(self)

    def facts(self) -> Facts:
        """What `repr` and a notebook show."""
        backend = self.backend.name
        return {"folder": repr(str(self.path)), **manifest_facts(self.manifest), "backend": backend}
