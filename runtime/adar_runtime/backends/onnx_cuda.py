"""ONNX Runtime on an NVIDIA GPU."""

import ctypes
from collections.abc import Mapping
from functools import lru_cache

from adar_runtime.backends.onnx import OnnxBackend
from adar_runtime.manifest import Manifest


@lru_cache
def problem() -> str | None:
    """What the driver has to say. ONNX Runtime lists CUDA whether or not there is a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver, hence no CUDA device; use onnxruntime-cpu"
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or not count.value:
        return "the driver sees no CUDA device; use onnxruntime-cpu"
    return None


def open(graphs: Mapping[str, bytes], manifest: Manifest, threads: int | None) -> OnnxBackend:  # noqa: A001
    """Sessions on the first device."""
    return OnnxBackend("onnxruntime-cuda", "cuda", "CUDAExecutionProvider", graphs, manifest, threads)
