"""ONNX Runtime on the processor: works everywhere."""

from collections.abc import Mapping

from adar_runtime.backends import Settings
from adar_runtime.backends.onnxruntime.recurrence import OnnxBackend
from adar_runtime.bundle.manifest import Manifest


def problem() -> str | None:
    """Nothing: ONNX Runtime is installed with this package."""
    return None


def open(onnx_models: Mapping[str, bytes], manifest: Manifest, settings: Settings) -> OnnxBackend:  # noqa: A001
    """Sessions on the processor."""
    return OnnxBackend(
        "onnxruntime-cpu", "cpu", "CPUExecutionProvider", onnx_models, manifest, settings.threads
    )
