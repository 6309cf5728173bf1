"""Names of the files in the folder of a training run, and the search for a run by its weights.

They are in this package because reports read run folders without PyTorch.
"""

import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adar_runtime.files import check_holes
from adar_runtime.json_files import parse_json

WEIGHTS = "model.safetensors"
CONFIG = "config.json"  # data, kind of model, settings; a folder with this file is a finished run
METRICS = "metrics.json"
HISTORY = "history.json"  # loss of every epoch
GRAPH = "graph.pt"  # the first of the graphs that the model was trained on
GRAPHS = "graphs.npz"  # some of them, if the model was trained on many small graphs
LEARNING_CURVE = "learning.png"
TENSORBOARD = "tensorboard"  # a folder
STARTED = "adar-deploy"  # an empty file in TENSORBOARD: other programs have a folder of that name too
CHECKPOINT = "checkpoint.safetensors"  # of an unfinished run
NAMES = (WEIGHTS, CONFIG, METRICS, HISTORY, GRAPH, GRAPHS, LEARNING_CURVE, CHECKPOINT)
FILES = "files"  # in config.json: the sha256 of the graphs, metrics and history of the run
CHANGED = (
    "{} was changed after training (sha256 differs from " + CONFIG + "): copy the file of this run back, or "
    "train again"
)
MAX_WEIGHTS_BYTES = 2**30  # of a run that is searched for: a file with a hole has any size and takes no space
MAX_JSON_BYTES = 8 * 2**20  # enough for the history of 100,000 epochs; parsed, JSON takes many times its size


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a file of a run.

    Raises:
        OSError: The file is missing or cannot be read.
        ValueError: It is a link, or a pipe or a device, which may never end, or larger than `max_bytes`.
    """
    _check_regular(path, max_bytes)
    return path.read_bytes()


def refuse_link(path: Path) -> None:
    """Raise a ValueError for a link: a stranger's run may not name other files."""
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link, not a regular file: replace it with a copy of the file")


def _check_regular(path: Path, max_bytes: int) -> None:
    refuse_link(path)
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path.name} is not a regular file")
    if facts.st_size > max_bytes:
        raise ValueError(f"{path.name} has {facts.st_size:,} bytes, but at most {max_bytes:,} are allowed")
    check_holes([path])


def read_json(path: Path, config: Mapping[str, Any] | None = None) -> Any:
    """The content of a JSON file of a run. `config` has its hash; without one, it is not compared.

    Raises:
        OSError: As for `read_file`.
        ValueError: As for `read_file` and `parse_json`; or the file was changed after training.
    """
    content = read_file(path, MAX_JSON_BYTES)
    _check_hash(path.name, hashlib.sha256(content).hexdigest(), config or {})
    return parse_json(content.decode("utf-8"))


def check_unchanged(path: Path, config: Mapping[str, Any]) -> None:
    """Raise a ValueError if a file is not the one that the training wrote. Older runs have no hashes.

    Read the file first: a reader refuses a file with a hole at once, and its hash takes long.
    """
    if FILES in config:
        _check_hash(path.name, sha256_of(path), config)


def check_files(run: Path, config: Mapping[str, Any]) -> None:
    """Raise a ValueError if a file that the training wrote is missing, or if a file of the run is a link.

    Older runs have no list of files.
    """
    for name in NAMES:
        refuse_link(run / name)
    for name in (WEIGHTS, *_hashes(config)):
        if name in NAMES and not (run / name).is_file():
            raise ValueError(f"{name} is missing: copy the whole folder of this run again, or train again")


def check_complete(run: Path, config: Mapping[str, Any]) -> None:
    """Raise a ValueError if a file is missing, or is not the one that the training wrote."""
    check_files(run, config)
    files = [name for name in _hashes(config) if name in NAMES]
    for name in (WEIGHTS, *files):
        check_holes([run / name])
    for name in files:
        check_unchanged(run / name, config)
    weights = config.get("weights")
    if weights is not None and weights != sha256_of(run / WEIGHTS):
        raise ValueError(CHANGED.format(WEIGHTS))


def _hashes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    hashes = config.get(FILES, {})
    if not isinstance(hashes, dict):
        raise ValueError(f"{CONFIG} has {FILES!r} that is not a JSON object")
    return hashes


def _check_hash(name: str, found: str, config: Mapping[str, Any]) -> None:
    if _hashes(config).get(name, found) != found:
        raise ValueError(CHANGED.format(name))


def sha256_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_sha256(run: Path) -> str:
    """The sha256 of the weights of a run that nobody has checked yet. Raises what `read_file` raises."""
    _check_regular(run / WEIGHTS, MAX_WEIGHTS_BYTES)
    return sha256_of(run / WEIGHTS)


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
        config = json.loads(read_file(run / CONFIG, MAX_JSON_BYTES))
        # Many programs write config.json beside large weights: read only those of our runs.
        if not isinstance(config, dict) or "kind" not in config or config.get("weights", sha256) != sha256:
            return False
        check_files(run, config)
        return weights_sha256(run) == sha256
    except (OSError, ValueError, RecursionError):
        return False
