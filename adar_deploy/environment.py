"""What this machine has: processor cores, package versions, and the optional packages (extras)."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("adar-deploy", "numpy", "onnxruntime", "openvino", "onnx", "torch", "torch_geometric")
ONNXRUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")
"""Distributions of ONNX Runtime. All of them install the module onnxruntime."""

EXTRAS = {
    "train": ("torch", "torch_geometric"),
    "export": ("torch", "torch_geometric", "onnx"),
    "serve": ("grpc", "httptools", "open_inference", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    "sign": ("model_signing", "OpenSSL"),
}
"""The modules that each extra of adar-deploy installs."""


def is_installed(extra: str) -> bool:
    """Whether all packages of an extra are installed."""
    return all(find_spec(module) is not None for module in EXTRAS[extra])


def require(extra: str) -> None:
    """Raise a MissingExtraError unless all packages of an extra are installed."""
    if not is_installed(extra):
        from adar_runtime.errors import MissingExtraError

        raise MissingExtraError(f"adar-deploy {extra}", extra)
    if extra == "export" and find_spec("onnxruntime") is None:  # the user chooses one of two packages
        from adar_runtime.errors import MissingExtraError

        raise MissingExtraError("adar-deploy export", "export,cpu")


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Processor and versions, printed beside measurements. Nothing identifies the machine or its owner."""
    versions = {name: package_version(name) for name in PACKAGES}
    versions["onnxruntime"] = next(filter(None, map(package_version, ONNXRUNTIMES)), None)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor() or platform.processor() or "unknown",
        "cores": available_cores(),
        **{name: number for name, number in versions.items() if number is not None},
    }


def _processor() -> str | None:
    """The processor's name as Linux reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
