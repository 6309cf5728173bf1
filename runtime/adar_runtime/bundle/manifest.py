"""`manifest.json`, the description of a bundle: its fields and its checks."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from adar_runtime import summaries
from adar_runtime.bundle import metadata
from adar_runtime.errors import BundleError, reason, short
from adar_runtime.graph import LEVELS, FeatureEncoding, Graph
from adar_runtime.graph.limits import MAX_NAME
from adar_runtime.graph.smoothing import MAX_ROUNDS
from adar_runtime.json_files import parse_json
from adar_runtime.loop.registry import is_count, is_number
from adar_runtime.loop.solvers import MAX_CALLS

SCHEMA = 2
SMOOTHING_SCHEMA = 3  # of bundles with smoothing: versions that know schema 2 only would leave it out
IN_CONTEXT_SCHEMA = 4  # of bundles with in_context: older versions would pass them the features unchanged
SCHEMAS = (SCHEMA, SMOOTHING_SCHEMA, IN_CONTEXT_SCHEMA)
FILE_NAME = "manifest.json"
MAX_BYTES = 16 * 2**20  # enough for 100,000 class names
ONNX_MODELS = ("encoder", "cell", "head")
BATCHED_CELL = "batched_cell"
PHASES = ("absorb", "small", "message", "receive", "update")  # of a step, in this order
FILE_KEY = "graphs"  # the key of the ONNX models in manifest.json; kept so that older bundles load
TABLES, EDGES = AGGREGATIONS = ("tables", "edges")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
CHECKSUM = "checksum"  # the key of the checksum in manifest.json
LEAST_ORDER = 0.8  # of convergence, for a cell that behaves like an ODE; 1 is Euler's order
LARGEST_CHANGE = 1e-3  # distance from the reference, relative to the nodes' movement, that is the same result
LARGEST_DISTANCE = 0.01  # the same in a proof, which also compares predictions: probabilities stay close
LEAST_SAME = 0.999  # fraction of equal predictions that is the same result
OPTIONAL = (*metadata.FIELDS, "statistics")  # left out of manifest.json where a bundle has none
LEAST_OUTPUTS = 1000  # predictions of a proof: fewer cannot show that 99.9 % are equal
LAST_WITH = {1: "0.1.0"}  # older schemas, and the last version of this package that reads each


@dataclass(frozen=True)
class Port:
    """An input or output of an ONNX model; a dynamic dimension has a name instead of a number."""

    name: str
    type: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class OnnxFile:
    """One ONNX model of the bundle."""

    file: str
    sha256: str
    bytes: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


@dataclass(frozen=True)
class Manifest:
    """What the runtime needs to know about a bundle, and what people want to know."""

    features: int  # f
    hidden: int  # d
    proxies: int  # p
    targets: int | None  # c where the targets were learned; None where each graph describes its own
    opset: int
    precision: str  # of the cell's large matrix products
    aggregation: str  # the form of the edges: tables of neighbours or (plain export) an edge list
    level: str  # what the predictions are for: node, edge or graph
    regression: bool  # the scores are numbers, not scores of classes
    unit_step: bool  # every step takes a time of 1, for every budget
    alignment: str  # the scalar that the cell returns and stop rules watch
    exit: dict[str, Any]  # the default stop rule and its settings
    onnx_models: dict[str, OnnxFile]
    batched_cell: OnnxFile | None = None  # one step of many small graphs; plain exports have none
    phases: dict[str, OnnxFile] | None = None  # the step in phases; plain exports have none
    smoothing: int = 0  # rounds of smoothing of the nodes before the first step
    class_names: tuple[str, ...] | None = None
    feature_encoding: FeatureEncoding | None = None  # how a table becomes the features
    parity: dict[str, Any] = field(
        default_factory=dict
    )  # largest differences from PyTorch, by number of steps
    convergence: dict[str, Any] = field(
        default_factory=dict
    )  # order of convergence, and trials of the solvers
    training: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    edge_weights: bool = False  # the cell takes the weights of the edges
    in_context: bool = False  # any features: nodes and targets start at the closed form of `in_context`
    name: str | None = None  # this field and those below are None in bundles of older versions
    version: str | None = None  # of the model, chosen by its author
    created_at: str | None = None  # when the model was trained, in UTC
    description: str | None = None
    feature_schema: list[dict[str, Any]] | None = None  # kinds of the feature columns
    statistics: dict[str, Any] | None = None  # of the training data; `evaluation.drift` checks and uses them
    sealed: bool = True  # the manifest has a checksum of itself; older ones have none

    def to_dict(self) -> dict[str, Any]:
        """The content of manifest.json."""
        fields = {"schema": self._schema} | asdict(self)
        for name in OPTIONAL:
            if fields[name] is None:
                del fields[name]
        del fields["sealed"]
        if not self.smoothing:
            del fields["smoothing"]  # so that older versions read the bundle
        if not self.edge_weights:  # absent in bundles of models without weights, as in older bundles
            del fields["edge_weights"]
        if not self.in_context:
            del fields["in_context"]
        fields[FILE_KEY] = fields.pop("onnx_models")
        read: dict[str, Any] = json.loads(json.dumps(fields))  # JSON turns numbers that are keys into text
        return read | {CHECKSUM: checksum_of(read)} if self.sealed else read

    @property
    def checksum(self) -> str:
        """The sha256 of the content: says whether two bundles are the same."""
        return checksum_of(self.to_dict())

    @property
    def _schema(self) -> int:
        """The oldest schema that describes this bundle."""
        if self.in_context:
            return IN_CONTEXT_SCHEMA
        return SMOOTHING_SCHEMA if self.smoothing else SCHEMA

    def __repr__(self) -> str:
        return summaries.line("Manifest", summaries.manifest_facts(self))

    def _repr_html_(self) -> str:
        return summaries.table("Manifest", summaries.manifest_facts(self))

    def to_json(self) -> str:
        """The text of manifest.json. The statistics are one line: they are thousands of numbers."""
        fields = self.to_dict()
        statistics = fields.pop("statistics", None)
        text = json.dumps(fields, indent=2)
        if statistics is not None:
            text = f'{text.removesuffix("}").rstrip()},\n  "statistics": {json.dumps(statistics)}\n}}'
        return text + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Parse and check a manifest; a BundleError says what is missing or wrong."""
        try:
            raw = parse_json(text)
        except ValueError as error:
            raise BundleError(f"{FILE_NAME} is not JSON ({reason(error)}): export the run again") from error
        schema = _take(raw, "schema", int)
        if schema not in SCHEMAS:
            old = f", or use adar-deploy {LAST_WITH[schema]}" if schema in LAST_WITH else ""
            raise BundleError(
                f"{FILE_NAME} has schema {short(schema)}, this version reads "
                f"{', '.join(map(str, SCHEMAS))}: export the run again{old}"
            )
        sealed = CHECKSUM in raw
        if sealed and _take(raw, CHECKSUM, str) != checksum_of(raw):
            raise BundleError(
                f"{FILE_NAME} was changed after it was exported: its checksum is not that of its fields; "
                "copy the bundle again, or export the run again"
            )
        files = _take(raw, FILE_KEY, dict)
        return cls(
            features=_size(raw, "features"),
            hidden=_size(raw, "hidden"),
            proxies=_size(raw, "proxies"),
            targets=None if raw.get("targets") is None else _size(raw, "targets"),
            opset=_size(raw, "opset"),
            precision=_one_of(raw, "precision", PRECISIONS),
            aggregation=_one_of(raw, "aggregation", AGGREGATIONS),
            level=_one_of(raw, "level", LEVELS),
            regression=_take(raw, "regression", bool),
            unit_step=_take(raw, "unit_step", bool),
            alignment=_take(raw, "alignment", str),
            exit=_take(raw, "exit", dict),
            smoothing=_rounds(raw) if schema == SMOOTHING_SCHEMA else 0,
            onnx_models={name: _onnx_file(_take(files, name, dict)) for name in ONNX_MODELS},
            batched_cell=None
            if raw.get(BATCHED_CELL) is None
            else _onnx_file(_take(raw, BATCHED_CELL, dict)),
            phases=_phases(raw),
            class_names=_class_names(raw),
            feature_encoding=_encoding(raw),
            parity=_take(raw, "parity", dict),
            convergence=_take(raw, "convergence", dict),
            training=_take(raw, "training", dict),
            versions=_take(raw, "versions", dict),
            in_context=schema == IN_CONTEXT_SCHEMA,
            edge_weights=_take(raw, "edge_weights", bool) if "edge_weights" in raw else False,
            sealed=sealed,
            statistics=None if raw.get("statistics") is None else _take(raw, "statistics", dict),
            **metadata.read_metadata(raw),
        )

    @property
    def behaves_like_ode(self) -> bool:
        """Whether the error of Euler's method was measured to fall as 1/S, which other solvers rely on.

        A stranger may have written the measurement, so its types are checked.
        """
        order = self.convergence.get("order")
        return is_number(order) and not self.unit_step and LEAST_ORDER <= order < math.inf  # type: ignore

    def file_names(self) -> list[str]:
        """The names of all ONNX files, with the batched cell and the phases where there are any."""
        return [file.file for file in (*self.onnx_models.values(), *self.on_demand)]

    @property
    def on_demand(self) -> list[OnnxFile]:
        """The files that are read when they are first needed: the batched cell and the phases."""
        files = [self.batched_cell, *(self.phases or {}).values()]
        return [file for file in files if file is not None]

    def class_names_for(self, graph: Graph) -> tuple[str, ...] | None:
        """The model's class names; the graph's, where the graph describes the classes."""
        if self.regression:
            return None
        return graph.class_names if self.targets is None else self.class_names

    def onnx_file(self, name: str) -> OnnxFile:
        """The file of a model, of the batched cell, or of a phase."""
        if name == BATCHED_CELL:
            assert self.batched_cell is not None
            return self.batched_cell
        if name in PHASES:
            assert self.phases is not None
            return self.phases[name]
        return self.onnx_models[name]

    def calls_needed(self, solver: str) -> int | None:
        """The fewest cell calls with which a solver reproduced the reference; None if none were measured."""
        calls = self.convergence.get("calls")
        needed = calls.get(solver) if isinstance(calls, dict) else None
        return needed if is_count(needed, 1) and needed <= MAX_CALLS else None  # type: ignore

    @property
    def proof(self) -> dict[str, Any] | None:
        """The solver that export proved to give the reference's predictions; None if none was proven.

        A stranger may have written the proof, so its types are checked.
        """
        proof = self.convergence.get("proof")
        if not isinstance(proof, dict) or not self.behaves_like_ode:
            return None
        calls, shares = proof.get("calls"), (proof.get("same"), proof.get("same_at_exit"))
        is_valid = (
            isinstance(proof.get("solver"), str)
            and (is_count(calls, 1) and calls <= MAX_CALLS)  # type: ignore[operator]
            and is_count(proof.get("outputs"), LEAST_OUTPUTS)
            and all(is_number(share) and share >= LEAST_SAME for share in shares)  # type: ignore[operator]
        )
        return proof if is_valid else None

    def trial(self, solver: str, calls: int | None) -> dict[str, Any]:
        """The record of a solver's trial with this number of calls; empty if there is none."""
        trials = self.convergence.get("trials")
        for trial in trials if isinstance(trials, list) else []:
            if isinstance(trial, dict) and (trial.get("solver"), trial.get("calls")) == (solver, calls):
                return trial
        return {}


def checksum_of(fields: Mapping[str, Any]) -> str:
    """The sha256 of all other fields, independent of whitespace and the order of keys."""
    others = {name: value for name, value in fields.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _onnx_file(raw: Mapping[str, Any]) -> OnnxFile:
    name = _take(raw, "file", str)
    if PurePosixPath(name).name != name or "\\" in name or name in ("", ".", ".."):
        raise BundleError(f"{FILE_NAME} names a file outside the bundle: {short(name)!r}")
    return OnnxFile(
        file=name,
        sha256=_take(raw, "sha256", str),
        bytes=_size(raw, "bytes"),
        inputs=_ports(raw, "inputs"),
        outputs=_ports(raw, "outputs"),
    )


def _phases(raw: Mapping[str, Any]) -> dict[str, OnnxFile] | None:
    """The models of the phases; plain exports and older bundles have none."""
    if raw.get("phases") is None:
        return None
    files = _take(raw, "phases", dict)
    return {name: _onnx_file(_take(files, name, dict)) for name in PHASES}


def _ports(raw: Mapping[str, Any], key: str) -> tuple[Port, ...]:
    ports = _take(raw, key, list)
    return tuple(
        Port(_take(p, "name", str), _take(p, "type", str), tuple(_take(p, "shape", list))) for p in ports
    )


def _rounds(raw: Mapping[str, Any]) -> int:
    rounds = _size(raw, "smoothing")
    if rounds > MAX_ROUNDS:
        raise BundleError(f"{FILE_NAME} has smoothing {short(rounds)}, which must be at most {MAX_ROUNDS}")
    return rounds


def _encoding(raw: Mapping[str, Any]) -> FeatureEncoding | None:
    """The encoding of tables; older bundles have none."""
    if raw.get("feature_encoding") is None:
        return None
    try:
        found = FeatureEncoding.from_value(raw["feature_encoding"])
    except ValueError as error:
        raise BundleError(
            f"{FILE_NAME} has a feature_encoding that cannot be read: {reason(error)}"
        ) from error
    if found.width != raw["features"]:
        raise BundleError(
            f"{FILE_NAME} has a feature_encoding of {found.width} features, but the model takes "
            f"{short(raw['features'])}"
        )
    return found


def _one_of(raw: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value: str = _take(raw, key, str)
    if value not in known:
        raise BundleError(f"{FILE_NAME} has {key} {short(value)!r}, not one of {', '.join(known)}")
    return value


def _size(raw: Mapping[str, Any], key: str) -> int:
    value: int = _take(raw, key, int)
    if value < 1:
        raise BundleError(f"{FILE_NAME} has {key} {short(value)}, which must be positive")
    return value


def _class_names(raw: Any) -> tuple[str, ...] | None:
    if raw.get("class_names") is None:
        return None
    names = tuple(map(str, _take(raw, "class_names", list)))
    longest = max(map(len, names), default=0)
    if longest > MAX_NAME:
        raise BundleError(
            f"{FILE_NAME} has a class name of {longest:,} characters; at most {MAX_NAME:,} are supported"
        )
    return names


def _take(raw: Any, key: str, kind: type) -> Any:
    if not isinstance(raw, dict) or key not in raw:
        raise BundleError(f"{FILE_NAME} has no {key!r}")
    if not isinstance(raw[key], kind) or (isinstance(raw[key], bool) and kind is not bool):
        raise BundleError(f"{FILE_NAME} has {key!r} as {type(raw[key]).__name__}, not {kind.__name__}")
    return raw[key]
