"""Both formats are zip archives, and an archive may claim anything about what is in it."""

import zipfile
from pathlib import Path

from adar_runtime.errors import GraphError

DEFLATE_RATIO = 1032  # deflate cannot shrink anything further
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def check_member(path: Path, member: zipfile.ZipInfo) -> None:
    """Refuse a member that cannot be as large as it says, or that needs more than zlib to be read."""
    if member.flag_bits & 1:
        raise GraphError(f"{member.filename!r} in it is encrypted: save it without a password")
    if member.compress_type not in COMPRESSION:
        raise GraphError(f"{member.filename!r} in it is compressed in an unknown way: use plain zip")
    ratio = DEFLATE_RATIO if member.compress_type == zipfile.ZIP_DEFLATED else 1
    if member.file_size > ratio * min(member.compress_size, path.stat().st_size):
        raise GraphError(f"{member.filename!r} in it is smaller than it claims to be: the file is damaged")
