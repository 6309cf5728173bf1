"""What stands beside each engine: what it was built from, by what, for which GPUs and shapes.

An engine is raw bytes, so that other tools can read it, and bytes do not say whether they fit.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.flavours import MODULES, RTX
from adar_runtime.backends.tensorrt.engines.profiles import Profile, Range, Shapes
from adar_runtime.errors import BackendError, BundleError, reason, short
from adar_runtime.files import changed_folder, read_own
from adar_runtime.temporary_files import NAME

SCHEMA = 1
PORTABLE = (
    80  # an engine of rtx that was built for no GPU in particular takes this compute capability and later
)
MAX_BYTES = 2**20  # of a sidecar
SUFFIX = ".engine"


@dataclass(frozen=True)
class Sidecar:
    """About one engine."""

    graph: str  # encoder, cell, head or clock
    onnx_sha256: str
    engine_sha256: str
    bytes: int
    flavour: str
    version: str  # of the builder
    compute_capabilities: tuple[int, ...]  # that it was built for; none: 8.0 and later
    precision: str  # of the bundle
    profiles: tuple[Profile, ...]  # sizes of graphs
    shapes: tuple[dict[str, Shapes], ...]  # of every input with a free side, for each profile
    optimization_level: int
    workspace: int | None  # bytes, where there was a limit
    built_by: str  # the version of adar-deploy

    @property
    def target(self) -> str:
        """What it runs on, as its file's name says it."""
        return target_name(self.flavour, self.compute_capabilities)

    @property
    def builder(self) -> str:
        """The package, as pip calls it."""
        return _package(self.flavour)

    @property
    def gpus(self) -> str:
        """Those that it runs on."""
        found = ", ".join(map(_dotted, self.compute_capabilities)) or f"{_dotted(PORTABLE)} and later"
        return f"compute capability {found}"

    @property
    def file(self) -> str:
        return f"{self.graph}-{self.target}{SUFFIX}"

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA} | asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Sidecar":
        """Parse and check: a ValueError where it is not one of ours."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        if raw.keys() != cls.__dataclass_fields__.keys():
            raise ValueError("it has other fields than an engine's description")
        for name in _NUMBERS:
            _whole(raw[name])
        if raw["workspace"] is not None:
            _whole(raw["workspace"])
        raw["compute_capabilities"] = tuple(map(_whole, raw["compute_capabilities"]))
        raw["profiles"] = tuple(
            Profile(**{name: Range(*_ascending(sizes)) for name, sizes in one.items()})
            for one in raw["profiles"]
        )
        raw["shapes"] = tuple(
            {str(name): _shapes(*shapes) for name, shapes in one.items()} for one in raw["shapes"]
        )
        found = cls(**raw)
        if not all(isinstance(getattr(found, name), str) for name in _TEXTS):
            raise ValueError("a field that should be text is not")
        return found

    def misfit(self, onnx_sha256: str, flavour: str, version: str, capability: int) -> str | None:
        """Why it cannot be used here, and for what; None where it can."""
        if self.onnx_sha256 != onnx_sha256:
            return f"it was built from another {self.graph}.onnx than the bundle's"
        if self.flavour != flavour:
            return f"it was built by {_package(self.flavour)}, and {_package(flavour)} is what is installed"
        if self.version != version:
            return f"it was built by {_package(flavour)} {short(self.version)}, and {version} is installed"
        if capability in self.compute_capabilities or (
            not self.compute_capabilities and flavour == RTX and capability >= PORTABLE
        ):
            return None
        targets = ", ".join(map(_dotted, self.compute_capabilities)) or f"{_dotted(PORTABLE)} and later"
        return (
            f"it was built for GPUs of compute capability {targets}, and this one has {_dotted(capability)}"
        )


_TEXTS = ("graph", "onnx_sha256", "engine_sha256", "flavour", "version", "precision", "built_by")
_NUMBERS = ("bytes", "optimization_level")


def _whole(value: object) -> int:
    """A number of things. JSON as Python reads it also has fractions, Infinity and NaN."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{short(value)} is no whole number")
    return value


def _ascending(values: Sequence[object]) -> list[int]:
    found = list(map(_whole, values))
    if sorted(found) != found:
        raise ValueError("a range that does not ascend")
    return found


def _shapes(least: Sequence[object], likely: Sequence[object], most: Sequence[object]) -> Shapes:
    sides = [_ascending(side) for side in zip(least, likely, most, strict=True)]
    return Shapes(*(tuple(side[index] for side in sides) for index in range(3)))


def target_name(flavour: str, capabilities: Sequence[int]) -> str:
    """`rtx` for every GPU that rtx can build for at once, `rtx-sm80-sm89`, `tensorrt-sm90`."""
    return "-".join([flavour, *(f"sm{number}" for number in capabilities)])


def _package(flavour: str) -> str:
    return MODULES.get(flavour, short(flavour)).replace("_", "-")


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def sha256(content: bytes) -> str:
    """As hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_engines(bundle: Path, engines: Mapping[str, tuple[Sidecar, bytes]]) -> None:
    """All of them in one move, or none: until then, and where it fails, the old ones are there."""
    folder = bundle / FOLDER
    with changed_folder(folder) as new:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_file() and not path.is_symlink() and not NAME.fullmatch(path.name):
                shutil.copy2(path, new)  # engines for other GPUs
        for sidecar, content in engines.values():
            (new / sidecar.file).write_bytes(content)
            (new / sidecar.file).with_suffix(".json").write_text(sidecar.to_json(), encoding="utf-8")


def sidecars(bundle: Path) -> Iterator[Sidecar]:
    """Every engine that the bundle has; a file that is none of ours is passed over."""
    folder = bundle / FOLDER
    for path in [] if folder.is_symlink() else sorted(folder.glob("*.json")):
        try:
            found = Sidecar.from_json(read_own(path, MAX_BYTES).decode("utf-8"))
        except (OSError, BundleError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if path.name == found.file.removesuffix(SUFFIX) + ".json":  # hence no name that leads elsewhere
            yield found


def read_engine(bundle: Path, sidecar: Sidecar) -> bytes:
    """The bytes of an engine, if they are the ones that were built."""
    path = bundle / FOLDER / sidecar.file
    try:
        content = read_own(path, sidecar.bytes)
    except BundleError as error:
        raise BackendError(f"{path} is not the file that was built ({error}): build it again") from error
    except OSError as error:
        raise BackendError(f"{path} cannot be read: {reason(error)}") from error
    if sha256(content) != sidecar.engine_sha256:
        raise BackendError(f"{path} was changed after it was built: build it again")
    return content


def summary(sidecar: Sidecar) -> dict[str, Any]:
    """What there is to tell about an engine in a few words."""
    return {
        "graph": sidecar.graph,
        "file": sidecar.file,
        "bytes": sidecar.bytes,
        "flavour": sidecar.flavour,
        "version": sidecar.version,
        "compute_capabilities": list(sidecar.compute_capabilities),
        "precision": sidecar.precision,
        "profiles": [profile.to_dict() for profile in sidecar.profiles],
    }
