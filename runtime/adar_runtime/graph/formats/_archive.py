"""Open zip archives safely. `.npz` and `.pt` are both zip archives, whose headers may lie about sizes."""

import io
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, short
from adar_runtime.graph.limits import ByteBudget

Archive = zipfile.ZipFile  # noqa: TID251 opened in `open_archive` only
MAX_DEFLATE_RATIO = 1032  # deflate cannot compress further
COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LOCAL_HEADER = b"PK\x03\x04"
LOCAL_HEADER_BYTES = 30  # without the name
END, LARGE_LOCATOR, LARGE_END = (
    b"PK\x05\x06",
    b"PK\x06\x07",
    b"PK\x06\x06",
)  # the records after the list of members
END_BYTES, LARGE_LOCATOR_BYTES, LARGE_END_BYTES = 22, 20, 56
PART_BYTES = 2**22
MAX_DIRECTORY_BYTES = 2**20  # enough for ten thousand members


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an archive that can be read in one way only.

    Raises:
        ValueError: Another program could read different members.
        zipfile.BadZipFile: The file is not a zip archive.
    """
    with _LimitedReader(io.FileIO(path)) as file, Archive(file) as archive:
        file.opened = True
        members = archive.infolist()
        # PyTorch ignores case in member names.
        if len({member.filename.casefold() for member in members}) < len(members):
            raise ValueError("two of its members have the same name")
        # Python shortens a name at a null character, and newer versions take the name from another field.
        if any(member.filename != member.orig_filename for member in members):
            raise ValueError("a member has two names")
        # Python skips bytes before the archive, and PyTorch does not.
        file.seek(0)
        if file.read(4) != LOCAL_HEADER or min((member.header_offset for member in members), default=1) != 0:
            raise ValueError("it does not begin with its first member")
        if _list_offset(file) != archive.start_dir:
            raise ValueError("its list of members can be read in two ways")
        _check_places(members, archive.start_dir)
        yield archive


def _check_places(members: list[zipfile.ZipInfo], end: int) -> None:
    """Reject members that share bytes: a small file could repeat its content any number of times."""
    for member in sorted(members, key=lambda each: each.header_offset, reverse=True):
        if member.header_offset + LOCAL_HEADER_BYTES + member.compress_size > end:
            raise ValueError("its members overlap")
        end = member.header_offset


def _list_offset(file: io.BufferedReader) -> int:
    """Where the list of members begins by the records at the end. Python guesses it from their position."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - END_BYTES - LARGE_LOCATOR_BYTES - LARGE_END_BYTES))
    tail = file.read()
    end, rest = tail[-END_BYTES:], tail[:-END_BYTES]
    locator, large_end = rest[-LARGE_LOCATOR_BYTES:], rest[:-LARGE_LOCATOR_BYTES]
    if not end.startswith(END) or end[-2:] != b"\0\0":
        raise ValueError("it has a comment, or data after its end")
    if not locator.startswith(LARGE_LOCATOR):
        return int(struct.unpack_from("<I", end, 16)[0])
    if not large_end.startswith(LARGE_END) or struct.unpack_from("<Q", locator, 8)[0] != size - len(tail):
        raise ValueError("its list of members can be read in two ways")
    return int(struct.unpack_from("<Q", large_end, 48)[0])


def check_members(path: Path, members: Iterable[zipfile.ZipInfo], most: int | None = None) -> None:
    """Reject members with impossible sizes, and archives that unpack to far more than their own size."""
    size = path.stat().st_size
    unpacked = ByteBudget(size, most)
    for member in members:
        _check_member(member, size)
        unpacked.reserve(short(member.filename), member.file_size, 1)


def _check_member(member: zipfile.ZipInfo, size: int) -> None:
    """Reject a member that zlib cannot read or that cannot be as large as its header says."""
    if member.flag_bits & 1:
        raise GraphError(f"member {member.filename!r} is encrypted: save the file without a password")
    if member.compress_type not in COMPRESSION:
        raise GraphError(f"member {member.filename!r} uses an unsupported compression: use plain zip")
    ratio = MAX_DEFLATE_RATIO if member.compress_type == zipfile.ZIP_DEFLATED else 1
    if member.file_size > ratio * min(member.compress_size, size):
        raise GraphError(f"member {member.filename!r} is smaller than its header says: the file is damaged")


def read_member(archive: Archive, name: str) -> NDArray[np.uint8]:
    """The bytes of a member, whose checksum must fit. The caller has counted them."""
    content = np.empty(archive.getinfo(name).file_size, np.uint8)
    filled = 0
    with archive.open(name) as file:
        while part := file.read(PART_BYTES):  # the last, empty one checks the checksum
            content[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
    if filled != len(content):
        raise ValueError("a member is shorter than its header says")
    return content


class _LimitedReader(io.BufferedReader):
    """Refuses to read a huge list of members. `zipfile` reads the whole list when it opens an archive."""

    opened = False

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.opened and size is not None and size > MAX_DIRECTORY_BYTES:
            raise ValueError("it has far more members than a graph file")
        return super().read(size)
