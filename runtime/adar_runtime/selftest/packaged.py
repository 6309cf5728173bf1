"""The bundles in this package: one small model at every level. `make selftest-bundle` writes them."""

import lzma
from io import BytesIO
from pathlib import Path
from tarfile import TarFile

FILE = Path(__file__).with_name("bundles.tar.xz")


def contents() -> dict[str, bytes]:
    """The files of all bundles, by path."""
    with TarFile(fileobj=BytesIO(lzma.decompress(FILE.read_bytes()))) as archive:
        found = {entry.name: archive.extractfile(entry) for entry in archive}
        return {name: file.read() for name, file in found.items() if file is not None}


def unpack(folder: Path) -> dict[str, Path]:
    """Write the bundles to a folder; return them by name, such as "node fp32"."""
    for name, content in contents().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return {path.name.replace("-", " "): path for path in sorted(folder.iterdir())}
