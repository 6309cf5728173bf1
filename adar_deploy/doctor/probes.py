"""Probes that run in a process of their own, because drivers and libraries can crash it.

    python -m adar_deploy.doctor.probes provider CPUExecutionProvider

prints one JSON object: the result, or an "error".
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TIMEOUT = 120  # seconds
DOUBLE = (  # an ONNX model: y = x + x for two numbers
    b'\x08\x08::\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x06doubleZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02'
    b"\x08\x02b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02B\x04\n\x00\x10\x11"
)


def probe(name: str, *arguments: str) -> dict[str, Any]:
    """Run a probe in another process and return its result, or an "error", with a "fix" if it is known."""
    # -P: do not import modules from the working folder
    command = [sys.executable, "-P", "-m", __name__, name, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {TIMEOUT} s: is the machine busy? Try again", "fix": ""}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"the process ended with code {done.returncode}: {last[:200]}"}


def provider(name: str) -> dict[str, Any]:
    """Run a tiny model on a provider of ONNX Runtime, and check that it does not fall back to another."""
    import numpy as np
    import onnxruntime as ort

    from adar_runtime.backends.onnxruntime.sessions import load_cuda_libraries

    if name == "CUDAExecutionProvider":
        load_cuda_libraries()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # the error is in the JSON object
    session = ort.InferenceSession(DOUBLE, options, providers=[name])
    ran = session.get_providers()[0]
    (answer,) = session.run(None, {"x": np.array([1, 2], np.float32)})
    if answer.tolist() != [2.0, 4.0]:
        return {"error": f"1 + 1 and 2 + 2 gave {answer.tolist()}"}
    return {"ran": ran} if ran == name else {"error": f"falls back to {ran}"}


def openvino() -> dict[str, Any]:
    """Run a tiny model with OpenVINO."""
    import numpy as np

    from adar_runtime.backends.openvino import load_openvino

    package = load_openvino()
    core = package.Core()
    found = core.compile_model(core.read_model(DOUBLE), "CPU")([np.array([1, 2], np.float32)])["y"]
    if found.tolist() != [2.0, 4.0]:
        return {"error": f"1 + 1 and 2 + 2 gave {found.tolist()}"}
    return {"version": package.__version__}


def tensorrt(module: str) -> dict[str, Any]:
    """Parse a tiny model and build an engine from it."""
    from importlib import import_module

    trt = import_module(module)
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network()  # keep a reference: the parser crashes without it
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(DOUBLE):
        return {"error": "cannot parse a tiny ONNX model"}
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    return {"version": trt.__version__, "bytes": plan.nbytes} if plan else {"error": "built no engine"}


def training() -> dict[str, Any]:
    """Train a small model for one epoch."""
    import torch

    from adar_runtime.graph.synthetic import minesweeper
    from adar_train import ModelConfig, TrainConfig, fit

    graph = minesweeper(side=6)
    config = TrainConfig(epochs=1, train_steps=2, select_budgets=(2,), exit_budgets=(2,))
    fitted = fit([graph], ModelConfig(graph.width, 2, hidden=8, proxies=4), config)
    return {"loss": fitted.history[-1]["loss"], "device": "cuda" if torch.cuda.is_available() else "cpu"}


def export() -> dict[str, Any]:
    """Export a small model and run the bundle. The export compares it with PyTorch."""
    from adar_export import export_bundle
    from adar_runtime import load
    from adar_runtime.graph.synthetic import minesweeper
    from adar_train import ModelConfig
    from adar_train.untrained import trial_run

    started = time.perf_counter()
    graph = minesweeper(side=4)
    with TemporaryDirectory() as folder:
        run = trial_run(Path(folder) / "run", graph, ModelConfig(graph.width, 2, hidden=8, proxies=4))
        manifest = export_bundle(run, Path(folder) / "bundle", steps=(1, 10))
        result = load(Path(folder) / "bundle").run(graph, budget=10)
    return {
        "difference": manifest.parity["needed"],
        "backend": result.backend,
        "seconds": time.perf_counter() - started,
    }


def bundle(path: str) -> dict[str, Any]:
    """Load a bundle and run it on a small graph of random features."""
    from adar_runtime import load
    from adar_runtime.benchmarking.graphs import graph_for, near_edges

    opened = load(path)
    result = opened.run(graph_for(opened.manifest, 100, near_edges(100, 4)), budget=10)
    return {"backend": result.backend, "steps": result.steps, "seconds": result.seconds}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "provider": provider,
    "openvino": openvino,
    "tensorrt": tensorrt,
    "training": training,
    "export": export,
    "bundle": bundle,
}


def main(name: str, *arguments: str) -> None:
    """Print the result as one line of JSON."""
    try:
        found = PROBES[name](*arguments)
    except Exception as error:  # any library may fail in any way
        found = {"error": (str(error).splitlines() or [type(error).__name__])[0][:200]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
