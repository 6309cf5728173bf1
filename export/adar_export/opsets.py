"""Which opsets can be exported: from the first that has every operator to the newest that runs."""

from functools import lru_cache

import onnx
import onnxruntime as ort

from adar_export.builder import GraphBuilder
from adar_runtime.errors import UsageError

OLDEST = 17  # the first with LayerNormalization


def check_opset(opset: int) -> None:
    """Refuse what cannot come out right before any work is done."""
    if not OLDEST <= opset <= newest():
        raise UsageError(f"opset {opset} cannot be exported: choose {OLDEST} to {newest()}")


@lru_cache
def newest() -> int:
    """The newest opset that the installed ONNX Runtime takes; `onnx` may know later ones."""
    return next(opset for opset in range(onnx.defs.onnx_opset_version(), OLDEST - 1, -1) if _runs(opset))


def _runs(opset: int) -> bool:
    graph = GraphBuilder("probe")
    graph.output("y", graph.op("Neg", graph.input("x", [1])), [1])
    try:
        ort.InferenceSession(graph.build(opset, {}).SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # its exceptions share no base class
        return False
    return True
