"""Tables that are read in blocks: columns of node ids, and columns of numbers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adar_runtime.errors import GraphError, MissingExtraError, UsageError, reason, short
from adar_runtime.graph.formats._arrow import MAX_COLUMNS
from adar_runtime.graph.formats._parquet_check import check_parquet
from adar_runtime.graph.formats._rows import check_header, check_quotes
from adar_runtime.graph.formats._table_files import COMMENTS, PARQUET
from adar_runtime.graph.formats._tables import INTEGER
from adar_runtime.graph.limits import ByteBudget

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, PARQUET)
ROWS = 2**20  # rows that are read at once, at most
BLOCK_BYTES = 2**26  # numbers of a block of a Parquet file: with many columns, a block has fewer rows
TEXT_BYTES = 2**24  # of a text table that are read at once


class Chosen(NamedTuple):
    """The columns to read, by name."""

    ids: list[str]
    numbers: list[str]


class Block(NamedTuple):
    """Some rows of a table: the chosen columns, in their order."""

    ids: list[NDArray[Any]]
    """Whole numbers if all ids of the block are written as these are; else texts, as in the table."""
    numbers: list[NDArray[Any]]


def read_blocks(path: Path, choose: Callable[[list[str]], Chosen]) -> Iterator[Block]:
    """The rows of a table in blocks. `choose` takes the names of all columns; no other column is decoded."""
    if path.suffix not in TABLES:
        known = ", ".join(TABLES)
        raise UsageError(
            f"{path}: a table that is read in blocks ends in {known}; got {path.suffix or 'no suffix'}"
        )
    if not path.is_file():  # a pipe or a device may never end
        raise GraphError(f"{path}: there is no such file")
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("reading a table in blocks", "parquet") from error
    read = _parquet_blocks if path.suffix == PARQUET else _text_blocks
    try:
        yield from read(path, choose)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise GraphError(f"{path}: not a readable table ({reason(error)})") from error


def _parquet_blocks(path: Path, choose: Callable[[list[str]], Chosen]) -> Iterator[Block]:
    import pyarrow.parquet

    check_parquet(path, _BlockBudget(path.stat().st_size))
    with pyarrow.parquet.ParquetFile(path) as file:
        chosen = _checked(path, file.schema_arrow.names, choose)
        names = [*chosen.ids, *chosen.numbers]
        texts = _check_plain(path, [file.schema_arrow.field(name) for name in names])
    # Texts stay codes: a file can repeat one long text any number of times.
    with pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        rows = max(1, min(ROWS, BLOCK_BYTES // (8 * len(names))))
        for block in file.iter_batches(rows, columns=names):
            yield _block(path, chosen, chosen, block)


def _text_blocks(path: Path, choose: Callable[[list[str]], Chosen]) -> Iterator[Block]:
    import pyarrow.csv

    separator = SEPARATORS[path.suffix]
    with path.open("rb") as file:  # pyarrow takes about 20 kB for each column
        if file.readline(TEXT_BYTES).count(separator.encode()) >= MAX_COLUMNS:
            raise GraphError(
                f"{path}: a text table that is read in blocks has at most {MAX_COLUMNS:,} columns: save it "
                "as .parquet, or the features as .npy"
            )

    def opened(convert: Any = None) -> Any:
        return pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=TEXT_BYTES),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=convert,
        )

    with opened() as reader:
        schema = reader.schema
    found = list(schema.names)
    _refuse_comments(path, pyarrow.array(found[:1], pyarrow.string()))
    names = [name.strip() for name in found]
    chosen = _checked(path, names, choose)
    heading = dict(zip(names, found, strict=True))
    in_file = Chosen(*([heading[name] for name in part] for part in chosen))
    # The types are those of the first block, and later blocks may have fractions. Ids are texts: as numbers,
    # 007 would become the id 7. A number that begins with # or % is an error, so comments are texts.
    whole = [name for name in in_file.numbers if pyarrow.types.is_integer(schema.field(name).type)]
    texts = [*in_file.ids, *({found[0]} - {*in_file.numbers})]
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(whole, pyarrow.float64()) | dict.fromkeys(texts, pyarrow.string()),
        include_columns=[*dict.fromkeys([*texts, *in_file.numbers])],
    )
    rows = 0
    with opened(convert) as reader:
        _check_plain(path, list(reader.schema))
        for block in reader:
            _refuse_comments(path, block.column(found[0]))
            rows += block.num_rows
            yield _block(path, chosen, in_file, block)
    try:
        check_quotes(path, separator, rows)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


def _refuse_comments(path: Path, first: Any) -> None:
    """Refuse lines that other tables skip. Here, they would be rows."""
    import pyarrow
    from pyarrow import compute

    if not pyarrow.types.is_string(first.type):
        return
    for mark in COMMENTS:
        if compute.any(compute.starts_with(first, mark)).as_py():
            raise GraphError(
                f"{path}: a line begins with {mark}, like a comment: a table that is read in blocks has no "
                "comments; remove the line or, if it has an id that begins so, save the table as .parquet"
            )


def _block(path: Path, chosen: Chosen, in_file: Chosen, block: Any) -> Block:
    ids, numbers = (
        [convert(path, name, block.column(column)) for name, column in zip(names, columns, strict=True)]
        for convert, names, columns in zip((_ids, _values), chosen, in_file, strict=True)
    )
    return Block(ids, numbers)


class _BlockBudget(ByteBudget):
    """The memory of a file that is read in blocks: every page counts alone, rows do not."""

    def reserve(self, name: str, count: int, item_bytes: int) -> None:
        self._used = 0
        if name == "pages":
            super().reserve(name, count, item_bytes)


def _checked(path: Path, names: list[str], choose: Callable[[list[str]], Chosen]) -> Chosen:
    """The columns to read, which the table has once each."""
    try:
        check_header(names, 1)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error
    if not names:
        raise GraphError(f"{path}: the table has no columns")
    chosen, known = choose(names), set(names)
    missing = next((name for part in chosen for name in part if name not in known), None)
    if missing is not None:
        raise UsageError(f"{path}: column {short(missing)!r} not found")
    return chosen


def _check_plain(path: Path, fields: Sequence[Any]) -> list[str]:
    """Refuse columns of anything but numbers and texts. Returns the names of those with texts."""
    import pyarrow

    kinds, found = pyarrow.types, list[str]()
    for field in fields:
        kind = field.type.value_type if kinds.is_dictionary(field.type) else field.type
        numbers = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
        texts = kinds.is_string(kind) or kinds.is_large_string(kind)
        found += [field.name] if texts else []
        if not (numbers or texts or kinds.is_null(kind)):
            hint = ": save the table as UTF-8" if kinds.is_binary(kind) else ""
            raise GraphError(
                f"{path}: column {short(field.name)!r} holds {short(kind)}, not numbers or text{hint}"
            )
    return found


def _ids(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of node ids, as in `Block`. Blanks around a text do not count, as in other tables."""
    import pyarrow
    from pyarrow import compute

    if pyarrow.types.is_primitive(column.type):
        return _values(path, name, column)
    codes = column if pyarrow.types.is_dictionary(column.type) else column.dictionary_encode()
    words = compute.utf8_trim_whitespace(codes.dictionary)
    whole = compute.match_substring_regex(words, f"^({INTEGER.pattern})$")
    if compute.all(whole).as_py() and not codes.null_count:
        with suppress(pyarrow.ArrowInvalid):  # beyond 64 bits
            numbers = words.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)
            return np.asarray(numbers[codes.indices.to_numpy(zero_copy_only=False)])
    return _values(path, name, pyarrow.DictionaryArray.from_arrays(codes.indices, words))


def _values(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of a block as an array. numpy pads every text to the longest one: that is counted first."""
    import pyarrow

    is_coded = pyarrow.types.is_dictionary(column.type)
    codes = column if is_coded or pyarrow.types.is_primitive(column.type) else column.dictionary_encode()
    words = codes.dictionary.to_pylist() if codes is not column or is_coded else []
    if column.null_count or None in words:
        raise GraphError(f"{path}: column {short(name)!r} has an empty cell")
    if not words:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    longest = max(len(str(word)) for word in words)
    count = len(column) + len(words)
    ByteBudget(path.stat().st_size).reserve(f"{path}: column {short(name)!r}", count, 4 * longest)
    return np.array(words)[codes.indices.to_numpy(zero_copy_only=False)]
