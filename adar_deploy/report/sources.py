"""A run and the bundle that was exported from it: who has one is helped to the other."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_runtime.run_files import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from adar_runtime.bundle.manifest import Manifest


@dataclass(frozen=True)
class Sources:
    """What there is to report on: at least one of the two."""

    run: Path | None
    bundle: Path | None

    @property
    def model(self) -> Path:
        """What is measured: the bundle where there is one, for that is what is deployed."""
        found = self.bundle or self.run
        assert found is not None
        return found

    def manifest(self) -> "Manifest | None":
        from adar_runtime.bundle.bundle import read_manifest

        return read_manifest(self.bundle) if self.bundle else None

    def read(self, name: str) -> Any:
        """A JSON file of the run; None where there is no run, or no such file in it."""
        from adar_runtime.errors import RunFolderError, reason

        if self.run is None or not (self.run / name).is_file():
            return None
        try:
            return json.loads((self.run / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(
                f"{self.run} holds a run that cannot be read: {name}: {reason(error)}"
            ) from error


def find_sources(path: Path, runs: Path, run: Path | None, bundle: Path) -> Sources:
    """What is in this folder, and its other half: the run or the bundle of the same weights."""
    from adar_runtime.bundle.bundle import read_manifest
    from adar_runtime.bundle.manifest import FILE_NAME
    from adar_runtime.errors import AdarError, RunFolderError
    from adar_runtime.files import find_by_hash

    if (path / FILE_NAME).is_file():
        weights = read_manifest(path).training.get("weights")
        candidates = [run / WEIGHTS] if run else runs.glob(f"*/{WEIGHTS}")
        found = find_by_hash((file for file in candidates if file.is_file()), weights)
        if run and found is None:
            raise RunFolderError(f"{run} holds other weights than the bundle was exported from")
        return Sources(found.parent if found else None, path)
    if not (path / CONFIG).is_file():
        raise RunFolderError(f"{path} holds neither a training run nor a bundle: name the folder of one")
    own = hashlib.sha256((path / WEIGHTS).read_bytes()).hexdigest() if (path / WEIGHTS).is_file() else None
    try:
        same = own is not None and read_manifest(bundle).training.get("weights") == own
    except AdarError:  # the default folder may hold anything
        same = False
    return Sources(path, bundle if same else None)
