"""Data sets of PyTorch Geometric by name: `pyg:Planetoid/Cora`, `pyg:WikiCS`.

PyG's own classes download, process and store them, under $ADAR_DATA or ~/.cache/adar-deploy. PyG reads the
processed files again from there, and the raw files of Planetoid are pickles, which run code when they are
read. Give write access to that folder only to people who may run programs on this machine.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError
from adar_runtime.graph import MASKS, Graph, Mask
from adar_runtime.graph.in_memory import sparse_if_mostly_zero
from adar_train.data.splits import random_splits

PREFIX = "pyg:"

SETS: dict[str, tuple[str, ...]] = {
    "Actor": (),
    "Amazon": ("Computers", "Photo"),
    "CitationFull": ("Cora", "Cora_ML", "CiteSeer", "DBLP", "PubMed"),
    "Coauthor": ("CS", "Physics"),
    "HeterophilousGraphDataset": ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
    "Planetoid": ("Cora", "CiteSeer", "PubMed"),
    "WebKB": ("Cornell", "Texas", "Wisconsin"),
    "WikiCS": (),
    "WikipediaNetwork": ("chameleon", "squirrel"),
}
"""PyG's classes of data sets with one graph and labelled nodes, and the names of their data sets.

The list is closed for safety: most of PyG's classes download without checking certificates. Of those, only
classes whose files are read without unpickling are listed. (Planetoid unpickles, but checks certificates.)
"""


def load_pyg(name: str) -> Graph:
    """The data set of this name, downloaded on first use.

    A data set without masks gets ten random splits of 60/20/20, the same ones each time.
    """
    class_name, set_name = _parse(name)
    data = _open(name, class_name, set_name)[0]
    masks = _masks(data) or random_splits(data.num_nodes)
    return Graph(
        features=sparse_if_mostly_zero(data.x.numpy()),
        edge_index=data.edge_index.numpy(),
        labels=data.y.numpy(),
        train_mask=masks["train_mask"],
        val_mask=masks["val_mask"],
        test_mask=masks["test_mask"],
    )


def _parse(name: str) -> tuple[str, str | None]:
    """Class and data set in PyG's spelling, from `pyg:Class/Set` or `pyg:Class`, case-insensitive."""
    wanted, _, wanted_set = name.removeprefix(PREFIX).partition("/")
    class_name = _match(wanted, SETS)
    if class_name is None:
        raise GraphError(f"{name}: unknown data set; write {PREFIX} and one of {', '.join(SETS)}")
    set_name = _match(wanted_set, SETS[class_name])
    if set_name is None and (wanted_set or SETS[class_name]):
        choices = [f"{PREFIX}{class_name}/{each}" for each in SETS[class_name]] or [PREFIX + class_name]
        raise GraphError(f"{name}: {class_name} has no such data set; choose {', '.join(choices)}")
    return class_name, set_name


def _match(name: str, names: Iterable[str]) -> str | None:
    return next((each for each in names if each.lower() == name.lower()), None)


def _open(name: str, class_name: str, set_name: str | None) -> Any:
    from torch_geometric import datasets

    plain = getattr(datasets, class_name)
    # The same class with another download, whose error says what to do without a network.
    careful = type(class_name, (plain,), {"download": _careful_download(name, plain.download)})
    root = Path(os.environ.get("ADAR_DATA") or Path.home() / ".cache" / "adar-deploy") / "pyg" / class_name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # PyG gives this warning just before it unpickles without restrictions: make it an error.
            warnings.filterwarnings("error", message="Weights only load failed")
            return careful(str(root), *([] if set_name is None else [set_name]))
    except GraphError:
        raise
    except Exception as error:  # damaged files make PyG raise anything
        reason = str(error).split("\n")[0] or type(error).__name__
        raise GraphError(
            f"{name}: the files cannot be read ({reason}); delete {root} to download them again"
        ) from error


def _careful_download(name: str, download: Callable[[Any], None]) -> Callable[[Any], None]:
    def careful(dataset: Any) -> None:
        folder = Path(dataset.raw_dir)
        before = set(folder.iterdir())
        try:
            download(dataset)
        except BaseException as error:
            for file in set(folder.iterdir()) - before:
                file.unlink()  # the next run would take an incomplete file for a complete one
            if not isinstance(error, Exception):
                raise
            reason = str(getattr(error, "reason", error)).split("\n")[0] or type(error).__name__
            files = ", ".join(Path(path).name for path in dataset.raw_paths)
            raise GraphError(
                f"{name} could not be downloaded ({reason}): put {files} into {folder}, "
                "or give the graph as a .npz file"
            ) from error

    return careful


def _masks(data: Any) -> dict[str, Mask]:
    """PyG's masks, [n] or [n, splits], transposed to [splits, n]; empty without masks."""
    if "train_mask" not in data:
        return {}
    masks = [np.atleast_2d(data[name].numpy().T) for name in MASKS]
    # WikiCS has twenty splits of the training nodes and one test mask for all of them.
    return dict(zip(MASKS, np.broadcast_arrays(*masks), strict=True))
