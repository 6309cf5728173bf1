"""ONNX Runtime on an NVIDIA GPU."""

from collections.abc import Mapping

from adar_runtime.backends import Settings
from adar_runtime.backends.onnxruntime.recurrence import OnnxBackend
from adar_runtime.backends.tensorrt.cuda import device_problem
from adar_runtime.bundle.manifest import Manifest


def problem() -> str | None:
    """What the driver has to say. ONNX Runtime lists CUDA whether or not there is a device."""
    found = device_problem()
    return None if found is None else f"{found}; use onnxruntime-cpu"


def open(onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> OnnxBackend:  # noqa: A001
    """Sessions on the first device."""
    return OnnxBackend(
        "onnxruntime-cuda", "cuda", "CUDAExecutionProvider", onnx_models, manifest, settings.threads
    )
