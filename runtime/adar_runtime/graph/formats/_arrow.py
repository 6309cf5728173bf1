"""Tables that pyarrow reads: Parquet, and large text tables."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import GraphError, MissingExtraError, reason
from adar_runtime.graph import Integers
from adar_runtime.graph.formats._columns import Codes, Column, Numbers, as_word, codes_of, parse_numbers
from adar_runtime.graph.formats._parquet_check import check_parquet
from adar_runtime.graph.formats._rows import check_quotes
from adar_runtime.graph.limits import ByteBudget

MAX_COLUMNS = 10_000  # of a text table that pyarrow reads: every column has a cost per block
BLOCK_BYTES = 2**24  # of a text table that is parsed at once
ENCODED_BYTES = 48  # a value while pyarrow looks for the different ones
WORD_BYTES = 200  # a different value as a Python string, in lists and a dictionary
TEXT_BYTES = 24  # per byte of a text table: its cells, their positions, and the different words


class ArrowColumn:
    """A column of pyarrow. The different values are converted once, whatever the number of rows.

    `budget` counts the different values as words; None if they were counted before.
    """

    def __init__(self, values: Any, budget: ByteBudget | None = None) -> None:
        self._values, self._budget = values, budget

    def words(self) -> list[str]:
        """The values as text."""
        found = np.empty(len(self.codes.words) + 1, object)
        found[:-1], found[-1] = self.codes.words, ""
        return list(found[self.codes.codes])

    @cached_property
    def numbers(self) -> Numbers | None:
        """The values as numbers. NaN is a missing value, as pandas writes it."""
        import pyarrow

        kind = self._values.type
        if pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind):
            values = self._values.cast(pyarrow.float64(), safe=False).to_numpy()
            return Numbers(values, np.isnan(values))
        codes, words = self.codes
        if pyarrow.types.is_boolean(kind):
            words = ["1" if word == "True" else "0" for word in words]
        found = parse_numbers(words)
        if found is None:
            return None
        return Numbers(np.append(found, np.nan)[codes], codes < 0)

    @cached_property
    def codes(self) -> Codes:
        """The values by their different words."""
        import pyarrow

        values = self._values
        if pyarrow.types.is_dictionary(values.type):
            whole = values.unify_dictionaries().combine_chunks()
        else:
            if self._budget is not None:
                self._budget.reserve("values", len(values), ENCODED_BYTES)
            whole = values.dictionary_encode().unify_dictionaries().combine_chunks()
        if isinstance(whole, pyarrow.ChunkedArray):  # a table without rows has no chunks
            return Codes(np.zeros(0, np.int64), [])
        if self._budget is not None:
            self._budget.reserve("different values", len(whole.dictionary), WORD_BYTES)
        different = codes_of(
            [as_word(None if value != value else value) for value in whole.dictionary.to_pylist()]
        )
        position: Integers = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Codes(np.append(different.codes, -1)[position], different.words)


def read_parquet(path: Path) -> tuple[dict[str, Column], int, list[str]]:
    """The columns by name, the number of rows, and the names of columns that hold no plain values."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("reading .parquet", "parquet") from error
    budget = ByteBudget(path.stat().st_size)
    check_parquet(path, budget)
    try:
        metadata = pyarrow.parquet.read_metadata(path)
        # Kept as codes: a file can repeat one long text any number of times.
        texts = [
            one.path
            for one in map(metadata.schema.column, range(metadata.num_columns))
            if one.physical_type == "BYTE_ARRAY" and not one.max_repetition_level
        ]
        with pyarrow.parquet.ParquetFile(path, metadata=metadata, read_dictionary=texts) as file:
            plain = [field.name for field in file.schema_arrow if _is_plain(pyarrow.types, field.type)]
            others = [name for name in file.schema_arrow.names if name not in plain]
            table = file.read(columns=plain)
    except (pyarrow.ArrowException, OSError, ValueError, TypeError) as error:
        raise GraphError(f"not a readable .parquet file ({reason(error)})") from error
    return {name: ArrowColumn(table.column(name), budget) for name in plain}, table.num_rows, others


def _is_plain(types: Any, kind: Any) -> bool:
    """Whether a column holds numbers, texts or times. Texts of any other kind than codes would be copied."""
    if types.is_dictionary(kind):
        return bool(types.is_string(kind.value_type) or types.is_large_string(kind.value_type))
    checks = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
    return types.is_null(kind) or any(check(kind) for check in checks)


def read_text(path: Path, separator: str, header: list[str]) -> dict[str, Column] | None:
    """The columns of a text table that begins with this header; None if pyarrow cannot read it."""
    try:
        import pyarrow
        import pyarrow.csv as text
    except ImportError:
        return None
    ByteBudget(path.stat().st_size).reserve("cells", path.stat().st_size, TEXT_BYTES)
    names = [str(number) for number in range(len(header))]
    try:
        table = text.read_csv(
            path,
            read_options=text.ReadOptions(block_size=BLOCK_BYTES, skip_rows=1, column_names=names),
            parse_options=text.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=text.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False
            ),
        )
        check_quotes(path, separator, table.num_rows)
    except (pyarrow.ArrowException, OSError, ValueError, GraphError):
        return None
    columns = [ArrowColumn(table.column(name)) for name in names]
    return dict(zip(header, columns, strict=True))
