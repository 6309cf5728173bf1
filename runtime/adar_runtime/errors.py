"""All errors that a user can cause. The command line prints the message as one line and exits with code 2.

AdarError
├── UsageError           an option or argument is invalid
├── MissingExtraError    an extra of adar-deploy is not installed
├── MissingPackageError  a package that a method converts to, such as pandas, is not installed
├── GraphError           a graph or a graph file cannot be used
│   └── LabelsError      the labels do not match the model
├── RunFolderError       a folder is not a training run
├── BundleError          a folder is not a bundle, or the bundle was changed
├── ExportError          a model cannot be exported, or its export gives different results
├── EngineError          a TensorRT engine cannot be built
├── BackendError         a backend does not work on this machine
│   └── ProfileError     a graph is outside the sizes that the TensorRT engines were built for
└── DivergedError        the numbers are no longer finite

AdarWarning is not an error: the result is usable, but a part of the input was not used or may mean something
else. The command line prints it as one line to stderr.
"""

import sys
import warnings
from importlib import import_module
from typing import Any


class AdarError(Exception):
    """Base class of all errors that a user can cause.

    The message is one line that says what happened, to which file or value, and what to do next.

    Examples:
        >>> try:  # doctest: +SKIP
        ...     bundle = adar_runtime.load("bundle")
        ... except adar_runtime.AdarError as error:
        ...     print(error)
    """


class UsageError(AdarError):
    """An option or argument is invalid."""


class MissingExtraError(AdarError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs more than is installed: pip install 'adar-deploy[{extra}]'")


class MissingPackageError(AdarError):
    """A package that a method converts to, such as pandas, is not installed."""


class GraphError(AdarError):
    """A graph or a graph file cannot be used."""


class LabelsError(GraphError):
    """The labels of a graph do not match the model."""


class RunFolderError(AdarError):
    """A folder is not a training run."""


class BundleError(AdarError):
    """A folder is not a bundle, or the bundle was changed after the export."""


class ExportError(AdarError):
    """A model cannot be exported, or its export gives different results."""


class EngineError(AdarError):
    """A TensorRT engine cannot be built."""


class BackendError(AdarError):
    """A backend does not work on this machine."""


class ProfileError(BackendError):
    """A graph is outside the sizes that the TensorRT engines were built for."""


class DivergedError(AdarError):
    """The numbers are no longer finite."""


class AdarWarning(UserWarning):
    """A part of the input was not used, or may mean something else than it was read as."""


def warn(message: str) -> None:
    """Give an AdarWarning. It names the line of the program that called one of our packages."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("adar_"):
        frame, level = frame.f_back, level + 1
    warnings.warn(AdarWarning(message), stacklevel=level)


def import_package(name: str, purpose: str) -> Any:
    """Import an optional package, or raise a MissingPackageError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError(f"{purpose} needs {name}: pip install {name}") from error


def short(value: object, longest: int = 100) -> str:
    """A value as text for an error message: one line, cut after `longest` characters."""
    text = str(value).replace("\n", " ")
    return text if len(text) <= longest else f"{text[:longest]}…"


def reason(error: BaseException) -> str:
    """The first line of a library's error message, or the error's type if the message is empty."""
    return short((str(error).splitlines() or [type(error).__name__])[0], 200)
