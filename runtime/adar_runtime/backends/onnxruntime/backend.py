"""ONNX Runtime on the CPU and on an NVIDIA GPU."""

from collections.abc import Mapping
from typing import ClassVar

from adar_runtime.backends import CPU, CUDA, Settings, tensor_limits
from adar_runtime.backends.onnxruntime.batch import OnnxBatch
from adar_runtime.backends.onnxruntime.recurrence import CapturingOnnxRecurrence, OnnxRecurrence, Placement
from adar_runtime.backends.onnxruntime.sessions import (
    LOOPED,
    backend_errors,
    load_cuda_libraries,
    open_sessions,
    ports_of,
    session_of,
)
from adar_runtime.backends.prepared_batch import PreparedBatch
from adar_runtime.backends.prepared_graph import PreparedGraph, pairs_at_once
from adar_runtime.backends.tensorrt.device import device_problem
from adar_runtime.bundle.manifest import BATCHED_CELL, ONNX_MODELS, Manifest
from adar_runtime.bundle.signature import Ports


class _OnnxBackend:
    """The models of a bundle as ONNX Runtime sessions."""

    name: str
    device: ClassVar[str]
    provider: ClassVar[str]

    def __init__(self, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> None:
        self._manifest, self._settings = manifest, settings
        options = {name: self._provider_options(name) for name in onnx_models}
        self._sessions = open_sessions(onnx_models, manifest, self.provider, settings.threads, options)

    def _provider_options(self, _onnx_model: str) -> dict[str, str]:
        return {}

    @property
    def ports(self) -> dict[str, Ports]:
        return {name: ports_of(self._sessions[name]) for name in ONNX_MODELS}

    def start(self, prepared: PreparedGraph) -> OnnxRecurrence:
        with backend_errors():
            return OnnxRecurrence(self.name, Placement(self.device), self._sessions, prepared)


class OnnxCpuBackend(_OnnxBackend):
    """On the CPU: works everywhere."""

    name = CPU
    device = "cpu"
    provider = "CPUExecutionProvider"

    @staticmethod
    def problem() -> str | None:
        """None: ONNX Runtime is installed with this package."""
        return None

    def open_batched_cell(self, content: bytes) -> Ports:
        """Open the batched cell of the bundle, and return its actual inputs and outputs."""
        session = session_of(content, self.provider, self._settings.threads, spins=True)
        self._sessions[BATCHED_CELL] = session
        return ports_of(session)

    def start_batch(self, prepared: PreparedBatch) -> OnnxBatch:
        """Encode several graphs, after `open_batched_cell`."""
        with backend_errors():
            return OnnxBatch(self.name, self._sessions, prepared)


class OnnxCudaBackend(_OnnxBackend):
    """On a CUDA device."""

    name = CUDA
    device = "cuda"
    provider = "CUDAExecutionProvider"

    def __init__(self, onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> None:
        load_cuda_libraries()
        super().__init__(onnx_models, manifest, settings)

    def _provider_options(self, onnx_model: str) -> dict[str, str]:
        graphs = self._settings.cuda_graph and onnx_model == LOOPED
        return {
            "device_id": str(self._settings.device),
            # By default, the provider multiplies float32 matrices in TF32, which has 10 bits of mantissa.
            "use_tf32": "1" if self._settings.tf32 else "0",
            "enable_cuda_graph": "1" if graphs else "0",
        }

    def start(self, prepared: PreparedGraph) -> OnnxRecurrence:
        shapes = {name: array.shape for name, array in prepared.structure.items()}
        pairs = min(prepared.outputs, pairs_at_once(prepared.graph))
        tensor_limits.check(prepared, self._manifest, shapes, pairs)
        placement = Placement(self.device, self._settings.device, cuda_graph=self._settings.cuda_graph)
        with backend_errors():
            return CapturingOnnxRecurrence(self.name, placement, self._sessions, prepared)

    @staticmethod
    def problem() -> str | None:
        """The driver's answer. ONNX Runtime lists CUDA even where there is no device."""
        found = device_problem()
        return None if found is None else f"{found}; use onnxruntime-cpu"
