"""The graphs that a training is given: files, folders of files, and names."""

from pathlib import Path

from adar_deploy.paths import graph_files


def graph_names(given: list[str], validate_on: list[str]) -> tuple[list[str], int]:
    """The names of all graphs, those to validate on at the end, and their number."""
    from adar_runtime.errors import UsageError

    last = [name for one in validate_on for name in _expand(one)]
    held = {Path(name).resolve() for name in last}
    names = [name for one in given for name in _expand(one) if Path(name).resolve() not in held]
    if not names:
        raise UsageError("--validate-on leaves no graph to train on: give another graph")
    return names + last, len(last)


def _expand(name: str) -> list[str]:
    """The graph files of a folder; any other name unchanged."""
    from adar_runtime.graph.synthetic import FAMILIES

    if name in FAMILIES or not Path(name).is_dir():
        return [name]
    return [str(file) for file in graph_files([Path(name)])]
