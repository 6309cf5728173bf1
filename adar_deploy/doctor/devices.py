"""What a cell could run on: providers of ONNX Runtime, the CUDA driver, TensorRT."""

import ctypes
from importlib.util import find_spec

from adar_deploy.doctor.findings import Finding, State
from adar_deploy.doctor.probes import probe

DRIVER = "libcuda.so.1"
FLAVOURS = {"tensorrt": "tensorrt", "tensorrt_rtx": "rtx"}
"""TensorRT's modules, and the extra that each is in."""


def look_at_providers() -> list[Finding]:
    """Every provider that ONNX Runtime lists, by running a tiny graph on it: listing them proves nothing."""
    try:
        import onnxruntime
    except Exception as error:  # a broken install fails in many ways
        return [Finding("ONNX Runtime", "import", State.broken, str(error), "pip install -U onnxruntime-gpu")]
    return [_provider(name) for name in onnxruntime.get_available_providers()]


def _provider(name: str) -> Finding:
    found = probe("provider", name)
    if "error" not in found:
        return Finding("ONNX Runtime", name, State.works, "ran a tiny graph")
    needs_gpu = name.startswith(("CUDA", "Tensorrt", "NvTensorRTRTX"))
    if needs_gpu and not gpus():
        return Finding("ONNX Runtime", name, State.absent, "listed, and there is no CUDA device")
    mend = "pip install 'onnxruntime-gpu[cuda,cudnn]'" if needs_gpu else "pip install -U onnxruntime-gpu"
    return Finding("ONNX Runtime", name, State.broken, f"listed, and does not work: {found['error']}", mend)


def look_at_gpu() -> list[Finding]:
    """The driver, its devices, and what builds engines for them."""
    return [*_cuda(), *(_tensorrt(module, extra) for module, extra in FLAVOURS.items())]


def gpus() -> list[str]:
    """Names of the CUDA devices that the driver sees."""
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


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError:
        return None


def _cuda() -> list[Finding]:
    driver = _driver()
    if driver is None:
        return [Finding("CUDA", "driver", State.absent, "none: everything runs on the processor")]
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    number = f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    names = gpus()
    if not names:
        mend = "nvidia-smi says why; in a container, start it with --gpus all"
        return [Finding("CUDA", "driver", State.broken, f"{number}, and it sees no device", mend)]
    devices = [Finding("CUDA", name, State.works, f"device {index}") for index, name in enumerate(names)]
    return [Finding("CUDA", "driver", State.works, number), *devices]


def _tensorrt(module: str, extra: str) -> Finding:
    if find_spec(module) is None:
        return Finding("TensorRT", module, State.absent, f"not installed: it is the extra {extra}")
    found = probe("tensorrt", module)
    if "error" not in found:
        return Finding("TensorRT", module, State.works, f"{found['version']}, built a tiny engine")
    if not gpus():
        return Finding("TensorRT", module, State.absent, f"cannot build without a GPU: {found['error']}")
    mend = f"pip install -U 'adar-deploy[{extra}]'"
    return Finding("TensorRT", module, State.broken, found["error"], mend)
