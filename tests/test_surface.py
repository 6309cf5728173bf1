"""The public names of each package, and their docstrings. Adding a name is a promise to keep it."""

import inspect
import re
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import pytest

import adar_deploy
import adar_export
import adar_runtime
import adar_serve
import adar_train

PACKAGES = (adar_deploy, adar_runtime, adar_train, adar_export, adar_serve)
EXPORTED = [(package, name) for package in PACKAGES for name in package.__all__]


def test_public_names() -> None:
    assert sorted(adar_deploy.__all__) == [
        "AdarError", "Bundle", "Graph", "Result", "TrainedModel", "as_graph", "load", "pretrained",
        "read_graph", "train", "write_graph",
    ]  # fmt: skip
    assert sorted(adar_runtime.__all__) == [
        "AdamsBashforth2", "Adaptive", "AdarError", "AtTime", "Bundle", "Converged", "Euler", "Final",
        "Graph", "Loop", "Peak", "Result", "Solver", "SparseRows", "Step", "StopReason", "StopRule", "load",
        "read_graph", "write_graph",
    ]  # fmt: skip
    assert sorted(adar_train.__all__) == [
        "AdaR", "Epoch", "Fitted", "GraphTensors", "ModelConfig", "Run", "State", "TrainConfig", "Trainer",
        "fit", "load", "load_run", "save_run",
    ]  # fmt: skip
    assert sorted(adar_export.__all__) == ["Check", "Convergence", "Report", "Trial", "export_bundle"]
    assert sorted(adar_serve.__all__) == ["Limits", "Settings", "serve"]


def takes_arguments(exported: Any) -> bool:
    """Errors and enums take no arguments of their own, and nobody creates an object of a protocol."""
    if isinstance(exported, type) and (
        issubclass(exported, Exception | Enum) or exported.__dict__.get("_is_protocol")
    ):
        return False
    return bool(inspect.signature(exported).parameters)


def to_document(exported: Any, sections: set[str]) -> set[str]:
    """Arguments, or the fields of an object that the library creates; other attributes are free to choose."""
    if "Args" in sections or is_dataclass(exported) or hasattr(exported, "_fields"):
        return {name for name in inspect.signature(exported).parameters if not name.startswith("_")}
    return set()


@pytest.mark.parametrize(("package", "name"), EXPORTED, ids=lambda one: getattr(one, "__name__", one))
def test_docstrings_of_exported_names(package: Any, name: str) -> None:
    """One sentence; Args, or Attributes of an object that the library creates; Returns of a function."""
    exported = getattr(package, name)
    text = inspect.cleandoc(exported.__doc__ or "")
    assert re.match(r"[A-Z`].*\.$", text.split("\n\n")[0].replace("\n", " ")), "begin with a sentence"
    sections = set(re.findall(r"^([A-Z]\w+):$", text, re.MULTILINE))
    if takes_arguments(exported):
        assert sections & {"Args", "Attributes"}, "add Args, or Attributes"
        documented = re.findall(r"^ {4}(\w+)(?: \(.*?\))?:", text, re.MULTILINE)
        assert to_document(exported, sections) <= set(documented)
    if not isinstance(exported, type) and inspect.signature(exported).return_annotation not in (None, "None"):
        assert sections & {"Returns", "Yields"}, "add Returns"
