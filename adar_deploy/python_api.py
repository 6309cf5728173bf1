"""`adar_deploy.train`: the command `adar-deploy train` for data in memory."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_deploy.trained_model import TrainedModel
from adar_runtime import Bundle, Graph, load
from adar_runtime.errors import UsageError
from adar_runtime.graph.in_memory import as_graphs, items_of, own_graph


def train(
    data: Any,
    *,
    validate_on: Any = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **options: Any,
) -> TrainedModel:
    """Train AdaR on labelled graphs, as `adar-deploy train` does.

    Missing masks are drawn at random, 60/20/20, and a note says so. All options of the command are keyword
    arguments, with `_` instead of `-`: `epochs`, `preset`, `task`, `seed`, `split`, `hidden`, `lr`,
    `train_steps`, `device`, `baseline`, `overwrite`, `resume` and others (`adar-deploy train --help`). With a
    path of a table, `edges` is its table of edges. `label` names its column of labels, or the node attribute
    of the labels in a networkx graph.

    Args:
        data: What the command accepts (a name such as "minesweeper" or "pyg:Planetoid/Cora", or a path), what
            `as_graph` converts (a `Graph`, a PyG `Data`, a networkx graph, (adjacency, features, labels)),
            or several of them: a list, a PyG `Dataset` or `Batch`.
        validate_on: Graphs to validate on, with all their labels, in the same forms.
        out: Folder of the run. By default the run is in a temporary folder, which is deleted with the model;
            `TrainedModel.save` keeps it.
        quiet: True shows no progress and no notes; `TrainedModel.notes` has the notes.
        options: Other options of the command.

    Returns:
        The trained model.

    Raises:
        GraphError: The data is not a graph that can be trained on. The message says how to change it.
        UsageError: An option is unknown or out of range, or `out` contains a run.
        MissingExtraError: PyTorch and PyG are not installed.

    Examples:
        >>> model = adar.train(data, epochs=500, out="runs/mine")  # doctest: +SKIP
        >>> model.metrics["test"]  # doctest: +SKIP
        0.955
    """
    from adar_deploy.commands.train import train as command
    from adar_deploy.console import err, print_note
    from adar_deploy.environment import require
    from adar_deploy.options import parsed_options
    from adar_deploy.training import run_training
    from adar_deploy.training_options import TrainingOptions

    require("train")
    parsed = parsed_options(command, options)
    if parsed["resume"] and out is None:
        raise UsageError("resume needs out, the folder of the run to continue")
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if not quiet:
            print_note(text, to=err)

    graphs: dict[str, Graph] = {}
    label = None if parsed["edges"] else parsed["label"]  # without tables, it is for networkx
    names = _register(data, graphs, note, label)
    validating = [] if validate_on is None else _register(validate_on, graphs, note, label)
    if graphs and parsed["edges"]:
        raise UsageError("edges belongs to a table of nodes: leave it out for a graph in memory")
    if graphs and label:
        parsed["label"] = None
    temporary = None if out else Path(tempfile.mkdtemp(prefix="adar-run-"))
    folder = temporary / "run" if temporary else Path(str(out))
    try:
        given = TrainingOptions.take(parsed | {"data": names, "validate_on": validating, "out": folder})
        done = run_training(given, in_memory=graphs, quiet=quiet)
        return TrainedModel(done.out, notes=[*notes, *done.notes], _temporary=temporary)
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, KeyboardInterrupt):
                error.__notes__ = ["to continue an interrupted training, give out=, and later resume=True"]
        raise


def pretrained(**options: Any) -> Bundle:
    """Open the pretrained model of this package.

    It predicts for any graph with class descriptions (`target_features`) or with some known labels
    (`train_mask`), without training.

    Args:
        options: Keyword arguments of `load`: `backend`, `threads`, `device` and others.

    Returns:
        The bundle, ready to run.

    Raises:
        BackendError: The backend does not work on this machine.

    Examples:
        >>> adar.pretrained().predict(graph).predictions  # doctest: +SKIP
    """
    return load(named_bundle(PRETRAINED), **options)


def _register(
    data: Any, graphs: dict[str, Graph], note: Callable[[str], None], label: str | None
) -> list[str]:
    """The names of the data. Graphs in memory get a name of their own, and are added to `graphs`."""
    items = items_of(data)
    if isinstance(items, Iterator):
        items = [one if _is_name(one) else own_graph(one, label=label, on_note=note) for one in items]
        label = None  # the graphs are converted
    items = [data] if items is None else items
    held = [item for item in items if not _is_name(item)]
    converted = iter(as_graphs(held, label=label, on_note=note).graphs if held or not items else [])
    names: list[str] = []
    for item in items:
        if _is_name(item):
            names.append(str(item))
            continue
        kind = type(item[0] if isinstance(item, tuple) else item).__name__
        number = 1
        while (name := kind if number == 1 else f"{kind} {number}") in graphs:
            number += 1
        graphs[name] = next(converted)
        names.append(name)
    return names


def _is_name(item: Any) -> bool:
    """Whether data are a path, or the name of a data set, that the training reads itself."""
    return isinstance(item, str | Path)
