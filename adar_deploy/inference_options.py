"""The options of an inference: its budget, stop rule and solver, its backend, and how a graph is split.

The settings of solvers and stop rules are those of the classes in the registries of the runtime: one that is
added there needs no change here.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

from adar_deploy.option_groups import OptionGroup
from adar_deploy.options import (
    AllowUnknownModel,
    Backend,
    CudaDevice,
    ExitRule,
    MaxSteps,
    SolverName,
    Threads,
    is_typed,
    parse_bytes,
)
from adar_runtime.backends import AUTO, TENSORRT
from adar_runtime.loop.registry import Setting, settings_of
from adar_runtime.loop.solvers import DEFAULT_SOLVER, SOLVERS
from adar_runtime.loop.stopping import RULES

if TYPE_CHECKING:
    from adar_runtime import Bundle, Solver, StopRule

SOLVER, BACKEND = SolverName(DEFAULT_SOLVER), Backend(AUTO)


class RegistryOptions(NamedTuple):
    """The options of a registry: one chooses a class by name, the others are the settings of the classes."""

    chooser: str  # the parameter of the command whose value is the name of a class
    noun: str
    registry: Mapping[str, type]
    default: str  # shown in the help; {} stands for the default of the class

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter for each option. Classes whose settings have the same option share it."""
        return [self._parameter(option) for option in self._options()]

    def settings(self, name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of the chosen class from the parameters of the command. None means not given."""
        from adar_runtime.errors import UsageError

        kind = self.registry.get(name or "")
        own = {one.option: one.name for one in settings_of(kind)} if kind else {}
        chosen = {}
        for option, owners in self._options().items():
            value = given[_parameter_name(option)]
            if value is None:
                continue
            if option not in own:
                names = " or ".join(owners)
                raise UsageError(
                    f"--{option} is a setting of the {self.noun} {names}: add --{self.chooser} {names}"
                )
            chosen[own[option]] = value
        return chosen

    def _options(self) -> dict[str, dict[str, Setting]]:
        """The settings with this option, by the name of their class."""
        options: dict[str, dict[str, Setting]] = {}
        for name, kind in self.registry.items():
            for one in settings_of(kind):
                options.setdefault(one.option, {})[name] = one
        return options

    def _parameter(self, option: str) -> inspect.Parameter:
        owners = self._options()[option]
        first = next(iter(owners.values()))
        info = typer.Option(
            None,
            f"--{option}",
            help=f"{first.help} (--{self.chooser} {' or '.join(owners)}).",
            show_default=self.default.format(first.default),
        )
        return inspect.Parameter(
            _parameter_name(option),
            inspect.Parameter.KEYWORD_ONLY,
            default=info,
            annotation=first.kind | None,
        )


def _parameter_name(option: str) -> str:
    return option.replace("-", "_")


SOLVER_OPTIONS = RegistryOptions("solver", "solver", SOLVERS, "as measured by the export")
RULE_OPTIONS = RegistryOptions("exit", "stop rule", RULES, "the bundle's, or {}")


@dataclass(frozen=True)
class InferenceOptions(OptionGroup):
    """The budget, the stop rule and the solver. The settings of a class follow the option that chooses it."""

    max_steps: MaxSteps = 300
    exit: Annotated[
        ExitRule | None,
        typer.Option(
            help="Stop rule: when to stop, and which step to predict from.", show_default="the bundle's"
        ),
    ] = None
    solver: Annotated[
        SolverName,
        typer.Option(
            help="Solver. auto: the one with the fewest cell calls that export proved to give the "
            "predictions of 300 Euler steps, or euler. euler: the reference, one cell call per step."
        ),
    ] = SOLVER
    settings: Mapping[str, Any] = field(default_factory=dict)  # of stop rules and solvers; None if not given

    @classmethod
    def options(cls) -> Iterator[inspect.Parameter]:
        for one in super().options():
            yield one
            for group in (RULE_OPTIONS, SOLVER_OPTIONS):
                yield from group.parameters() if group.chooser == one.name else ()

    @classmethod
    def take(cls, given: dict[str, Any]) -> Self:
        names = [one.name for group in (RULE_OPTIONS, SOLVER_OPTIONS) for one in group.parameters()]
        given["settings"] = {name: given.pop(name) for name in names}
        return super().take(given)

    @property
    def solver_settings(self) -> dict[str, Any]:
        """The settings of the solver. Raises a UsageError for one of another solver."""
        return SOLVER_OPTIONS.settings(str(self.solver), self.settings)

    def stop_rule(self, bundle: "Bundle") -> "StopRule":
        """The stop rule: the chosen one, or that of the bundle."""
        rule = bundle.manifest.exit.get("rule") if self.exit is None else str(self.exit)
        return bundle.stop_rule(rule, **RULE_OPTIONS.settings(rule, self.settings))

    def solver_for(self, bundle: "Bundle") -> "Solver":
        """The solver, with what the bundle has proven for this budget."""
        return bundle.solver(str(self.solver), self.max_steps, **self.solver_settings)


@dataclass(frozen=True)
class BackendOptions(OptionGroup):
    """Where a bundle runs, and what it may do there."""

    backend: Annotated[Backend, typer.Option(help="Backend to run on.")] = BACKEND
    threads: Threads = None
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild TensorRT engines that do not fit the graph or the GPU.")
    ] = False
    allow_unknown_model: AllowUnknownModel = False
    device: CudaDevice = 0
    allow_tf32: Annotated[
        bool,
        typer.Option("--allow-tf32", help="Faster, less precise float32 products in ONNX Runtime on a GPU."),
    ] = False
    cuda_graph: Annotated[
        bool,
        typer.Option(
            "--cuda-graph", help="Let ONNX Runtime capture the cell as a CUDA graph. Not yet tested on a GPU."
        ),
    ] = False

    def load(self, ctx: typer.Context, bundle: Path) -> "Bundle":
        """Open the bundle. Only a typed option trusts engines."""
        from adar_runtime import load

        return load(
            bundle,
            str(self.backend),
            self.threads,
            rebuild=self.rebuild,
            trust_engines=self.backend == TENSORRT and is_typed(ctx, "backend"),
            allow_unknown_model=self.allow_unknown_model,
            device=self.device,
            allow_tf32=self.allow_tf32,
            cuda_graph=self.cuda_graph,
        )


@dataclass(frozen=True)
class PartOptions(OptionGroup):
    """How graphs are split: a store in parts, one graph in shards, or many graphs over processes."""

    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory for a graph store, such as 4GB; its parts run one after the other.",
            show_default="the free memory",
        ),
    ] = None
    workers: Annotated[
        str | None,
        typer.Option(
            help="Run graphs, or the parts of a graph store, on a Ray cluster: auto (one process per core), "
            "a number of processes, or ray://HOST:PORT. --output is a folder.",
            show_default="this process",
        ),
    ] = None
    shards: Annotated[
        int | None,
        typer.Option(
            min=1, help="Split one graph into this many shards, each in a process of the Ray cluster."
        ),
    ] = None

    @property
    def on_ray(self) -> bool:
        """Whether a Ray cluster does the work."""
        return self.workers is not None or self.shards is not None

    @property
    def max_bytes(self) -> int | None:
        """The memory as a number of bytes."""
        return None if self.memory is None else parse_bytes("memory", self.memory)
