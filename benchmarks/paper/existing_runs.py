"""Rows from runs that `adar-deploy train` wrote before, so that a long training is not repeated."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adar_runtime.bundle import run_files
from adar_runtime.errors import UsageError
from benchmarks.paper.table import Key, Table, make_row
from benchmarks.paper.training import run_values
from benchmarks.paper.transductive import PART_NAME, SETS


def add_run(table: Table, folder: Path, revision: str) -> Key:
    """Add the row of a run of AdaR with default options on one set of the part "transductive".

    `revision` is the commit of the code that trained it: the run does not have it. The row says that it was
    added. The trajectory is not there, as the model is not run again.
    """
    try:
        config, metrics = (
            json.loads((folder / name).read_text()) for name in (run_files.CONFIG, run_files.METRICS)
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} is not a finished run of adar-deploy train: {error}") from error
    names = [Path(name).stem for name in config["data"]]
    if config["kind"] != "adar" or len(names) != 1 or names[0] not in SETS:
        raise UsageError(
            f"{folder} is {config['kind']} on {', '.join(names)}: give AdaR on one of {', '.join(SETS)}"
        )
    training = config["training"]
    if training["mixed_precision"] is False:
        raise UsageError(f"{folder} was trained with --no-mixed-precision: give a run with default options")
    key = Key(PART_NAME, names[0], training["split"], "adar", seed=training["seed"])
    about: dict[str, Any] = {
        "revision": revision,
        "date": datetime.fromtimestamp((folder / run_files.METRICS).stat().st_mtime, UTC).strftime(
            "%Y-%m-%d %H:%M"
        ),
        "machine": "not recorded",
        "added": True,
        "settings": {"model": config["model"], "training": training},
    }
    table.add(make_row(key, quick=False, **run_values(metrics), **about))
    return key
