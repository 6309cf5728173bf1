"""Hostile Parquet files: refused within 2 s of processor time and 500 MB, before pyarrow reads them."""

import json
import random
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from adar_runtime.errors import AdarWarning, GraphError
from adar_runtime.graph.formats import read_graphs, read_tables
from adar_runtime.graph.formats._thrift import ThriftReader
from tests.attacks import measured
from tests.attacks.test_command_line import MEGABYTES, SECONDS

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def zeros(path: Path) -> None:
    """Compressed numbers: 10 million rows in a few kilobytes."""
    rows = pyarrow.array([0]).take(pyarrow.array([0] * 1_000_000))
    table = pyarrow.table({"id": pyarrow.chunked_array([rows] * 10)})
    parquet.write_table(table, path, compression="zstd", row_group_size=20_000_000)


def long_texts(path: Path) -> None:
    """Different long texts of one letter, without a dictionary."""
    texts = ["x" * (2_000_000 + number) for number in range(10)]
    parquet.write_table(pyarrow.table({"id": texts}), path, compression="zstd", use_dictionary=False)


def repeated_text(path: Path) -> None:
    """One text of 1 MB in a dictionary, for 200,000 rows: 200 GB as texts."""
    codes = pyarrow.array([0] * 200_000, pyarrow.int32())
    column = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["x" * 1_000_000]))
    parquet.write_table(pyarrow.table({"id": range(200_000), "t": column}), path, compression="zstd")


def prefixes(path: Path) -> None:
    """Each text repeats the one before: the encoding stores one letter per row."""
    texts = ["x" * number for number in range(20_000)]
    encoding = {"id": "DELTA_BYTE_ARRAY"}
    parquet.write_table(
        pyarrow.table({"id": texts}), path, compression="zstd", use_dictionary=False, column_encoding=encoding
    )


def different_ids(path: Path) -> None:
    """3 million ids in 14 kB: the encoding stores only that each is one more than the one before."""
    column = pyarrow.array(range(3_000_000), pyarrow.int32())
    encoding = {"id": "DELTA_BINARY_PACKED"}
    parquet.write_table(
        pyarrow.table({"id": column}),
        path,
        compression="zstd",
        use_dictionary=False,
        column_encoding=encoding,
    )


def with_footer(path: Path, footer: bytes) -> None:
    path.write_bytes(b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1")


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def deep_schema(path: Path) -> None:
    """100,000 columns, each inside the one before: pyarrow would follow them by recursion."""
    element = b"\x35\x00\x18\x01a\x15\x02\x00"  # repetition, name "a", one child
    count = 100_000
    footer = b"\x15\x02\x19\xfc" + varint(count) + element * count + b"\x16\x00\x19\x0c\x00"
    with_footer(path, footer)


def many_groups(path: Path) -> None:
    """300,000 empty groups of rows."""
    count = 300_000
    schema = b"\x19\x2c\x48\x01r\x15\x02\x00\x15\x02\x25\x00\x18\x01a\x00"
    with_footer(
        path, b"\x15\x02" + schema + b"\x16\x00\x19\xfc" + varint(count) + b"\x19\x0c\x00" * count + b"\x00"
    )


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "zeros": (zeros, "would unpack"),
    "deep schema": (deep_schema, "more than 10,000 columns"),
    "many groups": (many_groups, "its header has too many values"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_takes_little(name: str, tmp_path: Path) -> None:
    make, message = FILES[name]
    make(tmp_path / "g.parquet")
    assert (tmp_path / "g.parquet").stat().st_size < 2 * 2**20
    (tmp_path / "e.csv").write_text("source,target\n0,0\n")
    report = tmp_path / "report.json"
    words = ("data", "convert", "g.parquet", "o.npz", "--edges", "e.csv")
    command = [sys.executable, measured.__file__, str(report), "", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    facts = json.loads(report.read_text())
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert facts["seconds"] < SECONDS, facts
    assert facts["megabytes"] < MEGABYTES, facts


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (long_texts, "would unpack"),
        (prefixes, "DELTA_BYTE_ARRAY"),
        (different_ids, "with (different )?values"),
    ],
)
def test_texts_are_counted_before_they_are_read(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("source,target\n0,0\n")
    with pytest.raises(GraphError, match=message):
        read_tables(tmp_path / "n.parquet", tmp_path / "e.csv")


def test_a_repeated_text_is_kept_as_a_code(tmp_path: Path) -> None:
    """It is read: one text and a number per row."""
    repeated_text(tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    graph = read_tables(tmp_path / "n.parquet", tmp_path / "e.csv").graph
    assert (graph.nodes, graph.width) == (200_000, 1)


def test_a_nested_schema_is_refused(tmp_path: Path) -> None:
    element = b"\x35\x00\x18\x01a\x15\x02\x00"
    with_footer(
        tmp_path / "n.parquet", b"\x15\x02\x19\xfc" + varint(50) + element * 50 + b"\x16\x00\x19\x0c\x00"
    )
    (tmp_path / "e.csv").write_text("source,target\n0,1\n")
    with pytest.raises(GraphError, match="columns are nested too deeply"):
        read_tables(tmp_path / "n.parquet", tmp_path / "e.csv")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1c" * 100,  # nested
        b"\x19\xfc\xff\xff\xff\x0f",  # a list that is longer than the data
        b"\x16" + b"\xff" * 20,  # an integer without an end
        b"\x1d\x00",  # an unknown type
        b"\x15\x02\x05\x02\x02",  # a field twice
        b"\x18\x7f",  # a text that is longer than the data
    ],
)
def test_damaged_headers_are_errors(data: bytes) -> None:
    with pytest.raises(ValueError, match="its header"):
        ThriftReader(data).struct()


def test_damaged_files_are_errors(tmp_path: Path, stride: int) -> None:
    """Any byte of the file may be wrong; what pyarrow still reads is a valid graph."""
    table = pyarrow.table({"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0], "w": ["u", "v", "u"]})
    parquet.write_table(table, tmp_path / "n.parquet")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    content, draw = (tmp_path / "n.parquet").read_bytes(), random.Random(0)
    for position in range(0, len(content), stride):
        damaged = bytearray(content)
        damaged[position] ^= draw.randrange(1, 256)
        (tmp_path / "n.parquet").write_bytes(damaged)
        with suppress(GraphError):
            assert read_tables(tmp_path / "n.parquet", tmp_path / "e.csv").graph.nodes == 3
    for size in range(0, len(content), stride):
        (tmp_path / "n.parquet").write_bytes(content[:size])
        with pytest.raises(GraphError, match=r"n\.parquet"):
            read_tables(tmp_path / "n.parquet", tmp_path / "e.csv")


def test_columns_of_a_table_of_graphs_that_are_not_read_are_a_warning(tmp_path: Path) -> None:
    """Weights and masks in such a table were left out without a word."""
    columns = {"x": [[[1.0], [2.0]]], "source": [[0]], "target": [[1]], "y": [0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "plain.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(read_graphs(tmp_path / "plain.parquet")) == 1
    more = columns | {"edge_weight": [[0.5]], "train_mask": [True]}
    parquet.write_table(pyarrow.table(more), tmp_path / "more.parquet")
    with pytest.warns(AdarWarning, match="not used: edge_weight, train_mask"):
        assert len(read_graphs(tmp_path / "more.parquet")) == 1
