"""Which files a command reads and writes when it is given several graphs."""

import re
from collections.abc import Sequence
from pathlib import Path

NAME = "{name}"  # in a file to write: stands for the name of a graph's file, without its ending


def graph_files(given: Sequence[Path]) -> list[Path]:
    """The graphs that are meant: files as they are, and of a folder all that look like one."""
    from adar_runtime.errors import GraphError
    from adar_runtime.graph.formats import FORMATS

    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix in FORMATS and file.is_file())
        if not inside:
            raise GraphError(f"{path}: this is a folder with no {' or '.join(FORMATS)} file in it")
        found += inside
    return found


def places(option: str, pattern: Path | None, graphs: Sequence[Path], *, several: bool) -> list[Path | None]:
    """Where to write for each graph; nothing that was read and nothing of another graph is written over."""
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable

    if pattern is None:
        return [None] * len(graphs)
    for placeholder in re.findall(r"\{\w*\}", str(pattern)):
        if placeholder != NAME:
            raise UsageError(f"{placeholder} in {option} stands for nothing: the only placeholder is {NAME}")
    if several and NAME not in str(pattern):
        raise UsageError(
            f"several graphs need {NAME} in {option}, which stands for each one's name, "
            f"such as {pattern.with_stem(NAME)}"
        )
    named = [Path(str(pattern).replace(NAME, graph.stem)) for graph in graphs]
    for place in named:
        if named.count(place) > 1:
            raise UsageError(f"two graphs would be written to {place}: give their files different names")
        if place.exists() and any(other.exists() and place.samefile(other) for other in graphs):
            raise UsageError(f"{place} is the graph itself: choose another {option}")
        check_writable(place)
    return list(named)
