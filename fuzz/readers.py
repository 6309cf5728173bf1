"""Fuzz every reader of files from outside: graph files, manifests, ONNX models. Needs atheris.

    python fuzz/readers.py build/fuzz fuzz/corpus -max_total_time=600

The first byte of an input selects the reader of the other bytes. An AdarError is a correct result. Any other
exception, ten seconds without a result, or a gigabyte of memory is a bug, and libFuzzer saves the input.
"""

import io
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["adar_runtime", "zipfile", "numpy.lib", "json"]):
    import numpy as np

    from adar_runtime import read_graph
    from adar_runtime.bundle import onnx_guard
    from adar_runtime.bundle.manifest import Manifest
    from adar_runtime.bundle.onnx_facts import facts_of
    from adar_runtime.errors import AdarError
    from adar_runtime.graph import Graph
    from adar_runtime.graph.formats import read_graphs

KEYS = (
    "x",
    "edge_index",
    "y",
    "test_mask",
    "target_x",
    "class_names",
    "pairs",
    "level",
    "ids",
    "feature_encoding",
    "edge_weight",
    "x_indptr",
    "x_shape",
)
LIMITS = ["-rss_limit_mb=1024", "-timeout=10", "-max_len=16384", "-print_final_stats=1"]


class Readers:
    """One method per reader. A graph or manifest that a reader accepts is checked again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: tuple[Callable[[bytes], None], ...] = (
            self.npz,
            self.npz_of_members,
            self.pt,
            self.pt_of_pickle,
            self.manifest,
            self.onnx,
        )

    def __call__(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._readers[data[0] % len(self._readers)](data[1:])
        except AdarError as error:
            assert len(str(error)) < 2000, "an error message is one line, not a page"

    def npz(self, data: bytes) -> None:
        self._graph("g.npz", data)

    def npz_of_members(self, data: bytes) -> None:
        """The bytes as arrays of a valid archive, so that checksums do not reject every mutation."""
        provider = atheris.FuzzedDataProvider(data)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for key in KEYS:
                if provider.ConsumeBool():
                    length = provider.ConsumeIntInRange(0, 512)
                    archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00" + provider.ConsumeBytes(length))
        self._graph("g.npz", buffer.getvalue())

    def pt(self, data: bytes) -> None:
        self._graph("g.pt", data)

    def pt_of_pickle(self, data: bytes) -> None:
        """The bytes as the pickle of a valid archive, with two storages of 64 bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in {"data.pkl": data, "data/0": bytes(64), "data/1": bytes(64)}.items():
                archive.writestr(f"g/{name}", content)
        for graph in read_graphs(self._file("g.pt", buffer.getvalue())):
            _check_again(graph)

    def manifest(self, data: bytes) -> None:
        manifest = Manifest.from_json(data.decode("utf-8", errors="replace"))
        for sealed in (manifest, replace(manifest, sealed=True)):
            assert Manifest.from_json(sealed.to_json()) == sealed

    def onnx(self, data: bytes) -> None:
        onnx_guard.check("cell.onnx", data)
        facts_of(data)

    def _graph(self, name: str, data: bytes) -> None:
        _check_again(read_graph(self._file(name, data)))

    def _file(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path


def _check_again(graph: Graph) -> None:
    """Check the guarantees of a Graph."""
    assert graph.nodes > 0
    assert np.isfinite(graph.rows(0, graph.nodes)).all()
    assert not graph.edges or 0 <= graph.edge_index.min() <= graph.edge_index.max() < graph.nodes


def main() -> None:
    """Fuzz until libFuzzer's options end the run."""
    with TemporaryDirectory(
        prefix="adar-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        atheris.Setup([*sys.argv, *LIMITS], Readers(Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
