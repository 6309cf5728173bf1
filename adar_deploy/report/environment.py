"""What a measurement was made on, without what would name the machine or its owner."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from adar_deploy.speed import all_cores

PACKAGES = ("adar-deploy", "numpy", "onnxruntime-gpu", "onnxruntime", "onnx", "torch", "torch_geometric")


def environment() -> dict[str, str]:
    """Versions of what is installed, and the kind of machine."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    found["processor"] = _processor() or platform.processor() or "unknown"
    found["cores"] = str(all_cores())
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str | None:
    """Its name, where Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
