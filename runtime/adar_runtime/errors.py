"""Every error that a user can cause. The command line prints its message as one line and exits with 2.

AdarError
├── UsageError         an option or argument that cannot be
├── MissingExtraError  a package that this command needs is not installed
├── GraphError         a graph, or a file of one, that cannot be used
│   └── LabelsError    labels that the model's answers cannot be scored by
├── RunFolderError     a folder that holds no training run
├── BundleError        a folder that holds no bundle, or one that has been changed
├── ExportError        a model that cannot be exported, or whose export does not agree with it
├── EngineError        a TensorRT engine that cannot be built
├── BackendError       a device or provider that was asked for and does not work here
│   └── ProfileError   a graph of a shape that the TensorRT engines were not built for
└── DivergedError      numbers that stopped being finite
"""


class AdarError(Exception):
    """Says what happened, on what, and what to do next."""


class UsageError(AdarError):
    """An option or argument that cannot be."""


class MissingExtraError(AdarError):
    """A package that this command needs is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs more than is installed: pip install 'adar-deploy[{extra}]'")


class GraphError(AdarError):
    """A graph, or a file of one, that cannot be used."""


class LabelsError(GraphError):
    """Labels that the model's answers cannot be scored by."""


class RunFolderError(AdarError):
    """A folder that holds no training run."""


class BundleError(AdarError):
    """A folder that holds no bundle, or one that has been changed since it was written."""


class ExportError(AdarError):
    """A model that cannot be exported, or whose export does not agree with it."""


class EngineError(AdarError):
    """A TensorRT engine that cannot be built."""


class BackendError(AdarError):
    """A device or provider that was asked for and does not work here."""


class ProfileError(BackendError):
    """A graph of a shape that the TensorRT engines were not built for."""


class DivergedError(AdarError):
    """Numbers that stopped being finite."""


def short(value: object, longest: int = 100) -> str:
    """What somebody else wrote, cut so that it fits into a message of one line."""
    text = str(value).replace("\n", " ")
    return text if len(text) <= longest else f"{text[:longest]}…"


def reason(error: BaseException) -> str:
    """The first line of what a library had to say; some say nothing."""
    return short((str(error).splitlines() or [type(error).__name__])[0], 200)
