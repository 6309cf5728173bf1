"""Compressed bodies: gzip and deflate, with a limit for the unpacked size."""

import gzip
import zlib

from adar_serve.limits import MIB, Limits
from adar_serve.refusals import RefusedError

ENCODINGS = ("gzip", "deflate")
LEAST = 1024  # bytes of a response that is worth compressing


def unpacked(body: bytes, encoding: str | None, limits: Limits) -> bytes:
    """The body as it was before compression. It never takes more memory than the limit."""
    encoding = (encoding or "identity").strip().lower()
    if encoding == "identity":
        return body
    if encoding not in ENCODINGS:
        raise RefusedError(415, f"content-encoding {encoding[:20]!r}: send gzip, deflate or none")
    most = limits.unpacked * MIB
    reader = zlib.decompressobj(16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS)
    try:
        found = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise RefusedError(400, f"the body is not valid {encoding}") from error
    if len(found) > most:
        raise RefusedError(413, f"the unpacked body is above {limits.unpacked} MiB: send a smaller graph")
    if not reader.eof or reader.unused_data:
        raise RefusedError(400, f"the body is not one complete {encoding} stream")
    return found


def packed(body: bytes, accepted: str | None) -> tuple[bytes, str | None]:
    """The body in an encoding that the client accepts, and the name of the encoding."""
    if len(body) < LEAST:
        return body, None
    wanted = [one.split(";")[0].strip().lower() for one in (accepted or "").split(",")]
    if "gzip" in wanted:
        return gzip.compress(body, 1), "gzip"
    if "deflate" in wanted:
        return zlib.compress(body, 1), "deflate"
    return body, None
