"""The phases of a bundle, with its encoder and head, as ONNX Runtime sessions on the CPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.backends.onnxruntime.sessions import session_of
from adar_runtime.bundle import known_models, onnx_guard
from adar_runtime.bundle.manifest import PHASES, Manifest
from adar_runtime.errors import BackendError, UsageError

Arrays = dict[str, np.ndarray[Any, Any]]
PROVIDER = "CPUExecutionProvider"


def check_phases(manifest: Manifest) -> None:
    """Refuse a bundle that has no phases of a step."""
    if manifest.phases is None:
        raise UsageError(
            "the bundle has no models of the phases of a step: export the run again with this version, "
            "without --plain"
        )


class PhaseModels:
    """The models that run a step in phases. Threads can share them."""

    def __init__(self, folder: Path, manifest: Manifest, threads: int | None, *, known: bool) -> None:
        """Read, check and open the models.

        `known`: this process made the models, so that they need no check.
        """
        check_phases(manifest)
        names = ("encoder", "head", *PHASES)
        contents = {name: onnx_guard.read_onnx_file(folder, manifest.onnx_file(name)) for name in names}
        if not known:
            known_models.check(manifest, contents)
        # Sessions take turns, so waiting threads of one session would take CPU time from the next.
        try:
            self.sessions = {
                name: session_of(content, PROVIDER, threads, spins=False)
                for name, content in contents.items()
            }
        except BackendError as error:
            if manifest.precision == "bf16":
                raise BackendError(
                    "the phases of a step run on the CPU, and ONNX Runtime has no bfloat16 products there: "
                    "export the run with --precision fp32"
                ) from error
            raise
        self._outputs = {
            name: [output.name for output in session.get_outputs()] for name, session in self.sessions.items()
        }

    def run(self, name: str, feeds: Mapping[str, Any]) -> Arrays:
        """Run one model, and return its outputs by name. Callers turn exceptions into errors."""
        outputs = self._outputs[name]
        return dict(zip(outputs, self.sessions[name].run(outputs, feeds), strict=True))
