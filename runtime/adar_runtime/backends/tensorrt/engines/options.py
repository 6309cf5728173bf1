"""Options of a build, and the GPUs that it is for."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from adar_runtime.backends.tensorrt.engines.packages import RTX, TensorRtPackage
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.errors import UsageError

LEVELS = range(6)  # optimization levels of the builder
HARDWARE = ("same", "same-capability", "ampere-plus")  # GPUs that can run an engine of `tensorrt`
ACTIVATION_LIMIT = 16 * 2**30  # bytes of scratch memory for the largest graph of a profile


@dataclass(frozen=True)
class BuildOptions:
    """How to build engines."""

    package: str | None = None  # "tensorrt" or "rtx"; None: the best one installed
    capabilities: tuple[int, ...] = ()  # empty: 8.0 and later (rtx), or this machine's GPU (tensorrt)
    profiles: tuple[Profile, ...] | None = None  # None: small, medium and large, as far as tensors allow
    level: int = 3  # TensorRT's default
    workspace: int | None = None  # limit in bytes
    activation_limit: int = ACTIVATION_LIMIT  # in bytes; a profile that needs more is refused
    timing_cache: Path | None = None  # None: a file in the bundle's folder of engines
    hardware: str = HARDWARE[0]  # one of HARDWARE; others than "same" only with `tensorrt`
    version_compatible: bool = False  # loadable by later minor versions; only with `tensorrt`
    device: int = 0  # number of the CUDA device to build for; only with `tensorrt`

    def check(self) -> None:
        """Raise UsageError for invalid options, before any work is done."""
        if self.profiles is not None and not self.profiles:
            raise UsageError("an engine needs at least one profile")
        if self.level not in LEVELS:
            raise UsageError(f"the optimization level is {self.level}: choose 0 (fastest) to {LEVELS[-1]}")
        if self.workspace is not None and self.workspace < 1:
            raise UsageError("the workspace has to be above 0")
        if self.activation_limit < 1:
            raise UsageError("the activation limit has to be above 0")
        if self.hardware not in HARDWARE:
            raise UsageError(f"the hardware is {self.hardware!r}: choose {', '.join(HARDWARE)}")

    def check_package(self, package: str) -> None:
        """Refuse options that the package does not support."""
        if package == RTX and (self.version_compatible or self.hardware != HARDWARE[0]):
            raise UsageError(
                "TensorRT-RTX has no version or hardware compatibility levels: its engines run on compute "
                "capability 8.0 and later; leave --hardware and --version-compatible out"
            )


class Target(NamedTuple):
    """The package to build with, and the compute capabilities to build for."""

    package: TensorRtPackage
    capabilities: tuple[int, ...]
