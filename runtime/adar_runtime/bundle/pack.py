"""A bundle as one file, `.adar`: a plain zip archive that is read in place and never unpacked to run it.

Any zip program opens a pack. This module reads less than they do: only archives that are written exactly as
`pack_bundle` writes them. Every byte outside the contents of the files follows from the names, sizes and
CRCs of the files, and is compared with what it has to be. Entries that are compressed, encrypted, hidden,
overlapping or named twice, links, folders, comments, extra fields and zip64 records are therefore refused.
"""

import os
import re
import stat
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.metadata import CARD, LICENSE
from adar_runtime.errors import BundleError, UsageError, short
from adar_runtime.files import HOLES_FROM_BYTES, check_holes, read_bundle_file

SUFFIX = ".adar"
OTHER_FILES = (CARD, LICENSE, "model.sig")  # that a pack may hold besides the manifest and its models
ENGINES = "engines"  # programs for one kind of GPU: never packed
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.onnx"
MAX_MEMBERS = 16
MAX_OTHER_BYTES = 2**24  # of each of OTHER_FILES
MAX_BYTES = 2**32 - 2**20  # of a pack: zip without zip64 ends at 4 GiB

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END = struct.Struct("<4s4H2LH")
VERSION = 20  # of the zip format; the lowest that programs write
UNIX = 3 << 8 | VERSION
FIRST_DAY = 0x21  # 1 January 1980, the earliest date: packs of equal bundles are equal
REGULAR_FILE = (stat.S_IFREG | 0o644) << 16


class Member(NamedTuple):
    """A file in a pack. `start` is where its content begins."""

    name: str
    start: int
    size: int
    crc: int

    @property
    def offset(self) -> int:
        """Where the header of the file begins."""
        return self.start - LOCAL.size - len(self.name)

    def local_header(self) -> bytes:
        name, size, crc = self.name.encode(), self.size, self.crc
        fields = (b"PK\x03\x04", VERSION, 0, 0, 0, FIRST_DAY, crc, size, size, len(name), 0)
        return LOCAL.pack(*fields) + name

    def entry(self) -> bytes:
        """The entry in the list at the end of the archive."""
        name, size, crc = self.name.encode(), self.size, self.crc
        fields = (b"PK\x01\x02", UNIX, VERSION, 0, 0, 0, FIRST_DAY, crc, size, size, len(name))
        return CENTRAL.pack(*fields, 0, 0, 0, 0, REGULAR_FILE, self.offset) + name


def is_pack(path: Path) -> bool:
    """Whether a bundle is one file, not a folder. A path that cannot be looked up is none."""
    try:
        return path.is_file()
    except OSError:  # a name that is too long, for example: reading the manifest says so
        return False


def require_folder(bundle: Path, what: str) -> None:
    """Refuse a packed bundle for work that writes into the bundle."""
    if is_pack(bundle):
        raise UsageError(
            f"{bundle} is a packed bundle, and {what} needs a folder: adar-deploy unpack {bundle}"
        )


def encode(files: Mapping[str, bytes]) -> bytes:
    """The bytes of a pack with these files, in this order."""
    parts, entries, position = list[bytes](), list[bytes](), 0
    for name, content in files.items():
        member = Member(name, position + LOCAL.size + len(name), len(content), zlib.crc32(content))
        parts += [member.local_header(), content]
        entries.append(member.entry())
        position = member.start + member.size
    if position > MAX_BYTES:
        raise UsageError(f"the bundle has {position:,} bytes; a pack holds at most {MAX_BYTES:,}")
    return b"".join([*parts, *entries, _end(len(files), len(b"".join(entries)), position)])


def _end(count: int, size: int, start: int) -> bytes:
    return END.pack(b"PK\x05\x06", 0, 0, count, count, size, start, 0)


def read_member(path: Path, name: str, max_bytes: int) -> bytes:
    """The content of one file of a pack.

    Raises:
        BundleError: The file is not a pack, has no such file, or the file is too large or damaged.
        OSError: The file cannot be read.
    """
    with _opened(path) as (file, found):
        member = found.get(name)
        if member is None:
            raise BundleError(f"the pack has no {short(name)}")
        return _content(path, file, member, max_bytes)


def read_members(path: Path, known: Collection[str]) -> dict[str, bytes]:
    """The contents of all files of a pack, with the limits of `read_member`. Other files are refused."""
    with _opened(path) as (file, found):
        for name in sorted(set(found) - set(known)):
            raise BundleError(f"the pack contains {name}, which its manifest does not name")
        return {
            name: _content(path, file, member, MAX_OTHER_BYTES if name in OTHER_FILES else MAX_BYTES)
            for name, member in found.items()
        }


def _content(path: Path, file: BinaryIO, member: Member, max_bytes: int) -> bytes:
    if member.size > max_bytes:
        raise BundleError(f"{member.name} has {member.size:,} bytes, but at most {max_bytes:,} are allowed")
    if member.size > HOLES_FROM_BYTES:
        try:
            check_holes([path])
        except ValueError as error:
            raise BundleError(f"{error}: copy the pack again") from error
    file.seek(member.start)
    content = file.read(member.size)
    if zlib.crc32(content) != member.crc:
        raise BundleError(f"{member.name} is damaged (its CRC differs): copy the pack again")
    return content


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, dict[str, Member]]]:
    """The open file and its checked list of members."""
    if path.suffix != SUFFIX:
        raise BundleError(f"not a packed bundle ({SUFFIX}): give the folder of a bundle, or a file of pack")
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise BundleError("not a regular file (a pipe or a device)")
        yield file, _members(file, facts.st_size)


def _members(file: BinaryIO, size: int) -> dict[str, Member]:
    """The files of a pack. Their headers and contents fill the archive, one after another, without gaps."""
    if size > MAX_BYTES + MAX_MEMBERS * 256 or size < END.size:
        raise BundleError(f"not a packed bundle ({size:,} bytes)")
    file.seek(size - END.size)
    mark, _, _, _, count, length, start, _ = END.unpack(tail := file.read(END.size))
    if mark != b"PK\x05\x06":
        raise BundleError("not a packed bundle: give the folder of a bundle, or a file of adar-deploy pack")
    if (
        not 0 < count <= MAX_MEMBERS
        or tail != _end(count, length, start)
        or start + length + END.size != size
    ):
        raise _unusual("its end")
    file.seek(start)
    entries, found, position = file.read(length), dict[str, Member](), 0
    for _ in range(count):
        member, entries = _next_member(entries, position)
        file.seek(position)
        if file.read(member.start - position) != member.local_header():
            raise _unusual(f"the header of {member.name}")
        if member.name.casefold() in map(str.casefold, found):
            raise _unusual(f"a second {member.name}")
        found[member.name] = member
        position = member.start + member.size
    if entries or position != start:
        raise _unusual("its length")
    return found


def _next_member(entries: bytes, position: int) -> tuple[Member, bytes]:
    """The next file of the list, whose header has to be at this position, and the rest of the list."""
    if len(entries) < CENTRAL.size:
        raise _unusual("its list of files")
    fields = CENTRAL.unpack_from(entries)
    crc, size, letters = fields[7], fields[9], fields[10]
    end = CENTRAL.size + letters
    name = entries[CENTRAL.size : end].decode("ascii", "replace")
    if name not in (manifests.FILE_NAME, *OTHER_FILES) and not re.fullmatch(MODEL_NAME, name):
        raise BundleError(f"the pack contains {short(name)!r}, which is not a file of a bundle")
    member = Member(name, position + LOCAL.size + len(name), size, crc)
    if entries[:end] != member.entry():
        raise _unusual(f"the entry of {name}")
    return member, entries[end:]


def _unusual(what: str) -> BundleError:
    return BundleError(
        f"not as adar-deploy pack writes it ({what}): unpack it with a zip program, and pack the folder again"
    )


def files_of(bundle: Path, manifest: Manifest) -> dict[str, bytes]:
    """The contents of the files of a bundle's folder that belong into a pack; the manifest is the first.

    Raises:
        UsageError: The folder contains something that is not part of a bundle.
        BundleError: A file is a link or too large.
    """
    models = manifest.file_names()
    names = (manifests.FILE_NAME, *models, *OTHER_FILES)
    for path in sorted(bundle.iterdir()):
        if path.name not in names and path.name != ENGINES and not path.name.startswith("."):
            raise UsageError(f"{short(str(path))} is not part of a bundle: move it away, and pack again")
    for name in models:
        if not re.fullmatch(MODEL_NAME, name):
            raise UsageError(f"a model is named {short(name)!r}, which a pack cannot hold: export again")
    limits = dict.fromkeys(names, MAX_BYTES) | dict.fromkeys(OTHER_FILES, MAX_OTHER_BYTES)
    present = [name for name in names if name not in OTHER_FILES or (bundle / name).exists()]
    return {name: read_bundle_file(bundle / name, limits[name]) for name in present}
