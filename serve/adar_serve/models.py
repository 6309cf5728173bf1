"""The bundles that a server offers: their names and versions, their inputs and outputs, and their graphs."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime import Bundle, Graph, Result, load
from adar_runtime.backends.prepared_graph import PreparedGraph
from adar_runtime.bundle import pack
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import UsageError, short
from adar_runtime.graph import EDGE, NODE
from adar_serve.limits import Limits
from adar_serve.messages import Arrays
from adar_serve.refusals import RefusedError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ARGUMENT = re.compile(r"(?:(?P<name>[^=:/]+)(?::(?P<version>[^=:/]+))?=)?(?P<folder>.+)", re.DOTALL)
FIRST_VERSION = "1"


@dataclass(frozen=True)
class Port:
    """An input or output of a model. A size of -1 is any size. A request may leave an optional input out."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


def input_ports(manifest: Manifest) -> list[Port]:
    """The inputs. A graph that stays on the server replaces those that it has."""
    width = -1 if manifest.in_context else manifest.features
    ports = [Port("x", "FP32", (-1, width)), Port("edge_index", "INT64", (2, -1))]
    if manifest.edge_weights:
        ports.append(Port("edge_weight", "FP32", (-1,), optional=True))
    if manifest.targets is None:
        ports.append(Port("target_x", "FP32", (-1, width), optional=manifest.in_context))
    if manifest.in_context:
        ports.append(Port("y", "INT64", (-1,), optional=True))
    if manifest.level == EDGE:
        ports.append(Port("pairs", "INT64", (2, -1)))
    return [*ports, Port("nodes", "INT64", (-1,), optional=True)] if manifest.level == NODE else ports


def output_ports(manifest: Manifest) -> list[Port]:
    """The outputs."""
    classes = manifest.targets or -1
    if manifest.regression:
        ports = [Port("prediction", "FP32", (-1, classes))]
    else:
        ports = [Port("prediction", "INT64", (-1,)), Port("probability", "FP32", (-1, classes))]
    return [*ports, Port("alignment", "FP64", (-1,)), Port("best_step", "INT64", (1,))]


@dataclass(frozen=True, eq=False)
class Model:
    """A bundle under its name and version."""

    name: str
    version: str
    bundle: Bundle

    @cached_property
    def inputs(self) -> list[Port]:
        return input_ports(self.bundle.manifest)

    @cached_property
    def outputs(self) -> list[Port]:
        return output_ports(self.bundle.manifest)

    def properties(self) -> dict[str, str]:
        """Facts about the model, as texts."""
        manifest = self.bundle.manifest
        names = {"class_names": json.dumps(manifest.class_names)} if manifest.class_names else {}
        return {"predicts": manifest.level, "backend": self.bundle.backend.name, **names}

    def check_inputs(self, inputs: Arrays, limits: Limits) -> None:
        """Refuse unknown inputs, and sizes beyond the limits, before a graph is built."""
        known = {port.name for port in self.inputs}
        for name in inputs:
            if name not in known:
                raise RefusedError(
                    400, f"the model has no input {short(name)!r}: its inputs are {', '.join(sorted(known))}"
                )
        for name, array in inputs.items():
            rank = 1 if name in ("nodes", "edge_weight", "y") else 2
            if array.ndim != rank:
                raise RefusedError(400, f"{name} has {array.ndim} dimensions, not {rank}")
            axis, noun, most = {
                "x": (0, "nodes", limits.nodes),
                "nodes": (0, "nodes", limits.nodes),
                "edge_index": (-1, "edges", limits.edges),
                "edge_weight": (-1, "edges", limits.edges),
                "pairs": (-1, "pairs", limits.edges),
                "target_x": (0, "classes", limits.classes),
                "y": (0, "nodes", limits.nodes),
            }[name]
            if array.shape[axis] > most:
                raise RefusedError(
                    413, f"{name} has {array.shape[axis]:,} {noun}: this server takes at most {most:,}"
                )
        if "y" in inputs:
            _check_labels(inputs["y"], limits)

    def graph(self, inputs: Arrays) -> Graph:
        """The graph in a request's inputs."""
        for name in ("x", "edge_index"):
            if name not in inputs:
                raise RefusedError(400, f"the input {name} is missing")
        level, labels = self.bundle.manifest.level, inputs.get("y")
        if labels is not None and len(labels) != len(inputs["x"]):
            raise RefusedError(400, f"y has {len(labels):,} labels, but x has {len(inputs['x']):,} nodes")
        return Graph(
            features=inputs["x"],
            edge_index=inputs["edge_index"],
            labels=labels,
            train_mask=None if labels is None else labels >= 0,
            edge_weight=inputs.get("edge_weight"),
            target_features=inputs.get("target_x"),
            pairs=inputs.get("pairs"),
            level=NODE if level == EDGE else level,
        )

    def check_graph(self, graph: Graph, limits: Limits) -> None:
        """Refuse a graph from a file that is beyond the limits or does not fit the model."""
        found = {"nodes": graph.nodes, "edges": graph.edges, "classes": graph.targets}
        for noun, count in found.items():
            most = getattr(limits, noun)
            if count > most:
                raise RefusedError(413, f"the graph has {count:,} {noun}: this server takes at most {most:,}")
        manifest = self.bundle.manifest
        if not manifest.in_context and graph.width != manifest.features:
            raise RefusedError(
                400, f"the graph has {graph.width} features, the model takes {manifest.features}"
            )

    def with_inputs(self, prepared: PreparedGraph, inputs: Arrays) -> PreparedGraph:
        """A prepared graph with the targets or pairs of a request."""
        for name in ("x", "edge_index", "edge_weight", "y"):
            if name in inputs:
                raise RefusedError(400, f"the graph that stays on the server has {name}: leave it out")
        changes: dict[str, Any] = {}
        if "target_x" in inputs:
            changes = {"target_features": inputs["target_x"], "class_names": None}
        if "pairs" in inputs:
            changes["pairs"] = inputs["pairs"]
        if not changes:
            return prepared
        if self.bundle.manifest.in_context:
            raise RefusedError(400, "this model has placed the classes of the graph that stays on the server")
        graph = replace(
            prepared.graph, labels=None, train_mask=None, val_mask=None, test_mask=None, **changes
        )
        return prepared.for_outputs(graph, self.bundle.manifest)

    def try_out(self) -> None:
        """Run a graph of two nodes.

        Raises:
            AdarError: The model does not answer.
        """
        sizes = {
            port.name: port.shape for port in self.inputs if not port.optional or port.name == "target_x"
        }
        inputs = {}
        for name, shape in sizes.items():
            filled = tuple(2 if size == -1 else size for size in shape)
            inputs[name] = np.cos(np.arange(np.prod(filled), dtype=np.float32)).reshape(filled)
            if name in ("edge_index", "pairs"):
                inputs[name] = np.array([[0, 1], [1, 0]])
        self.bundle.run(self.graph(inputs), budget=2)

    def arrays(self, result: Result, names: Iterable[str] = ()) -> Arrays:
        """The outputs of a run with these names; all without names."""
        chosen = tuple(names) or tuple(port.name for port in self.outputs)
        return {name: OUTPUTS[name](result) for name in chosen}


def _check_labels(labels: NDArray[Any], limits: Limits) -> None:
    """Refuse labels that are not classes, or more classes than the server takes."""
    if labels.dtype.kind not in "iu":
        raise RefusedError(400, "y holds numbers that are not integers: send INT64, -1 where unknown")
    classes = int(labels.max()) + 1 if labels.size else 0
    if classes > limits.classes:
        raise RefusedError(413, f"y has {classes:,} classes: this server takes at most {limits.classes:,}")


def _prediction(result: Result) -> NDArray[Any]:
    return result.predictions if result.regression else result.predictions.astype(np.int64)


def _probability(result: Result) -> NDArray[Any]:
    assert result.probabilities is not None  # a regression has no such output
    return result.probabilities


OUTPUTS: dict[str, Callable[[Result], NDArray[Any]]] = {
    "prediction": _prediction,
    "probability": _probability,
    "alignment": lambda result: np.array(result.alignment, np.float64),
    "best_step": lambda result: np.array([result.best_step], np.int64),
}
"""How each output is made. Only those that a request asks for are."""


class Named(NamedTuple):
    """A bundle as the command line names it."""

    name: str
    version: str
    folder: str


def named(given: str) -> Named:
    """Read FOLDER, NAME=FOLDER or NAME:VERSION=FOLDER.

    Raises:
        UsageError: The text is none of them, or a name is not valid.
    """
    found = ARGUMENT.fullmatch(given)
    if found is None:
        raise UsageError(f"{short(given)!r} is not FOLDER, NAME=FOLDER or NAME:VERSION=FOLDER")
    return _named(found["folder"], found["name"], found["version"], "such as NAME=FOLDER")


def named_by_folder(folder: Path) -> Named:
    """A bundle with the name of its folder or file. Unlike in `named`, a "=" is a part of that name.

    Raises:
        UsageError: The name is not valid.
    """
    return _named(str(folder), None, None, "in the name of the folder")


def _named(folder: str, name: str | None, version: str | None, hint: str) -> Named:
    name = name or folder.rstrip("/").rpartition("/")[2].removesuffix(pack.SUFFIX)
    version = version or FIRST_VERSION
    for word in (name, version):
        if not NAME.fullmatch(word):
            raise UsageError(
                f"{short(word)!r} is not a name of a model: use letters, digits, '_', '-' and '.', {hint}"
            )
    return Named(name, version, folder)


class Models:
    """All models of a server, by name and version. Only the event loop changes them.

    Args:
        sources: The bundles.
        open: Loads one of them.
        unloaded: Names of models that are not loaded now.
    """

    def __init__(
        self, sources: Sequence[Named], open: Callable[[Named], Model], unloaded: Collection[str] = ()
    ) -> None:
        self._open = open
        self._sources: dict[str, dict[str, Named]] = {}
        for one in sources:
            versions = self._sources.setdefault(one.name, {})
            if one.version in versions:
                raise UsageError(
                    f"two bundles have the name {one.name} and the version {one.version}: "
                    "give another one, such as NAME:2=FOLDER"
                )
            versions[one.version] = one
        self._models: dict[str, dict[str, Model]] = {}
        self.replace([open(one) for one in sources if one.name not in unloaded])

    @property
    def names(self) -> list[str]:
        """The names of all models, also of those that are not loaded."""
        return [*self._sources]

    @property
    def all(self) -> list[Model]:
        return [model for versions in self._models.values() for model in versions.values()]

    def find(self, name: str, version: str | None = None) -> Model:
        """A model; without a version, the one with the highest version."""
        self._check_name(name)
        versions = self._models.get(name)
        if versions is None:
            raise RefusedError(404, f"the model {name} is not loaded")
        chosen = version or max(versions, key=_order)
        if chosen not in versions:
            known = ", ".join(sorted(versions, key=_order))
            raise RefusedError(404, f"the model {name} has no version {short(chosen)!r}: it has {known}")
        return versions[chosen]

    def chosen(self, name: str | None, version: str | None) -> list[Model]:
        """All models, all versions of a model, or one version."""
        if name is None:
            return self.all
        found = self.find(name, version)
        return [found] if version is not None else [*self._models[name].values()]

    def opened(self, name: str) -> list[Model]:
        """Load all versions of a model again and try them. The models of the server do not change.

        Raises:
            AdarError: A version cannot be loaded, or does not answer.
        """
        self._check_name(name)
        fresh = [self._open(source) for source in self._sources[name].values()]
        for model in fresh:
            model.try_out()
        return fresh

    def replace(self, fresh: Sequence[Model]) -> list[Model]:
        """Put these models in place of those with their names. Return the ones that left."""
        left = [model for model in self.all if model.name in {each.name for each in fresh}]
        self._models |= {each.name: {} for each in fresh}
        for each in fresh:
            self._models[each.name][each.version] = each
        return left

    def unload(self, name: str) -> list[Model]:
        """Remove all versions of a model. Return them."""
        self.find(name)
        return [*self._models.pop(name).values()]

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """All versions of all models with their states; `ready`: only those that are loaded."""
        found = []
        for name, versions in self._sources.items():
            loaded = self._models.get(name, {})
            for version in sorted(versions, key=_order):
                state = ("READY", "") if version in loaded else ("UNAVAILABLE", "unloaded")
                if version in loaded or not ready:
                    found.append({"name": name, "version": version, "state": state[0], "reason": state[1]})
        return found

    def _check_name(self, name: str) -> None:
        if name not in self._sources:
            raise RefusedError(
                404, f"there is no model {short(name)!r}: this server has {', '.join(self._sources)}"
            )

    def metadata(self, model: Model) -> dict[str, Any]:
        """What the protocol tells about a model."""
        return {
            "name": model.name,
            "versions": sorted(self._models[model.name], key=_order),
            "platform": "adar_onnx",
            "inputs": [port.to_dict() for port in model.inputs],
            "outputs": [port.to_dict() for port in model.outputs],
            "properties": model.properties(),
        }


def _order(version: str) -> tuple[int, str]:
    """Whole numbers first, by value."""
    return (int(version), "") if version.isdecimal() and len(version) < 10 else (-1, version)


def load_models(bundles: Sequence[str], unloaded: Collection[str] = (), **options: Any) -> Models:
    """Load bundles given as FOLDER, NAME=FOLDER or NAME:VERSION=FOLDER, except those of unloaded models.

    Raises:
        AdarError: A bundle cannot be loaded, or a name is not valid.
    """

    def opened(source: Named) -> Model:
        bundle = load(source.folder, **options)
        if bundle.small_graphs is not None:  # now: its file may be replaced while the server runs
            bundle.small_graphs.open()
        return Model(source.name, source.version, bundle)

    return Models([named(given) for given in bundles], opened, unloaded)
