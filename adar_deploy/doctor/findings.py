"""The result of a check, and what follows from all results."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

EXECUTORS = {
    ("ONNX Runtime", "CUDAExecutionProvider"): "onnxruntime-cuda",
    ("OpenVINO", "CPU"): "openvino",
    ("ONNX Runtime", "CPUExecutionProvider"): "onnxruntime-cpu",
}
"""Group and name of what runs ONNX models, and the backend that uses each; the fastest first."""


class State(StrEnum):
    works = "works"
    broken = "broken"
    absent = "absent"  # not installed and not required

    @property
    def mark(self) -> str:
        return {"works": "✓", "broken": "✗", "absent": "–"}[self.value]

    @property
    def colour(self) -> str:
        return {"works": "green", "broken": "red", "absent": "dim"}[self.value]


@dataclass(frozen=True)
class Finding:
    """One line of the output."""

    group: str
    name: str
    state: State
    detail: str
    fix: str = ""  # the command that repairs or installs it

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def abilities(findings: Sequence[Finding]) -> dict[str, str | None]:
    """For each task, the device, format or backend that works on this machine; None where nothing does."""
    working = {(one.group, one.name): one.detail for one in findings if one.state is State.works}
    engines = [name for group, name in working if group == "TensorRT"]
    gpu = any(group == "CUDA" for group, _ in working)
    backends = ["tensorrt"] if engines and gpu else []
    backends += [backend for executor, backend in EXECUTORS.items() if executor in working]
    trained = working.get(("end to end", "training"))
    return {
        "train": trained and trained.rpartition(" ")[2],
        "export": "ONNX" if ("end to end", "export and run") in working else None,
        "build": ", ".join(engines) + ("" if gpu else ", for other machines with a GPU") if engines else None,
        "run": ", ".join(backends) or None,
    }
