"""Whether a CUDA device is available. Nothing here initialises CUDA in this process.

A process that has initialised CUDA cannot fork: CUDA does not work in the child. Data loaders and servers
fork, and `available()` runs before they do. Therefore another process asks the driver.
"""

import ctypes
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec

DRIVER = "libcuda.so.1"
TIMEOUT = 60  # seconds; a driver that does not answer is no device
ASK_DRIVER = f"""
import ctypes
driver, count = ctypes.CDLL("{DRIVER}"), ctypes.c_int()
failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
print(0 if failed else count.value)
"""


@lru_cache
def device_problem() -> str | None:
    """Why no CUDA device can be used; None if one can."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return "there is no CUDA driver, so no CUDA device can be used"
    return None if _device_count() else "the CUDA driver finds no device"


def _device_count() -> int:
    command = [sys.executable, "-I", "-c", ASK_DRIVER]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)  # noqa: S603
        return int(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def bindings_problem() -> str | None:
    """Why `cuda.bindings` (package cuda-python) cannot be used; None if it is installed."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "cuda-python is not installed: pip install 'adar-deploy[tensorrt]' or 'adar-deploy[rtx]'"
    return None
