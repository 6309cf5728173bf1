"""Commands that need more than the base install say so, and what to install."""

from importlib.util import find_spec

PACKAGES = {
    "train": ("torch", "torch_geometric"),
    "export": ("torch", "torch_geometric", "onnx"),
}


def present(extra: str) -> bool:
    """Whether the packages of this extra are installed."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def require(extra: str) -> None:
    """Raise a MissingExtraError unless the packages of this extra are installed."""
    if not present(extra):
        from adar_runtime.errors import MissingExtraError  # here, since it brings numpy along

        raise MissingExtraError(f"adar-deploy {extra}", extra)
