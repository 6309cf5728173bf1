"""Turn a training run into a bundle that runs without PyTorch, and prove that they agree."""

from adar_export.validate import Check
from adar_export.writer import export_bundle

__all__ = ["Check", "export_bundle"]
