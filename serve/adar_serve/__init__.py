"""Serve bundles over the Open Inference Protocol, with numpy and ONNX Runtime and without PyTorch.

The names below are imported on first use: the command line reads `Limits` to show its help.

Examples:
    >>> adar_serve.serve(["bundle"], adar_serve.Settings(port=8080))  # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adar_serve.limits import Limits
    from adar_serve.server import Settings, serve

__all__ = ["Limits", "Settings", "serve"]

_MODULES = {"Limits": "limits", "Settings": "server", "serve": "server"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"adar_serve.{_MODULES[name]}"), name)
