"""What this machine has: processor cores, package versions, and the optional packages (extras)."""

import os
import platform
from importlib import import_module
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
    "serve": (
        "grpc",
        "httptools",
        "msgspec",
        "open_inference",
        "prometheus_client",
        "starlette",
        "uvicorn",
        "uvloop",
    ),
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


def import_early(extra: str, *others: str) -> None:
    """Import PyTorch, our package of an extra (train, export) and others, if the extra is installed.

    Call this before a `with` or `try` block: inside of one, a signal waits for the end of an import.
    """
    if is_installed(extra):
        for name in (f"adar_{extra}", *others):
            import_module(name)


def import_matplotlib() -> None:
    """Import matplotlib, if it is installed, without the settings in the working folder.

    The import reads a file matplotlibrc of that folder, which may have come with somebody else's data: it
    can make matplotlib start LaTeX with code of its author, or be a pipe that never ends. Call this before
    threads are started: the working folder of the process changes for a moment.
    """
    if find_spec("matplotlib") is None:
        return
    here = os.open(os.curdir, getattr(os, "O_PATH", os.O_RDONLY))
    try:
        os.chdir(os.sep)
        import_module("matplotlib")
    finally:
        os.fchdir(here)
        os.close(here)


def check_plot(path: Path) -> None:
    """Raise an error if a plot cannot be drawn, and prepare matplotlib for it."""
    from adar_runtime.evaluation.plots import check_drawable

    check_drawable(path)
    import_matplotlib()


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
