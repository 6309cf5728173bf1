"""Bearer tokens from a file. The comparison takes the same time for every wrong token."""

import hashlib
import hmac
from pathlib import Path

from adar_runtime.errors import UsageError
from adar_serve.refusals import RefusedError

LEAST = 16  # characters
MAX_BYTES = 2**20
MAX_TOKENS = 1000


class Tokens:
    """The tokens that a server accepts. Only their hashes are kept.

    Args:
        digests: SHA-256 of each token; none means that every request is accepted.
    """

    def __init__(self, digests: tuple[bytes, ...] = ()) -> None:
        self._digests = digests

    @classmethod
    def read(cls, path: Path) -> "Tokens":
        """Read one token per line. Empty lines and lines with # at the beginning do not count.

        Raises:
            UsageError: The file cannot be read, has no token, or a token is too short.
        """
        try:
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 1).decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: the file of tokens cannot be read as text ({error})") from error
        lines = [line.strip() for line in text.splitlines()]
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens or len(text) > MAX_BYTES or len(tokens) > MAX_TOKENS:
            raise UsageError(f"{path}: write 1 to {MAX_TOKENS:,} tokens, one per line")
        if min(map(len, tokens)) < LEAST:
            raise UsageError(
                f"{path}: a token has fewer than {LEAST} characters: make one with "
                "python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        return cls(tuple(map(_digest, tokens)))

    @property
    def needed(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Refuse a request whose header `authorization` has no accepted token."""
        if not self._digests:
            return
        scheme, _, token = (authorization or "").partition(" ")
        given = _digest(token.strip())
        # No early end: the time must not say which token is near.
        equal = [hmac.compare_digest(given, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(equal):
            raise RefusedError(401, "send the header 'Authorization: Bearer TOKEN' with a valid token")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
