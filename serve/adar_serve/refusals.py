"""A request that is refused: an HTTP status, and a message that tells the client what to change."""

import re

from adar_runtime.errors import AdarError, DivergedError, GraphError, UsageError, short

LONGEST = 1000  # characters of a message: it may repeat what a client sent, also to the log
CLIENT_GONE = 499  # not a standard status: nobody receives it, the log and the metrics show it


class RefusedError(AdarError):
    """A request that gets an error response.

    Args:
        status: The HTTP status. gRPC has a code for each one.
        message: What to change. It contains nothing about the server's files.
        retry_after: Seconds after which the client may try again.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        message = short(message, LONGEST).encode(errors="backslashreplace").decode()  # half characters
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def refusal(error: AdarError) -> RefusedError:
    """The response for an error of the runtime. Only errors about the request are explained."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, GraphError | UsageError):
        return RefusedError(400, _without_paths(str(error)))
    if isinstance(error, DivergedError):
        return RefusedError(422, _without_paths(str(error)))
    return RefusedError(500, "the model failed on the server: the server's log has the reason")


def release(error: BaseException) -> None:
    """Drop the tracebacks of an error that is answered, and of its causes.

    Their variables hold the request, and often the error itself: such a circle stays until Python's collector
    runs, which looks at the number of objects and not at the size of a request.
    """
    left = [error]
    while left:
        each = left.pop()
        if each.__traceback__ is not None:  # an error can be its own cause
            each.__traceback__ = None
            left += [one for one in (each.__cause__, each.__context__) if one is not None]


def files_changed() -> RefusedError:
    """The response of a model that needs one of its files, after somebody changed the bundle on the disk."""
    return RefusedError(
        503, "the files of the model were changed on the server after it was loaded: load the model again"
    )


def _without_paths(message: str) -> str:
    """The message without absolute paths. Only their last part stays."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:,'\"]+/)+", "", message)
