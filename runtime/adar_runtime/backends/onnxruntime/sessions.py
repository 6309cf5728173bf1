"""ONNX Runtime sessions on the requested device, and its exceptions as errors of this package."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from io import StringIO
from typing import Any

import onnxruntime as ort

from adar_runtime.bundle.manifest import Manifest, Port
from adar_runtime.bundle.signature import Ports
from adar_runtime.errors import AdarError, BackendError, reason

TYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}
LOOPED = "cell"  # the model that is called in a loop
QUIET = 4  # log only what ends the process; other problems are raised as exceptions


def open_sessions(
    onnx_models: Mapping[str, bytes],
    manifest: Manifest,
    provider: str,
    threads: int | None,
    options: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, ort.InferenceSession]:
    """A session for each model of a bundle. `options` are those of the provider, by the name of the model."""
    options = options or {}
    try:
        return {
            name: session_of(content, provider, threads, options.get(name), spins=name == LOOPED)
            for name, content in onnx_models.items()
        }
    except BackendError as error:
        if manifest.precision == "bf16" and provider == "CPUExecutionProvider":
            raise BackendError(
                "the bundle is bf16, and ONNX Runtime has no bfloat16 products on CPU: "
                "export it with --precision fp32, or run it on a GPU or with --backend openvino"
            ) from error
        raise


@lru_cache
def load_cuda_libraries() -> None:
    """Load the CUDA libraries of pip packages: the CUDA provider does not find them by itself.

    ONNX Runtime prints a line for each missing library. Here, the error of the session says what is missing.
    """
    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        with redirect_stdout(StringIO()):
            preload()


def session_of(
    content: bytes,
    provider: str,
    threads: int | None,
    provider_options: Mapping[str, str] | None = None,
    *,
    spins: bool,
) -> ort.InferenceSession:
    """A session for one model."""
    options = ort.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    options.log_severity_level = QUIET
    # With a memory pattern, the second call allocates up to as much memory again, and is no faster.
    options.enable_mem_pattern = False
    # Idle threads spin for some time. The threads of a session that has just run would take CPU time from the
    # next session: the first steps after the encoder took twice as long.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spins else "0")
    # Otherwise, products with int8 weights round the other factor to 8 bits too: 0.3 % error after 10 steps.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Without this entry, the bytes choose their format, and might choose one that `onnx_guard` did not check.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        # With its fallback, the constructor prints several lines about a failure, and tries once more on CPU.
        providers = [(provider, dict(provider_options or {}))]
        session = ort.InferenceSession(content, options, providers=providers, enable_fallback=0)
    except Exception as error:  # its exceptions share no base class
        raise BackendError(f"ONNX Runtime cannot load the model: {reason(error)}") from error
    if session.get_providers()[0] != provider:
        raise BackendError(
            f"ONNX Runtime fell back to {session.get_providers()[0]}: {provider} does not work here"
        )
    return session


def ports_of(session: ort.InferenceSession) -> Ports:
    """The actual inputs and outputs of a model."""
    return Ports(tuple(map(_port, session.get_inputs())), tuple(map(_port, session.get_outputs())))


def _port(port: Any) -> Port:
    return Port(port.name, TYPES.get(port.type, port.type), tuple(port.shape))


@contextmanager
def backend_errors() -> Iterator[None]:
    """Turn exceptions of ONNX Runtime into a BackendError."""
    try:
        yield
    except AdarError:
        raise
    except Exception as error:  # its exceptions share no base class
        raise BackendError(f"ONNX Runtime could not run the bundle: {reason(error)}") from error
