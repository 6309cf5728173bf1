"""Turn a training run into a bundle that runs without PyTorch, and prove that they agree."""

from adar_export.convergence import Convergence, Trial
from adar_export.validate import Check, Report
from adar_export.writer import export_bundle

__all__ = ["Check", "Convergence", "Report", "Trial", "export_bundle"]
