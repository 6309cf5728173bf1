"""Bundles with real engines, opened on a simulated GPU (`standins.py`)."""

import shutil
from pathlib import Path

import pytest
import tensorrt_rtx

from adar_runtime import Bundle, load
from adar_runtime.backends.tensorrt import backend as tensorrt
from adar_runtime.backends.tensorrt import cuda
from adar_runtime.backends.tensorrt.engines import build, packages
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.clock import clock_model
from adar_runtime.backends.tensorrt.engines.options import BuildOptions, Target
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import sidecars
from adar_runtime.bundle.reading import read_bundle
from tests.runtime.standins import Device, TensorRt

QUICK = BuildOptions(package="rtx", profiles=(Profile.parse("small"),), level=0)
RTX = packages.load_package("rtx")
TARGET = Target(RTX, ())


def with_engines(bundle: Path, to: Path, options: BuildOptions = QUICK) -> Path:
    """A copy of a bundle, with real engines."""
    shutil.copytree(bundle, to)
    build_engines(to, *read_bundle(to), options)
    return to


def simulate_gpu(patch: pytest.MonkeyPatch, folder: Path | None, capability: int = 89) -> Device:
    """Pretend that this machine has a GPU that can run the engines of this bundle, and those built later."""
    device, sources = Device(capability), {}
    real = packages._load("rtx")
    simulated = packages.TensorRtPackage("rtx", TensorRt(device, sources), tensorrt_rtx.__version__, real.log)
    device.log_error = lambda message: real.log.messages.record(message, is_error=True)
    patch.setattr(cuda, "runtime_api", lambda: device)
    patch.setattr(tensorrt, "device_problem", lambda: None)
    patch.setattr(tensorrt, "load_package", lambda _name=None: simulated)
    real_build = build.build_engines

    def register_engines(bundle: Path) -> None:
        manifest, onnx_models = read_bundle(bundle)
        known = onnx_models | {"clock": clock_model(manifest.hidden)}
        for one in sidecars(bundle):
            profiles = [{name: (s.least, s.most) for name, s in each.items()} for each in one.shapes]
            sources[one.engine_sha256] = known[one.onnx_model], profiles, one.compute_capabilities

    def build_and_register(bundle, *arguments, **options):
        found = real_build(bundle, *arguments, **options)
        register_engines(bundle)
        return found

    patch.setattr(tensorrt, "build_engines", build_and_register)
    if folder is not None:
        register_engines(folder)
    return device


def load_on_simulated_gpu(patch: pytest.MonkeyPatch, folder: Path) -> tuple[Bundle, Device]:
    device = simulate_gpu(patch, folder)
    return load(folder, "tensorrt"), device
