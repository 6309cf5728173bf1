"""A context as a folder: plain `.npy` arrays, and a manifest with their hashes. Nothing is unpickled."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.bundle.manifest import Manifest, checksum_of
from adar_runtime.errors import BundleError, GraphError, short
from adar_runtime.files import Marker, check_holes, new_folder, open_regular
from adar_runtime.graph import FeatureEncoding
from adar_runtime.graph import _checks as checks
from adar_runtime.graph.formats.npy import map_array, write_array, write_stack
from adar_runtime.graph.neighbours import Neighbours
from adar_runtime.in_context.experts import ANALYSED
from adar_runtime.in_context.placement import Placement
from adar_runtime.in_context.similar_nodes import LARGEST as LARGEST_COMPARED
from adar_runtime.in_context.similar_nodes import ComparedNodes
from adar_runtime.in_context.start import RESTARTS, ROUNDS
from adar_runtime.json_files import parse_json
from adar_runtime.loop.result import Result
from adar_runtime.loop.stopping import StopReason
from adar_runtime.phases import in_context_step
from adar_runtime.phases.context import Context, Kept, check_can_remember
from adar_runtime.phases.kept_calls import KeptCall, KeptCalls, row_width
from adar_runtime.phases.kept_edges import KeptEdges
from adar_runtime.phases.models import PhaseModels
from adar_runtime.phases.pretrained_context import context_of
from adar_runtime.phases.run_record import check_from
from adar_runtime.phases.sharded_step import FOR_MESSAGE, FOR_UPDATE

if TYPE_CHECKING:
    from adar_runtime.bundle.bundle import Bundle

FILE_NAME = "context.json"
FORMAT, SCHEMA = "adar context", 3
MAX_BYTES = 2**26
LARGEST = 2**63  # of a number of steps
MOVED = ("weight", "previous_weight")
CALL = "call_"  # begins the names of files with an array for each call of a pretrained model
CHANGED = ("sent", "encoded", "smoothed")  # by an update
EDGES = ("starts", "sources"), ("receiver_starts", "receivers")
PLACEMENT = ("basis", "middles", "matrix", "labels")
COMPARED = {name: f"compared_{name}" for name in ("numbers", "root", "rows", "psi")}
NAMES = (
    "sent",
    "encoded",
    "smoothed",
    "targets",
    "target_x",
    "scores",
    "ids",
    *EDGES[0],
    *EDGES[1],
    *FOR_MESSAGE,
    *FOR_UPDATE,
    *MOVED,
    *PLACEMENT,
    *COMPARED.values(),
    *(f"{CALL}{name}" for name in (*in_context_step.FOR_UPDATE, *MOVED)),
)
MARKER = Marker(FILE_NAME, "format", FORMAT, own=rf"context\.json|({'|'.join(NAMES)})\.npy")
OF_RESULT = (
    "budget",
    "best_step",
    "backend",
    "regression",
    "solver",
    "proof",
    "alignment",
    "times",
    "timings",
)


def save_context(context: Context, path: Path, check: Callable[[], None] = lambda: None) -> None:
    """Write a context. An older one in the folder is replaced, unless `check` refuses that."""
    kept = context.kept
    calls = kept.calls.calls
    arrays: dict[str, NDArray[Any]] = {
        "targets": kept.targets,
        "scores": kept.result.scores,
        "encoded": kept.encoded,
    }
    edges = kept.edges.merged()
    directions = [edges.incoming] if edges.go_both_ways else [edges.incoming, edges.outgoing]
    for names, each in zip(EDGES, directions, strict=False):
        arrays |= dict(zip(names, (each.starts, each.sources), strict=True))
    if calls:
        of_each = [call.for_message | call.for_update for call in calls]
        files = _Calls.of(context.manifest)
        arrays |= {files.file(name): np.stack([each[name] for each in of_each]) for name in files.names}
    if kept.placement is not None:
        arrays |= {name: getattr(kept.placement, name) for name in PLACEMENT}
        arrays |= {file: getattr(kept.placement.compared, name) for name, file in COMPARED.items()}
    if kept.smoothed:
        arrays["smoothed"] = np.stack(kept.smoothed)
    optional = {"target_x": kept.target_features, "ids": kept.ids}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    result = kept.result
    with new_folder(path, MARKER, check) as folder:
        for name, array in arrays.items():
            write_array(folder / f"{name}.npy", array)
        written = [*arrays, *(["sent"] if calls else [])]
        if calls:
            write_stack(folder / "sent.npy", kept.calls.rows)
        fields = {
            "format": FORMAT,
            "schema": SCHEMA,
            "bundle": context.manifest.checksum,
            "result": {name: getattr(result, name) for name in OF_RESULT}
            | {"stop_reason": result.stop_reason.name, "class_names": result.class_names}
            | ({} if result.check is None else {"check": asdict(result.check)}),
            "files": {name: _sha256(folder / f"{name}.npy") for name in written},
        }
        if kept.encoding is not None:
            fields["feature_encoding"] = kept.encoding.to_value()
        fields["checksum"] = checksum_of(parse_json(json.dumps(fields)))
        (folder / FILE_NAME).write_text(json.dumps(fields))


def is_of_another_bundle(path: Path, bundle: "Bundle") -> bool:
    """Whether this folder has a context that was made with another bundle."""
    own = Marker(FILE_NAME, "bundle", bundle.manifest.checksum)
    return MARKER.marks(path) and not own.marks(path)


def load_context(bundle: "Bundle", path: str | Path, *, shared: bool = False) -> Context:
    """Open a context that `Context.save` wrote. What is kept stays in the files, and is mapped.

    Args:
        bundle: The bundle that the context was made with.
        path: The folder.
        shared: True if several processes use the folder: each one sees the rows that the others update. The
            caller lets only one of them use the context at a time, and passes on `KeptEdges.changes`.

    Returns:
        The context. `Context.update` changes it in memory only; save it again to keep the change. With
        `shared`, it changes the files.

    Raises:
        GraphError: The folder is not a context, or was changed or replaced.
        BundleError: The context was made with another bundle.
    """
    path, manifest = Path(path), bundle.manifest
    check_can_remember(manifest, by_row=bundle.by_row)
    try:
        raw = _description(path)
        if raw["format"] != FORMAT or raw["schema"] != SCHEMA or raw["checksum"] != checksum_of(raw):
            raise ValueError("it is of another version, or was changed")
        if raw["bundle"] != manifest.checksum:
            raise BundleError(
                f"{path}: the context was made with another bundle: make it again (adar-deploy remember)"
            )
        check_holes(path / f"{name}.npy" for name in raw["files"] if name in NAMES)
        arrays = {name: _checked(path, name, digest, shared) for name, digest in raw["files"].items()}
        kept = _kept(arrays, raw["result"], manifest)
        if "feature_encoding" in raw:
            kept = kept._replace(encoding=_encoding(raw["feature_encoding"], kept, manifest))
        # A file may have been replaced after its hash was compared.
        if _description(path)["checksum"] != raw["checksum"]:
            raise GraphError(f"{path} was replaced while it was opened: open it again")
    except OSError as error:
        raise GraphError(f"{path}: not a context ({FILE_NAME}: {error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise GraphError(f"{path}: the context is damaged ({short(error)}): make it again") from error
    models = PhaseModels(bundle.path, manifest, bundle.threads, known=bundle.is_made_here)
    return context_of(models, manifest, kept)


def _description(path: Path) -> Any:
    with open_regular(path / FILE_NAME) as file:
        return parse_json(file.read(MAX_BYTES).decode())


class _Calls(NamedTuple):
    """The arrays that are kept of each call, and the names of their files."""

    for_message: tuple[str, ...]
    for_update: tuple[str, ...]
    prefix: str

    @classmethod
    def of(cls, manifest: Manifest) -> "_Calls":
        if manifest.in_context:
            return cls(in_context_step.FOR_MESSAGE, (*in_context_step.FOR_UPDATE, *MOVED), CALL)
        return cls(FOR_MESSAGE, (*FOR_UPDATE, *MOVED), "")

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys((*self.for_message, *self.for_update)))

    def file(self, name: str) -> str:
        return f"{self.prefix}{name}"


def _checked(path: Path, name: str, digest: str, shared: bool) -> NDArray[Any]:
    """An array of the folder, after its hash was compared. Arrays that updates of others change have none."""
    file = path / f"{name}.npy"
    if name not in NAMES:
        raise ValueError(f"{short(name)} is not one of its files")
    if shared and name in CHANGED:
        return map_array(file, "r+")
    if _sha256(file) != digest:
        raise ValueError(f"{name}.npy was changed after it was written")
    return map_array(file, "c")


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fields(result: Mapping[str, Any]) -> dict[str, Any]:
    """The checked fields of the result that are not arrays."""
    fields = {name: result[name] for name in OF_RESULT}
    times, alignment, seconds = fields["times"], fields["alignment"], fields["timings"]
    texts = all(isinstance(fields[name], str) for name in ("backend", "solver", "proof"))
    whole = all(type(fields[name]) is int and fields[name] < LARGEST for name in ("budget", "best_step"))
    lists = isinstance(times, list) and isinstance(alignment, list) and isinstance(seconds, dict)
    if not (texts and whole and lists and isinstance(fields["regression"], bool)):
        raise ValueError("a field of its result has another type")
    if not all(isinstance(each, float | int) for each in (*times, *alignment, *seconds.values())):
        raise ValueError("a time or an alignment of its result is not a number")
    if len(times) != len(alignment) or not 0 <= fields["best_step"] < len(times) or fields["budget"] < 1:
        raise ValueError("its result has another number of steps")
    return fields


def _kept(arrays: Mapping[str, NDArray[Any]], result: Mapping[str, Any], manifest: Manifest) -> Kept:
    """Check the shapes, and build what a context consists of."""
    width = manifest.hidden
    scores, targets = (checks.matrix(name, arrays[name]) for name in ("scores", "targets"))
    encoded = checks.matrix("encoded", arrays["encoded"])
    nodes, of_row = len(scores), row_width(manifest, scores.shape[1])
    sent = arrays.get("sent", np.zeros((0, nodes, of_row), np.float32))
    smoothed = arrays.get("smoothed", np.zeros((0, nodes, width), np.float32))
    for name, array, columns in (
        ("sent", sent, of_row),
        ("smoothed", smoothed, width),
        ("encoded", encoded[None], width),
    ):
        if array.shape[1:] != (nodes, columns) or array.dtype.name not in ("float16", "float32"):
            raise ValueError(f"{name} has the shape {array.shape}")
    files = _Calls.of(manifest)
    of_calls = {name: arrays[files.file(name)] for name in files.names if len(sent)}
    if any(len(array) != len(sent) or array.dtype != np.float32 for array in of_calls.values()):
        raise ValueError("its calls differ in number")
    calls = [
        KeptCall(
            {name: np.asarray(of_calls[name][number]) for name in files.for_message},
            {name: np.asarray(of_calls[name][number]) for name in files.for_update},
        )
        for number in range(len(sent))
    ]
    names = result["class_names"]
    if len(targets) != scores.shape[1] or len(scores.T if names is None else names) != scores.shape[1]:
        raise ValueError("its scores, targets and class names differ in number")
    if result["regression"] is not manifest.regression:
        raise ValueError("its bundle predicts something else")
    answer = Result(
        scores=scores,
        stop_reason=StopReason[result["stop_reason"]],
        class_names=None if names is None else checks.names("class_names", names),
        ids=checks.ids(arrays["ids"], nodes) if "ids" in arrays else None,
        check=check_from(result.get("check")),
        **_fields(result),
    )
    described = checks.matrix("target_x", arrays["target_x"]) if "target_x" in arrays else None
    return Kept(
        calls=KeptCalls.mapped(sent, calls),
        edges=_edges(arrays, nodes),
        encoded=encoded,
        smoothed=list(smoothed),
        targets=targets,
        target_features=described,
        result=answer,
        ids=answer.ids,
        placement=_placement(arrays, scores.shape, smoothed.shape) if manifest.in_context else None,
    )


def _encoding(value: Any, kept: Kept, manifest: Manifest) -> FeatureEncoding:
    """How the table of new nodes becomes their features."""
    found = FeatureEncoding.from_value(value)
    if found.width != (manifest.features if kept.placement is None else len(kept.placement.basis)):
        raise ValueError(f"its feature_encoding has {found.width} features")
    return found


def _placement(
    arrays: Mapping[str, NDArray[Any]], scores: tuple[int, ...], smoothed: tuple[int, ...]
) -> Placement:
    """Check what new nodes need of a closed-form start."""
    nodes, classes = scores
    basis, middles, matrix = (checks.matrix(name, arrays[name]) for name in PLACEMENT[:3])
    labels, columns = arrays["labels"], basis.shape[1]
    compared = _compared(arrays, scores, columns)
    inputs = middles.size + 1 + compared.psi.shape[1]
    if middles.shape != (len(RESTARTS), columns) or matrix.shape != (inputs, columns):
        raise ValueError("its start was computed by another version")
    if labels.dtype != np.int64 or labels.shape != (nodes,) or smoothed != (ROUNDS, nodes, columns):
        raise ValueError("its start does not fit its nodes")
    checks.check_range("labels", labels + 1, classes + 1, "classes")
    return Placement(basis, middles, matrix, compared, labels, classes)


def _compared(arrays: Mapping[str, NDArray[Any]], scores: tuple[int, ...], columns: int) -> ComparedNodes:
    """Check the nodes that new ones are compared with."""
    nodes, classes = scores
    root, rows, psi = (
        checks.matrix(COMPARED[name], arrays[COMPARED[name]]) for name in ("root", "rows", "psi")
    )
    numbers, width = arrays[COMPARED["numbers"]], len(ANALYSED) * columns
    count = min(nodes, LARGEST_COMPARED) if numbers.size else 0  # a free baseline compares no nodes
    shapes = root.shape, rows.shape, psi.shape
    if shapes != ((width, width), (count, width), (count, psi.shape[1])) or psi.shape[1] > classes:
        raise ValueError("the nodes of its start that new ones are compared with have another shape")
    if numbers.dtype != np.int64 or numbers.shape != (count,):
        raise ValueError(f"{COMPARED['numbers']} are not the numbers of its compared nodes")
    checks.check_range(COMPARED["numbers"], numbers, nodes, "ids")
    return ComparedNodes(numbers, root, rows, psi)


def _edges(arrays: Mapping[str, NDArray[Any]], nodes: int) -> KeptEdges:
    """Check the edges: their positions and numbers are indices."""
    found = []
    for starts, sources in ((arrays[a], arrays[b]) for a, b in EDGES if a in arrays):
        if starts.dtype != np.int64 or sources.dtype != np.int64 or (starts.ndim, sources.ndim) != (1, 1):
            raise ValueError("its edges are not integers")
        if len(starts) != nodes + 1 or starts[0] or starts[-1] != len(sources) or not checks.rises(starts):
            raise ValueError("its edges do not fit its nodes")
        checks.check_range("edges", sources, nodes, "ids")
        found.append(Neighbours(starts, sources))
    return KeptEdges(found[0], found[-1])
