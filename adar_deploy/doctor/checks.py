"""The checks: machine, packages, ONNX Runtime, OpenVINO, CUDA, TensorRT, and a small model end to end."""

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adar_deploy.configuration import FILES, PREFIX
from adar_deploy.doctor import packages
from adar_deploy.doctor.findings import Finding, State
from adar_deploy.doctor.probes import probe
from adar_deploy.environment import available_cores, is_installed

CHECKS = 6  # at most, for the progress bar
LEAST_PYTHON = (3, 11)
DRIVER = "libcuda.so.1"
TENSORRT_MODULES = {"tensorrt": "tensorrt", "tensorrt_rtx": "rtx"}
"""The Python modules of TensorRT, and the extra that installs each."""


def examine(bundle: Path | None, on_check: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """All findings, in the order of the output."""
    found: list[Finding] = []
    for name, check in _checks(bundle):
        on_check(name)
        found += check()
    return found


def _checks(bundle: Path | None) -> Iterator[tuple[str, Callable[[], list[Finding]]]]:
    yield "machine", _machine
    yield "packages", packages.check
    yield "providers", lambda: [*_providers(), _openvino()]
    yield "GPU", lambda: [*_cuda(), *(_tensorrt(name, extra) for name, extra in TENSORRT_MODULES.items())]
    yield "model", _model
    if bundle is not None:
        yield "bundle", lambda: [_bundle(bundle)]


def _machine() -> list[Finding]:
    from adar_runtime.bundle.memory import limit_bytes

    details = {"system": f"{platform.system()} {platform.machine()}", "cores": str(available_cores())}
    free = limit_bytes()
    if free is not None:
        details["free memory"] = f"{free / 1e9:.1f} GB"
    sources = [name for name in FILES if Path(name).is_file()]
    sources += sorted(name for name in os.environ if name.startswith(f"{PREFIX}_"))
    details["options from"] = ", ".join(["command line", *sources])
    return [_python(), *(Finding("machine", name, State.works, detail) for name, detail in details.items())]


def _python() -> Finding:
    detail = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] >= LEAST_PYTHON:
        return Finding("machine", "Python", State.works, detail)
    fix = f"create an environment with Python {'.'.join(map(str, LEAST_PYTHON))} or later"
    return Finding("machine", "Python", State.broken, detail, fix)


def _providers() -> list[Finding]:
    """Run a tiny model on every provider that ONNX Runtime lists: a listed provider may still not work."""
    try:
        import onnxruntime
    except Exception as error:  # a broken installation fails in many ways
        return [
            Finding("ONNX Runtime", "import", State.broken, str(error), "pip install -U 'adar-deploy[cpu]'")
        ]
    return [_provider(name) for name in onnxruntime.get_available_providers()]


def _provider(name: str) -> Finding:
    found = probe("provider", name)
    if "error" not in found:
        return Finding("ONNX Runtime", name, State.works, "ran a tiny model")
    needs_gpu = name.startswith(("CUDA", "Tensorrt", "NvTensorRTRTX"))
    if needs_gpu and not _gpus():
        return Finding("ONNX Runtime", name, State.absent, "installed, but there is no CUDA device")
    fix = "pip install 'adar-deploy[cuda]'" if needs_gpu else "pip install -U 'adar-deploy[cpu]'"
    return Finding("ONNX Runtime", name, State.broken, f"does not work: {found['error']}", fix)


def _openvino() -> Finding:
    fix = "pip install -U 'adar-deploy[openvino]'"
    if find_spec("openvino") is None:
        return Finding("OpenVINO", "CPU", State.absent, "not installed", fix)
    found = probe("openvino")
    if "error" in found:
        return Finding("OpenVINO", "CPU", State.broken, f"does not work: {found['error']}", fix)
    return Finding("OpenVINO", "CPU", State.works, f"{found['version']}, ran a tiny model")


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError:
        return None


def _gpus() -> list[str]:
    """Names of the CUDA devices that the driver reports."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    names = []
    for index in range(count.value):
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(name, 256, index)
        names.append(name.value.decode(errors="replace"))
    return names


def _cuda() -> list[Finding]:
    driver = _driver()
    if driver is None:
        return [Finding("CUDA", "driver", State.absent, "not installed: everything runs on the CPU")]
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    number = f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    names = _gpus()
    if not names:
        fix = "run nvidia-smi to see the reason; start a container with --gpus all"
        return [Finding("CUDA", "driver", State.broken, f"{number}, but it finds no device", fix)]
    devices = [Finding("CUDA", name, State.works, f"device {index}") for index, name in enumerate(names)]
    return [Finding("CUDA", "driver", State.works, number), *devices]


def _tensorrt(module: str, extra: str) -> Finding:
    fix = f"pip install -U 'adar-deploy[{extra}]'"
    if find_spec(module) is None:
        return Finding("TensorRT", module, State.absent, "not installed", fix)
    found = probe("tensorrt", module)
    if "error" not in found:
        return Finding("TensorRT", module, State.works, f"{found['version']}, built a tiny engine")
    if not _gpus():
        return Finding("TensorRT", module, State.absent, f"cannot build without a GPU: {found['error']}")
    return Finding("TensorRT", module, State.broken, found["error"], found.get("fix", fix))


def _model() -> list[Finding]:
    """Train a small model; export another one and run it."""
    return [
        _end_to_end("training", "train", "training", lambda found: f"trained 1 epoch on {found['device']}"),
        _end_to_end("export and run", "export", "export", _exported),
    ]


def _end_to_end(name: str, extra: str, probe_name: str, detail: Callable[[dict[str, Any]], str]) -> Finding:
    fix = f"pip install -U 'adar-deploy[{extra}]'"
    if not is_installed(extra):
        return Finding(
            "end to end", name, State.absent, f"not tried: the extra {extra} is not installed", fix
        )
    found = probe(probe_name)
    if "error" in found:
        return Finding("end to end", name, State.broken, found["error"], found.get("fix", fix))
    return Finding("end to end", name, State.works, detail(found))


def _exported(found: dict[str, Any]) -> str:
    ran = f"ran on {found['backend']} after {found['seconds']:.1f} s"
    return f"{ran}, largest difference from PyTorch {found['difference']:.0e}"


def _bundle(path: Path) -> Finding:
    """Load a bundle, and run it on a small graph."""
    found = probe("bundle", str(path))
    if "error" in found:
        fix = found.get("fix", f"adar-deploy export --out {path}")
        return Finding("end to end", str(path), State.broken, found["error"], fix)
    detail = f"ran {found['steps']} steps on {found['backend']} in {found['seconds']:.2f} s"
    return Finding("end to end", str(path), State.works, detail)
