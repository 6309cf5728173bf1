"""Objects that run code when they are unpickled. The code creates a file, so that tests can detect it."""

import os
import pickle
from pathlib import Path

MARK = "code-was-run"
TOUCH = f"touch {MARK}"


class Touch:
    """Pickles to a function call."""

    def __init__(self, call: object = os.system, *arguments: object) -> None:
        self._call = (call, arguments or (TOUCH,))

    def __reduce__(self) -> tuple:
        return self._call


def evil(protocol: int = 2) -> bytes:
    return pickle.dumps(Touch(), protocol)


def assert_no_code_ran(folder: Path) -> None:
    assert not (folder / MARK).exists()
    assert not Path(MARK).exists()
