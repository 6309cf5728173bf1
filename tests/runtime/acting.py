"""A bundle with real engines, opened on a GPU that is acted out."""

import shutil
from pathlib import Path

import pytest
import tensorrt_rtx

from adar_runtime import Bundle, load
from adar_runtime.backends.tensorrt import backend as tensorrt
from adar_runtime.backends.tensorrt import cuda
from adar_runtime.backends.tensorrt.engines import build, flavours
from adar_runtime.backends.tensorrt.engines.build import Wish, _Target, build_engines
from adar_runtime.backends.tensorrt.engines.clock import clock_graph
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import sidecars
from adar_runtime.bundle.bundle import read_bundle
from tests.runtime.standins import Device, TensorRt

QUICK = Wish(flavour="rtx", profiles=(Profile.parse("small"),), level=0)
RTX = flavours.flavour_of("rtx")
TARGET = _Target(RTX, ())


def with_engines(bundle: Path, to: Path, wish: Wish = QUICK) -> Path:
    """A copy of a bundle with real engines in it."""
    shutil.copytree(bundle, to)
    build_engines(to, *read_bundle(to), wish)
    return to


def act(patch: pytest.MonkeyPatch, folder: Path, capability: int = 89) -> Device:
    """From here on there is a GPU, which knows the engines of this folder."""
    device, sources = Device(capability), {}
    real = flavours._load("rtx")
    acted = flavours.Flavour("rtx", TensorRt(device, sources), tensorrt_rtx.__version__, real.log)
    patch.setattr(cuda, "runtime_api", lambda: device)
    patch.setattr(tensorrt, "device_problem", lambda: None)
    patch.setattr(tensorrt, "flavour_of", lambda _name=None: acted)
    built = build.build_engines

    def learn() -> None:
        manifest, graphs = read_bundle(folder)
        known = graphs | {"clock": clock_graph(manifest.hidden)}
        for one in sidecars(folder):
            profiles = [{name: (s.least, s.most) for name, s in each.items()} for each in one.shapes]
            sources[one.engine_sha256] = known[one.graph], profiles

    def build_and_learn(*arguments, **options):
        found = built(*arguments, **options)
        learn()
        return found

    patch.setattr(tensorrt, "build_engines", build_and_learn)
    learn()
    return device


def acted_bundle(patch: pytest.MonkeyPatch, folder: Path) -> tuple[Bundle, Device]:
    device = act(patch, folder)
    return load(folder, "tensorrt"), device
