"""Hostile packs: every archive that is not exactly as `pack` writes it is refused."""

import io
import json
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Collection
from copy import copy
from pathlib import Path

import numpy as np
import pytest

from adar_runtime import Graph, load
from adar_runtime.bundle import pack
from adar_runtime.bundle.manifest import checksum_of
from adar_runtime.bundle.reading import pack_bundle, read_bundle, unpack_bundle
from adar_runtime.errors import AdarError, BundleError, UsageError
from tests.bundles import edit


@pytest.fixture(scope="module")
def packed(bundle_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "board.adar"
    pack_bundle(bundle_folder, out)
    return out


def members(packed: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(packed) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_pack_is_a_plain_zip_that_runs_like_the_folder(
    packed: Path, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    with zipfile.ZipFile(packed) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        for info in archive.infolist():
            assert archive.read(info) == (bundle_folder / info.filename).read_bytes()
            assert info.external_attr >> 16 == 0o100644
    assert np.array_equal(load(packed).run(board, 5).scores, load(bundle_folder).run(board, 5).scores)
    again = tmp_path / "again.adar"
    pack_bundle(bundle_folder, again)
    assert again.read_bytes() == packed.read_bytes()


def test_unpack_gives_the_same_files(packed: Path, bundle_folder: Path, tmp_path: Path) -> None:
    unpack_bundle(packed, tmp_path / "out")
    expected = {path.name: path.read_bytes() for path in bundle_folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == expected
    with pytest.raises(UsageError, match="--overwrite"):
        unpack_bundle(packed, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"contains no manifest\.json"):
        unpack_bundle(packed, tmp_path / "mine", overwrite=True)


def test_engines_and_hidden_files_are_left_out_and_others_refused(
    bundle_folder: Path, tmp_path: Path
) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    (bundle / "engines").mkdir()
    (bundle / "engines" / "cell.engine").write_bytes(b"program")
    (bundle / ".gitattributes").write_text("")
    names = pack_bundle(bundle, tmp_path / "a.adar")
    models = ["encoder.onnx", "cell.onnx", "head.onnx", "batched_cell.onnx"]
    models += [f"phase_{name}.onnx" for name in ("absorb", "small", "message", "receive", "update")]
    assert names == ["manifest.json", *models, "README.md"]
    (bundle / "notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"notes\.txt is not part of a bundle"):
        pack_bundle(bundle, tmp_path / "b.adar")
    (bundle / "notes.txt").unlink()
    (bundle / "README.md").unlink()
    (bundle / "README.md").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="link"):
        pack_bundle(bundle, tmp_path / "b.adar")
    assert not (tmp_path / "b.adar").exists()


def in_cell(content: bytes) -> int:
    """A place inside cell.onnx, which is read when the pack is loaded."""
    return content.index(b"cell.onnx") + 600


def repacked(packed: Path, change) -> bytes:
    """The pack written again by Python's zipfile, with one change."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(packed) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            change(new, info, old.read(info))
    return buffer.getvalue()


def keep(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    new.writestr(info, content)


def renamed(name: str):
    def change(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
        info.filename = name if info.filename == "README.md" else info.filename
        new.writestr(info, content)

    return change


def compressed(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    new.writestr(info, content, zipfile.ZIP_DEFLATED)


def twice(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    new.writestr(info, content)
    if info.filename == "manifest.json":
        new.writestr(copy(info), content)


def attributes(value: int):
    def change(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
        info.external_attr = value << 16
        new.writestr(info, content)

    return change


def extra(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    info.extra = struct.pack("<HHQQ", 1, 16, len(content), len(content))  # zip64
    new.writestr(info, content)


def comment(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    new.comment = b"hello"
    new.writestr(info, content)


def dated(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    info.date_time = (2026, 1, 1, 0, 0, 0)
    new.writestr(info, content)


def folder_entry(new: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes) -> None:
    new.writestr(info, content)
    if info.filename == "README.md":
        new.writestr("models/", b"")


REPACKED = {
    "path traversal": (renamed("../../README.md"), "not a file of a bundle"),
    "absolute path": (renamed("/etc/passwd"), "not a file of a bundle"),
    "backslashes": (renamed("..\\README.md"), "not a file of a bundle"),
    "a null in a name": (renamed("manifest.json"), "second"),
    "an engine": (renamed("engines/cell.engine"), "not a file of a bundle"),
    "another case": (renamed("readme.MD"), "not a file of a bundle"),
    "a name of other letters": (renamed("мodel.onnx"), "not a file of a bundle"),
    "compressed": (compressed, "entry of manifest.json"),
    "duplicate names": (twice, "second manifest.json"),
    "a symbolic link": (attributes(0o120777), "entry of manifest.json"),
    "a program": (attributes(0o100755), "entry of manifest.json"),
    "a zip64 field": (extra, "list|entry|not a file"),
    "a comment": (comment, "not a packed bundle"),
    "dates": (dated, "entry of manifest.json"),
    "a folder": (folder_entry, "not a file of a bundle"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", REPACKED)
def test_an_archive_of_another_program_is_refused(case: str, packed: Path, tmp_path: Path) -> None:
    change, message = REPACKED[case]
    file = tmp_path / "bad.adar"
    file.write_bytes(repacked(packed, change))
    refused(file, message, tmp_path)


def refused(file: Path, message: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=message):
        read_bundle(file)
    with pytest.raises(AdarError):
        unpack_bundle(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_python_writes_the_same_archive(packed: Path) -> None:
    """The cases above are refused for their change, not because another program wrote the archive."""
    assert repacked(packed, keep) == packed.read_bytes()


def first_entry(content: bytes) -> int:
    return content.index(b"PK\x01\x02")


def patched(content: bytes, at: int, layout: str, value: int) -> bytes:
    return content[:at] + struct.pack(layout, value) + content[at + struct.calcsize(layout) :]


PATCHED = {
    "encrypted in the list": lambda c: patched(c, first_entry(c) + 8, "<H", 1),
    "encrypted in the header": lambda c: patched(c, 6, "<H", 1),
    "sizes in a data descriptor": lambda c: patched(c, 6, "<H", 8),
    "compressed in the header only": lambda c: patched(c, 8, "<H", 8),
    "another size in the header": lambda c: patched(c, 22, "<L", 7),
    "another size in the list": lambda c: patched(c, first_entry(c) + 24, "<L", 7),
    "a size of four gigabytes": lambda c: patched(c, first_entry(c) + 24, "<L", 2**32 - 1),
    "both sizes too large": lambda c: patched(
        patched(c, first_entry(c) + 20, "<L", 2**31), first_entry(c) + 24, "<L", 2**31
    ),
    "another CRC in the list": lambda c: patched(c, first_entry(c) + 16, "<L", 7),
    "overlapping entries": lambda c: patched(c, c.index(b"PK\x01\x02", first_entry(c) + 4) + 42, "<L", 0),
    "an offset outside": lambda c: patched(c, first_entry(c) + 42, "<L", 2**32 - 2),
    "another disk": lambda c: patched(c, len(c) - 18, "<H", 1),
    "zip64 markers at the end": lambda c: patched(c, len(c) - 12, "<H", 0xFFFF),
    "more entries than there are": lambda c: patched(patched(c, len(c) - 14, "<H", 7), len(c) - 12, "<H", 7),
    "fewer entries than there are": lambda c: patched(patched(c, len(c) - 14, "<H", 4), len(c) - 12, "<H", 4),
    "no entries": lambda c: patched(patched(c, len(c) - 14, "<H", 0), len(c) - 12, "<H", 0),
    "bytes before it": lambda c: b"#!/bin/sh\n" + c,
    "bytes behind it": lambda c: c + b"\n",
    "cut": lambda c: c[:-9],
    "a gap": lambda c: c[: first_entry(c)] + b"gap" + c[first_entry(c) :],
    "a damaged model": lambda c: patched(c, in_cell(c), "<B", c[in_cell(c)] ^ 1),
    "empty": lambda c: c[:0],
    "a polyglot of two packs": lambda c: c + c,
}


@pytest.mark.parametrize("case", PATCHED)
def test_headers_that_lie_are_refused(case: str, packed: Path, tmp_path: Path) -> None:
    content = PATCHED[case](packed.read_bytes())
    assert content != packed.read_bytes()
    (tmp_path / "bad.adar").write_bytes(content)
    refused(tmp_path / "bad.adar", r"bad\.adar", tmp_path)


def test_every_changed_byte_outside_the_card_is_noticed(packed: Path, tmp_path: Path) -> None:
    """The README is not hashed by the manifest; unpacking it checks its CRC."""
    content = packed.read_bytes()
    random = np.random.default_rng(0)
    headers = [*range(40), *range(first_entry(content), len(content))]
    places = [*random.choice(headers, 60), *random.choice(len(content), 60)]
    for place in map(int, places):
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        (tmp_path / "bad.adar").write_bytes(changed)
        with pytest.raises(AdarError):
            unpack_bundle(tmp_path / "bad.adar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_the_manifest_does_not_name(packed: Path, tmp_path: Path) -> None:
    files = members(packed)
    (tmp_path / "more.adar").write_bytes(pack.encode(files | {"extra.onnx": b"?"}))
    with pytest.raises(BundleError, match=r"extra\.onnx, which its manifest does not name"):
        unpack_bundle(tmp_path / "more.adar", tmp_path / "out")
    without = {name: content for name, content in files.items() if name != "cell.onnx"}
    (tmp_path / "less.adar").write_bytes(pack.encode(without))
    with pytest.raises(BundleError, match=r"the pack has no cell\.onnx"):
        read_bundle(tmp_path / "less.adar")


def test_a_large_card_is_not_unpacked(packed: Path, tmp_path: Path) -> None:
    files = members(packed) | {"README.md": bytes(pack.MAX_OTHER_BYTES + 1)}
    (tmp_path / "large.adar").write_bytes(pack.encode(files))
    with pytest.raises(BundleError, match="at most"):
        unpack_bundle(tmp_path / "large.adar", tmp_path / "out")


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"x = 1\n" * 20, bytes(100)])
def test_other_files_are_not_packs(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "graph.npz").write_bytes(content)
    with pytest.raises(BundleError, match="not a packed bundle"):
        load(tmp_path / "graph.npz")


def test_a_damaged_bundle_is_not_packed(bundle_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    edit(bundle, lambda fields: fields.update(hidden=5), seal=False)
    with pytest.raises(BundleError, match="changed after it was exported"):
        pack_bundle(bundle, tmp_path / "bad.adar")
    assert not (tmp_path / "bad.adar").exists()


def with_hole(whole: bytes, count: int, name: str, size: int, path: Path) -> Path:
    """A pack with one more file, the last of `count`, that is a hole."""
    *_, start, _ = pack.END.unpack(whole[-pack.END.size :])
    extra = pack.Member(name, start + pack.LOCAL.size + len(name), size, 1)
    entries = whole[start : -pack.END.size] + extra.entry()
    with path.open("wb") as file:
        file.write(whole[:start] + extra.local_header())
        file.seek(size, 1)
        file.write(entries + pack._end(count, len(entries), extra.start + size))
    return path


def test_a_large_file_that_the_manifest_does_not_name_is_not_read(packed: Path, tmp_path: Path) -> None:
    """The file is sparse: it takes 1 GB only where somebody reads it."""
    files = members(packed)
    path = with_hole(pack.encode(files), len(files) + 1, "extra.onnx", 2**30, tmp_path / "sparse.adar")
    tracemalloc.start()
    with pytest.raises(BundleError, match=r"extra\.onnx, which its manifest does not name"):
        unpack_bundle(path, tmp_path / "out")
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()


def test_a_pack_that_is_almost_nothing_but_a_hole_is_not_read(packed: Path, tmp_path: Path) -> None:
    """A manifest that claims 2 GB for a model: `inspect` took 2.1 GB and seconds for a pack of 180 kB."""
    files, size, name = members(packed), 2**30, "z.onnx"
    manifest = json.loads(files.pop("manifest.json"))
    manifest["graphs"]["encoder"] |= {"file": name, "bytes": size}
    manifest["checksum"] = checksum_of(manifest)
    files |= {"manifest.json": json.dumps(manifest).encode()}
    path = with_hole(pack.encode(files), len(files) + 1, name, size, tmp_path / "sparse.adar")
    with pytest.raises(BundleError, match=r"z\.onnx: there are .* bytes to read"):
        unpack_bundle(path, tmp_path / "out")


def test_a_folder_with_the_manifest_of_another_program_is_kept(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "manifest.json").write_text('{"name": "a web page"}')
    (tmp_path / "page" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"no manifest\.json of adar-deploy"):
        unpack_bundle(packed, tmp_path / "page", overwrite=True)
    assert (tmp_path / "page" / "letter.txt").read_text() == "dear"


def test_a_pack_that_changes_after_its_check_is_not_unpacked(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "race.adar"
    path.write_bytes(packed.read_bytes())
    read = pack.read_members

    def replaced(path: Path, known: Collection[str]) -> dict[str, bytes]:
        path.write_bytes(pack.encode(members(packed) | {"cell.onnx": b"other"}))
        return read(path, known)

    monkeypatch.setattr(pack, "read_members", replaced)
    with pytest.raises(BundleError, match="was replaced while it was read"):
        unpack_bundle(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_in_place_of_a_signature_is_one_line(bundle_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    (bundle / "model.sig").mkdir()
    with pytest.raises(BundleError, match=r"model\.sig is a folder"):
        pack_bundle(bundle, tmp_path / "out.adar")


def test_two_packs_into_one_folder_at_once(
    bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commands succeeded, and the last one replaced the bundle of the other without a word."""
    pack_bundle(bundle_folder, tmp_path / "b.adar")
    decode = pack.read_members

    def slow(path: Path, known: set[str]) -> dict[str, bytes]:
        monkeypatch.setattr(pack, "read_members", decode)
        unpack_bundle(tmp_path / "b.adar", tmp_path / "out")  # the other command
        return decode(path, known)

    monkeypatch.setattr(pack, "read_members", slow)
    with pytest.raises(UsageError, match="contains a bundle"):
        unpack_bundle(tmp_path / "b.adar", tmp_path / "out")
