"""Names of the files in the folder of a training run, and the search for a run by its weights.

They are in this package because reports read run folders without PyTorch.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

WEIGHTS = "model.safetensors"
CONFIG = "config.json"  # data, kind of model, settings; a folder with this file is a finished run
METRICS = "metrics.json"
HISTORY = "history.json"  # loss of every epoch
GRAPH = "graph.pt"  # the first of the graphs that the model was trained on
LEARNING_CURVE = "learning.png"
TENSORBOARD = "tensorboard"  # a folder
CHECKPOINT = "checkpoint.safetensors"  # of an unfinished run
NAMES = (WEIGHTS, CONFIG, METRICS, HISTORY, GRAPH, LEARNING_CURVE, CHECKPOINT)
MAX_CONFIG_BYTES = 2**20


def find_weights(folders: Iterable[Path], sha256: str | None) -> Path | None:
    """The first finished run in these folders whose weights have this hash, or None."""
    runs = (config.parent for folder in folders for config in sorted(folder.glob(f"*/{CONFIG}")))
    return next((run for run in runs if has_weights(run, sha256)), None)


def has_weights(run: Path, sha256: str | None) -> bool:
    """Whether this run has the weights with this hash. A folder that cannot be read has not."""
    try:
        regular = all((run / name).is_file() for name in (CONFIG, WEIGHTS))  # reading a pipe would block
        if sha256 is None or not regular:
            return False
        if (run / CONFIG).stat().st_size > MAX_CONFIG_BYTES:
            return False
        config = json.loads((run / CONFIG).read_bytes())
        # Many programs write config.json beside large weights: read only those of our runs.
        if not isinstance(config, dict) or "kind" not in config or config.get("weights", sha256) != sha256:
            return False
        with (run / WEIGHTS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except (OSError, ValueError, RecursionError):
        return False
