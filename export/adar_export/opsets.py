"""Which opsets can be exported: from the first that has every operator to the newest that runs."""

from functools import lru_cache

import onnx
import onnxruntime as ort

from adar_export.builder import OnnxBuilder
from adar_runtime.bundle.known_models import OLDEST_OPSET
from adar_runtime.errors import ExportError, UsageError

OLDEST = OLDEST_OPSET  # 17, the first with LayerNormalization


def check_opset(opset: int) -> None:
    """Refuse what cannot come out right before any work is done."""
    if not OLDEST <= opset <= newest():
        raise UsageError(f"opset {opset} cannot be exported: choose {OLDEST} to {newest()}")


@lru_cache
def newest() -> int:
    """The newest opset that the installed ONNX Runtime takes; `onnx` may know later ones."""
    return next(opset for opset in range(onnx.defs.onnx_opset_version(), OLDEST - 1, -1) if _runs(opset))


def _runs(opset: int) -> bool:
    graph = OnnxBuilder("probe", opset)
    graph.output("y", graph.op("Neg", graph.input("x", [1])), [1])
    try:
        ort.InferenceSession(graph.build({}).SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions share no base class
        return False
    return True


def check_exact(model: onnx.ModelProto, opset: int) -> None:
    """Refuse a graph of another opset than was asked for: converters keep the old one without a word."""
    found = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    if found != {"ai.onnx": opset}:
        raise ExportError(f"opset {opset} was asked for and {found} came out: choose another opset")
