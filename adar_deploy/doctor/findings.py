"""What is found, and what follows from it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

PROVIDERS = {"CUDAExecutionProvider": "onnxruntime-cuda", "CPUExecutionProvider": "onnxruntime-cpu"}
"""Of ONNX Runtime, that a backend uses, the best one first."""


class State(StrEnum):
    """How a thing is."""

    works = "works"
    broken = "broken"
    absent = "absent"  # and nobody said that it has to be there

    @property
    def mark(self) -> str:
        return {"works": "✓", "broken": "✗", "absent": "–"}[self.value]

    @property
    def colour(self) -> str:
        return {"works": "green", "broken": "red", "absent": "dim"}[self.value]


@dataclass(frozen=True)
class Finding:
    """One line."""

    group: str
    name: str
    state: State
    detail: str
    mend: str = ""  # the command that makes it work

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def able(findings: Sequence[Finding]) -> dict[str, str | None]:
    """What this machine can do, and on what; None where it cannot."""
    working = {(one.group, one.name): one.detail for one in findings if one.state is State.works}
    engines = [name for group, name in working if group == "TensorRT"]
    gpu = any(group == "CUDA" for group, _ in working)
    runs = ["tensorrt"] if engines and gpu else []
    runs += [backend for provider, backend in PROVIDERS.items() if ("ONNX Runtime", provider) in working]
    trained = working.get(("end to end", "a model"))
    return {
        "train": trained and trained.rpartition(" ")[2],
        "export": "ONNX" if ("end to end", "a cell") in working else None,
        "build": ", ".join(engines) + ("" if gpu else ", for a GPU elsewhere") if engines else None,
        "run": ", ".join(runs) or None,
    }
