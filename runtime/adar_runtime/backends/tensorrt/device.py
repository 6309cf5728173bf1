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
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
ASK_DRIVER = f"""
import ctypes
driver, number = ctypes.CDLL("{DRIVER}"), ctypes.c_int()
def ask(call, *arguments):
    if getattr(driver, call)(ctypes.byref(number), *arguments):
        raise SystemExit(1)
    return number.value
if not driver.cuInit(0):
    for device in range(ask("cuDeviceGetCount")):
        major, minor = (ask("cuDeviceGetAttribute", which, device) for which in ({MAJOR}, {MINOR}))
        print(10 * major + minor)
"""


@lru_cache
def compute_capabilities() -> tuple[int, ...]:
    """The compute capability of each CUDA device as one number: 89 is 8.9."""
    command = [sys.executable, "-I", "-c", ASK_DRIVER]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)  # noqa: S603
        return tuple(map(int, asked.stdout.split()))
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


@lru_cache
def device_problem() -> str | None:
    """Why no CUDA device can be used; None if one can."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return "there is no CUDA driver, so no CUDA device can be used"
    return None if compute_capabilities() else "the CUDA driver finds no device"


def bindings_problem() -> str | None:
    """Why `cuda.bindings` (package cuda-python) cannot be used; None if it is installed."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return "cuda-python is not installed: pip install 'adar-deploy[tensorrt]' or 'adar-deploy[rtx]'"
    return None
