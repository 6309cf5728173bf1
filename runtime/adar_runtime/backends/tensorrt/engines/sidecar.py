"""Engine files and their sidecars: JSON files that say what an engine was built from, with what and for what.

An engine file holds only the bytes of TensorRT, so that other tools can read it. The sidecar tells whether
the engine can be used on this machine.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from adar_runtime.backends.tensorrt.engines import FOLDER
from adar_runtime.backends.tensorrt.engines.packages import MODULES
from adar_runtime.backends.tensorrt.engines.profiles import Profile, Range, Shapes
from adar_runtime.errors import BackendError, BundleError, reason, short
from adar_runtime.files import changed_folder, check_holes, read_bundle_file
from adar_runtime.temporary_files import NAME

SCHEMA = 2
PORTABLE = 80  # an engine built for no specific GPU runs on this compute capability and later
MAX_BYTES = 2**20  # largest sidecar that is read
SUFFIX = ".engine"


@dataclass(frozen=True)
class Sidecar:
    """Description of one engine."""

    onnx_model: str  # encoder, cell, head or clock
    onnx_sha256: str
    engine_sha256: str
    bytes: int
    package: str  # that built the engine: "tensorrt" or "rtx"
    version: str  # of the package
    version_compatible: bool  # later minor versions of the package can load the engine
    compute_capabilities: tuple[int, ...]  # targets of the build; empty: 8.0 and later
    precision: str  # of the bundle
    profiles: tuple[Profile, ...]  # graph sizes
    shapes: tuple[dict[str, Shapes], ...]  # per profile: every input with a dynamic dimension
    activation_bytes: tuple[int, ...]  # scratch memory for the largest shapes of each profile, if known
    user_allocation: bool  # built so that a CUDA graph can capture the engine (TensorRT-RTX)
    optimization_level: int
    workspace: int | None  # limit in bytes, if there was one
    built_by: str  # version of adar-deploy

    @property
    def target(self) -> str:
        """The target GPUs, as part of the file name."""
        return target_name(self.package, self.compute_capabilities)

    @property
    def builder(self) -> str:
        """The package's name on PyPI."""
        return _pip_name(self.package)

    @property
    def gpus(self) -> str:
        """The GPUs that can run the engine, in words."""
        found = ", ".join(map(_dotted, self.compute_capabilities)) or f"{_dotted(PORTABLE)} and later"
        return f"compute capability {found}"

    @property
    def file(self) -> str:
        return f"{self.onnx_model}-{self.target}{SUFFIX}"

    def activation_by_profile(self) -> list[tuple[Profile, int | None]]:
        """Each profile, and the scratch memory for its largest shapes, if known."""
        return list(zip_longest(self.profiles, self.activation_bytes[: len(self.profiles)]))

    def to_json(self) -> str:
        fields = {_JSON_KEYS.get(name, name): value for name, value in asdict(self).items()}
        return json.dumps({"schema": SCHEMA} | fields, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Sidecar":
        """Parse and check a sidecar. Raises ValueError if the text is not a valid sidecar."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
            raise ValueError(f"the schema is not {SCHEMA}")
        names = {_JSON_KEYS.get(name, name): name for name in cls.__dataclass_fields__}
        if raw.keys() != names.keys():
            raise ValueError("the fields are not those of a sidecar")
        raw = {names[key]: value for key, value in raw.items()}
        for name in _NUMBERS:
            _whole(raw[name])
        if raw["workspace"] is not None:
            _whole(raw["workspace"])
        raw["compute_capabilities"] = tuple(map(_whole, raw["compute_capabilities"]))
        raw["activation_bytes"] = tuple(map(_whole, raw["activation_bytes"]))
        raw["profiles"] = tuple(map(_profile, raw["profiles"]))
        raw["shapes"] = tuple(
            {str(name): _shapes(*shapes) for name, shapes in one.items()} for one in raw["shapes"]
        )
        found = cls(**raw)
        if not all(isinstance(getattr(found, name), str) for name in _TEXTS):
            raise ValueError("a text field does not hold text")
        if not all(isinstance(getattr(found, name), bool) for name in _SWITCHES):
            raise ValueError("a switch is neither true nor false")
        return found

    def incompatibility(self, onnx_sha256: str, package: str, version: str) -> str | None:
        """Why the engine cannot be used with this ONNX model and package; None if it can."""
        if self.onnx_sha256 != onnx_sha256:
            return f"it was built from a different {self.onnx_model}.onnx"
        if self.package != package:
            return f"it was built with {self.builder}, but {_pip_name(package)} is installed"
        if self.version != version and not (self.version_compatible and _is_later(version, self.version)):
            return f"it was built with {self.builder} {short(self.version)}, but {version} is installed"
        return None

    def other_gpu(self, capability: int) -> str | None:
        """Why the engine cannot run on a GPU of this compute capability, if TensorRT itself does not tell."""
        if capability in self.compute_capabilities or (
            not self.compute_capabilities and capability >= PORTABLE
        ):
            return None
        return f"it was built for {self.gpus}, but this GPU has {_dotted(capability)}"


_JSON_KEYS = {"onnx_model": "graph", "package": "flavour"}
"""Fields whose key in the file differs from the field's name, so that older sidecars stay readable."""

_TEXTS = ("onnx_model", "onnx_sha256", "engine_sha256", "package", "version", "precision", "built_by")
_NUMBERS = ("bytes", "optimization_level")
_SWITCHES = ("version_compatible", "user_allocation")


def _whole(value: object) -> int:
    """Check that a value is a whole number: Python's JSON also has fractions, Infinity and NaN."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{short(value)} is not a whole number")
    return value


def _ascending(values: Sequence[object]) -> list[int]:
    found = list(map(_whole, values))
    if sorted(found) != found:
        raise ValueError("a range is not in ascending order")
    return found


def _profile(raw: Mapping[str, Any]) -> Profile:
    rows = raw.get("rows", {})
    sizes = {name: Range(*_ascending(numbers)) for name, numbers in raw.items() if name != "rows"}
    return Profile(**sizes, rows={str(name): Range(*_ascending(numbers)) for name, numbers in rows.items()})


def _shapes(least: Sequence[object], likely: Sequence[object], most: Sequence[object]) -> Shapes:
    dimensions = [_ascending(numbers) for numbers in zip(least, likely, most, strict=True)]
    return Shapes(*(tuple(numbers[index] for numbers in dimensions) for index in range(3)))


def target_name(package: str, capabilities: Sequence[int]) -> str:
    """Part of a file name: `rtx` (all GPUs from 8.0 on), `rtx-sm80-sm89` or `tensorrt-sm90`."""
    return "-".join([package, *(f"sm{number}" for number in capabilities)])


def _pip_name(package: str) -> str:
    return MODULES.get(package, short(package)).replace("_", "-")


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _is_later(installed: str, built: str) -> bool:
    """Whether the installed version has the same major number and is not older."""
    try:
        here, there = ([int(part) for part in one.split(".")] for one in (installed, built))
    except ValueError:
        return False
    return here[0] == there[0] and here >= there


def sha256(content: bytes) -> str:
    """The SHA-256 hash as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def write_engines(bundle: Path, engines: Mapping[str, tuple[Sidecar, bytes]]) -> None:
    """Write all engines or, on failure, none: the folder is replaced in one move."""
    folder, kept = bundle / FOLDER, kept_files(bundle)
    with changed_folder(folder) as new:
        for path in kept:
            shutil.copy2(path, new)
        for sidecar, content in engines.values():
            (new / sidecar.file).write_bytes(content)
            (new / sidecar.file).with_suffix(".json").write_text(sidecar.to_json(), encoding="utf-8")


def kept_files(bundle: Path) -> list[Path]:
    """The files that stay when engines are written: those for other GPUs.

    Raises:
        BackendError: Copies of them would fill the disk, or a folder or a link would be deleted.
    """
    folder = bundle / FOLDER
    found = [path for path in (folder.iterdir() if folder.is_dir() else ()) if not NAME.fullmatch(path.name)]
    other = next((path for path in found if path.is_symlink() or not path.is_file()), None)
    if other is not None:
        raise BackendError(f"{other} is not a file, and would be deleted: move it out of the folder")
    try:
        check_holes(found)
    except ValueError as error:
        raise BackendError(f"{folder} has files that no build wrote ({error}): remove the folder") from error
    return found


def sidecars(bundle: Path) -> Iterator[Sidecar]:
    """Sidecars of all engines of a bundle. Invalid files are skipped."""
    folder = bundle / FOLDER
    for path in [] if folder.is_symlink() else sorted(folder.glob("*.json")):
        try:
            found = Sidecar.from_json(read_bundle_file(path, MAX_BYTES).decode("utf-8"))
        except (OSError, BundleError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if (
            path.name == found.file.removesuffix(SUFFIX) + ".json"
        ):  # so the name cannot lead outside the folder
            yield found


def outdated(bundle: Path) -> bool:
    """Whether the bundle has engines of an older version of adar-deploy, with another format of sidecars."""
    folder = bundle / FOLDER
    for path in [] if folder.is_symlink() else sorted(folder.glob("*.json")):
        with suppress(OSError, BundleError, ValueError, RecursionError):
            raw = json.loads(read_bundle_file(path, MAX_BYTES).decode("utf-8"))
            schema = raw.get("schema") if isinstance(raw, dict) else None
            if isinstance(schema, int) and schema < SCHEMA:
                return True
    return False


def read_engine(bundle: Path, sidecar: Sidecar) -> bytes:
    """Read an engine and check that its bytes are unchanged since the build."""
    path = bundle / FOLDER / sidecar.file
    try:
        content = read_bundle_file(path, sidecar.bytes)
    except BundleError as error:
        raise BackendError(f"{path} is not the engine that was built ({error}): build it again") from error
    except OSError as error:
        raise BackendError(f"{path} cannot be read: {reason(error)}") from error
    if sha256(content) != sidecar.engine_sha256:
        raise BackendError(f"{path} was changed after the build: build it again")
    return content


def summary(sidecar: Sidecar) -> dict[str, Any]:
    """The main fields of a sidecar, for JSON output."""
    return {
        "graph": sidecar.onnx_model,
        "file": sidecar.file,
        "bytes": sidecar.bytes,
        "flavour": sidecar.package,
        "version": sidecar.version,
        "compute_capabilities": list(sidecar.compute_capabilities),
        "precision": sidecar.precision,
        "user_allocation": sidecar.user_allocation,
        "activation_bytes": max(sidecar.activation_bytes, default=None),
        "profiles": [
            {"name": profile.name} | profile.to_dict() | {"activation_bytes": needed}
            for profile, needed in sidecar.activation_by_profile()
        ],
    }
