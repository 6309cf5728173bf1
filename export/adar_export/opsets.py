"""The opsets that can be exported: from the first with all operators to the newest that ONNX Runtime runs."""

from functools import lru_cache

import onnx
import onnxruntime as ort

from adar_export.builder import OnnxBuilder
from adar_runtime.bundle.known_models import OLDEST_OPSET
from adar_runtime.errors import ExportError, UsageError

OLDEST = OLDEST_OPSET  # 17, the first with LayerNormalization


def check_opset(opset: int) -> None:
    """Raise a UsageError for an opset that cannot be exported."""
    if not OLDEST <= opset <= newest():
        raise UsageError(f"opset {opset} cannot be exported: choose {OLDEST} to {newest()}")


@lru_cache
def newest() -> int:
    """Return the newest opset that the installed ONNX Runtime runs; `onnx` may know newer ones."""
    return next(opset for opset in range(onnx.defs.onnx_opset_version(), OLDEST - 1, -1) if _runs(opset))


def _runs(opset: int) -> bool:
    builder = OnnxBuilder("probe", opset)
    builder.output("y", builder.op("Neg", builder.input("x", [1])), [1])
    try:
        ort.InferenceSession(builder.build({}).SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions have no common base class
        return False
    return True


def check_exact(model: onnx.ModelProto, opset: int) -> None:
    """Raise an ExportError if a model has another opset: converters can keep the old one without an error."""
    found = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    if found != {"ai.onnx": opset}:
        raise ExportError(
            f"opset {opset} was requested, but the exporter wrote {found}: choose another opset"
        )
