"""Both formats are zip archives, and an archive may claim anything about what is in it."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adar_runtime.errors import GraphError
from adar_runtime.graph.limits import limit_is_given

DEFLATE_RATIO = 1032  # deflate cannot shrink anything further
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LOCAL_HEADER = b"PK\x03\x04"
LARGEST_DIRECTORY = 2**20  # bytes: room for ten thousand members
HARMLESS_BYTES = 256 * 2**20  # that a file may unfold to, however small it is
LIKELY_RATIO = 200  # beyond it, and beyond these bytes, a file is made to fill a memory


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive that every reader sees alike; a ValueError or BadZipFile for any other."""
    with _Careful(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
        file.opened = True
        members = archive.infolist()
        # PyTorch takes A for a: it would read another of two such members than the one that was checked.
        if len({member.filename.casefold() for member in members}) < len(members):
            raise ValueError("two of its members have the same name")
        # Python forgives what stands before an archive and PyTorch does not: they would read different ones.
        file.seek(0)
        if file.read(4) != LOCAL_HEADER or min((member.header_offset for member in members), default=1) != 0:
            raise ValueError("it does not begin with its first member")
        yield archive


def check_members(path: Path, members: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse members that cannot be as large as they say, or that unfold to far more than the file."""
    size, total = path.stat().st_size, 0
    for member in members:
        _check_member(member, size)
        total += member.file_size
    if total > max(HARMLESS_BYTES, LIKELY_RATIO * size) and not limit_is_given():
        raise GraphError(
            f"would unfold from {size:,} to {total:,} bytes: if you trust it, set ADAR_MAX_BYTES"
        )


def _check_member(member: zipfile.ZipInfo, size: int) -> None:
    """Refuse what needs more than zlib to be read, or cannot be as large as it says."""
    if member.flag_bits & 1:
        raise GraphError(f"{member.filename!r} in it is encrypted: save it without a password")
    if member.compress_type not in COMPRESSION:
        raise GraphError(f"{member.filename!r} in it is compressed in an unknown way: use plain zip")
    ratio = DEFLATE_RATIO if member.compress_type == zipfile.ZIP_DEFLATED else 1
    if member.file_size > ratio * min(member.compress_size, size):
        raise GraphError(f"{member.filename!r} in it is smaller than it claims to be: the file is damaged")


class _Careful(io.BufferedReader):
    """Refuses to read the list of a million members, which `zipfile` would do at once and in full."""

    opened = False

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.opened and size is not None and size > LARGEST_DIRECTORY:
            raise ValueError("it has far more members than a graph")
        return super().read(size)
