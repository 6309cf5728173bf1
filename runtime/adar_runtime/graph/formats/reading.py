"""Whatever is wrong with a file from outside is said with the file's name before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adar_runtime.errors import GraphError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong, with the name of the file: of several files, each is read in a block of its own."""
    try:
        if path.is_dir():
            raise GraphError("this is a folder: name a file in it")
        if not path.is_file():
            raise GraphError("there is no such file")
        yield
    except OSError as error:
        raise GraphError(f"{path}: cannot be read: {error.strerror or error}") from error
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
