"""Which files the commands read and write."""

import re
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain, count
from pathlib import Path

RUNS = Path("runs")  # the folder in which training runs are saved and looked for
BUNDLE = Path("bundle")  # the folder of a bundle, if none is named
PRETRAINED = Path("pretrained")  # the name of the bundle that this package contains
PACKAGED = Path(__file__).resolve().parent / PRETRAINED  # its folder
NAME = "{name}"  # in an output path: replaced by the name of the graph's file without its suffix


def run_folders(bundle: Path) -> list[Path]:
    """Folders that may contain the run of a bundle: runs/, the folder of the bundle, and runs/ in it."""
    found = {folder.absolute(): folder for folder in (bundle.parent / RUNS, bundle.parent, RUNS)}
    return list(reversed(found.values()))


def named_bundle(path: Path) -> Path:
    """The folder of the bundle that this package contains, for the name `pretrained`; other paths unchanged.

    A bundle in a folder of that name in the working folder is preferred.
    """
    return PACKAGED if path == PRETRAINED and not is_model(path) else path


def name_of_bundle(folder: Path) -> Path:
    """How to name this folder in another command: the reverse of `named_bundle`."""
    return PRETRAINED if folder == PACKAGED else folder


def graph_files(given: Sequence[Path]) -> list[Path]:
    """The graph files to read: each file as it is, those of a pattern, and all graph files of a folder."""
    from adar_runtime.errors import GraphError
    from adar_runtime.graph.formats import FORMATS

    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            found += _matching(path) or [path]
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix in FORMATS and file.is_file())
        if not inside:
            raise GraphError(f"{path}: this folder contains no {' or '.join(FORMATS)} file")
        found += inside
    return found


def _matching(pattern: Path) -> list[Path]:
    """The graph files of a pattern such as graphs/*.npz that the shell did not expand."""
    if pattern.exists() or not any(mark in str(pattern) for mark in "*?["):
        return []
    from adar_runtime.graph.formats import FORMATS

    start = Path(pattern.anchor)
    return sorted(file for file in start.glob(str(pattern.relative_to(start))) if file.suffix in FORMATS)


def bundle_first(model: Path, graphs: Sequence[Path]) -> tuple[Path, list[Path]]:
    """The model and the graphs, in this order, whichever came first: files of graphs are no models.

    The order is certain if the first is a graph file, and exactly one of the others is a model.
    """
    others = [path for path in graphs if is_model(path)]
    if is_graph_file(model) and len(others) == 1:
        return others[0], [model, *(path for path in graphs if path != others[0])]
    return model, list(graphs)


def is_model(path: Path) -> bool:
    """Whether this is a bundle (a folder or a pack) or a training run."""
    from adar_runtime.bundle import manifest, pack, run_files

    if path.is_file():
        return path.suffix == pack.SUFFIX
    return any((path / name).is_file() for name in (manifest.FILE_NAME, run_files.CONFIG))


def is_graph_file(path: Path) -> bool:
    """Whether the name of this file is that of a graph, or of a table of nodes."""
    from adar_runtime.graph.formats import FORMATS, TABLES

    return path.suffix in (*FORMATS, *TABLES)


def training_names(
    given: list[str], validate_on: list[str], in_memory: Container[str]
) -> tuple[list[str], int]:
    """The names of all graphs to train on, those to validate on at the end, and the number of the latter.

    A folder stands for the graph files in it. Names in `in_memory` are no paths.
    """
    from adar_runtime.errors import UsageError

    def expand(name: str) -> list[str]:
        return [name] if name in in_memory else _expand(name)

    last = [name for one in validate_on for name in expand(one)]
    held = {Path(name).resolve() for name in last}
    names = [name for one in given for name in expand(one) if Path(name).resolve() not in held]
    if not names:
        raise UsageError("--validate-on leaves no graph to train on: give another graph")
    return names + last, len(last)


def _expand(name: str) -> list[str]:
    """The graph files of a folder; any other name unchanged."""
    from adar_runtime.graph.synthetic import FAMILIES

    if name in FAMILIES or not Path(name).is_dir():
        return [name]
    return [str(file) for file in graph_files([Path(name)])]


def existing_parent(output: Path) -> Path:
    """The closest folder above the output that exists: temporary files go to the same disk."""
    return next(folder for folder in output.absolute().parents if folder.is_dir())


def output_or_default(
    given: Path | None, default: str, is_own: Callable[[Path], bool] = lambda _: False
) -> Path:
    """The file to write: the one that the user named, or the default one.

    A file that nobody named is not replaced, unless `is_own` says that this program wrote it.
    """
    from adar_runtime.errors import UsageError

    path = given or Path(default)
    if given is None and (path.exists() or path.is_symlink()) and not is_own(path):
        raise UsageError(f"{path} exists: to replace it, name it (--output {path}), or choose another name")
    return path


def next_free(path: Path) -> Path:
    """This path, or the first of NAME-2, NAME-3, … if something has it."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not (each.exists() or each.is_symlink()))


def check_output(path: Path, inputs: Iterable[Path | None] = (), option: str = "the output") -> None:
    """Raise a UsageError if a file cannot be written, or would replace an input or a file of adar-deploy."""
    from adar_runtime.bundle import manifest, run_files
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable
    from adar_runtime.graph.store import store
    from adar_runtime.phases import context_files

    if path.exists() and any(each and each.exists() and path.samefile(each) for each in inputs):
        raise UsageError(f"{path} is the input graph or another input: choose another path for {option}")
    check_writable(path)
    of_bundle = path.name == manifest.FILE_NAME
    of_run = path.name in run_files.NAMES and (path.parent / run_files.WEIGHTS).is_file()
    if path.exists() and (of_bundle or of_run):
        raise UsageError(f"{path} is a file of a bundle or training run: choose another path")
    if path.exists() and path.name in (store.FILE_NAME, context_files.FILE_NAME):
        raise UsageError(f"{path} is a file of a graph store or context: choose another path")


def output_paths(
    option: str, pattern: Path | None, graphs: Sequence[Path], inputs: Iterable[Path | None], *, several: bool
) -> list[Path | None]:
    """The output path of each graph. No path overwrites an input or the output of another graph.

    `inputs` are the files that the command reads beside the graphs, such as a table of edges.
    """
    from adar_runtime.errors import UsageError

    if pattern is None:
        return [None] * len(graphs)
    for placeholder in re.findall(r"\{\w*\}", str(pattern)):
        if placeholder != NAME:
            raise UsageError(
                f"{option} contains the unknown placeholder {placeholder}: the only one is {NAME}"
            )
    if several and NAME not in str(pattern):
        raise UsageError(
            f"several graphs need the placeholder {NAME} (the graph's name) in {option}, "
            f"such as {pattern.with_stem(NAME)}"
        )
    paths = [Path(str(pattern).replace(NAME, graph.stem)) for graph in graphs]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"two graphs would be written to {path}: give their files different names")
        check_output(path, (*graphs, *inputs), option)
    return list(paths)
