"""Text of numbers, by pyarrow: CSV, and the rows of word2vec's text and of GloVe's, which have no header."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from kvemb.tools.destinations import next_line, resumed
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.arrow import of_arrow
from kvemb.tools.formats.columns import KEY, SCORE, STEP, Batch, Column, PathOrFile, Read, SourceOptions, Table

# Text has a column for each number of a row; each column takes some kilobytes of memory while the file is read.
MAX_COLUMNS = 16_384
MAX_HEAD_BYTES = 1 << 20
_CONVERSION = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): (?:invalid value '(.*)')?")
_COUNT = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")


def write_csv(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write a header and numbers; floats with enough digits to read them back exactly."""
    write_delimited(target, table, batches, ",", header=True)


def write_delimited(
    target: PathOrFile, table: Table, batches: Iterator[Batch], delimiter: str, *, header: bool
) -> None:
    """Write numbers as text; strings with quotes where these are needed, which needs a header."""
    names = [name for column in table.columns for name in _names(column)]
    kinds = {column.name: _in_text(column.dtype) for column in table.columns}
    kind_of = {name: pa.string() if dtype.kind == "O" else pa.from_numpy_dtype(dtype) for name, dtype in kinds.items()}
    types = [kind_of[column.name] for column in table.columns for _ in _names(column)]
    schema = pa.schema(list(zip(names, types, strict=True)))
    quoting = "needed" if header and table.key.dtype == object else "none"
    options = pacsv.WriteOptions(include_header=header, delimiter=delimiter, quoting_style=quoting)
    with pacsv.CSVWriter(target, schema, write_options=options) as writer:
        for batch in batches:
            arrays = []
            for column in table.columns:
                numbers = batch[column.name].astype(_in_text(column.dtype), copy=False)
                parts = [numbers] if column.width is None else np.ascontiguousarray(numbers.T)
                arrays += [pa.array(part) for part in parts]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _names(column: Column) -> list[str]:
    return [column.name] if column.width is None else [f"{column.name}_{at}" for at in range(column.width)]


def _in_text(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype == np.float16 else dtype


@dataclass(frozen=True)
class Text:
    """Lines of a file or a pipe, and how they are divided into columns. Blank lines are no rows.

    head: what was read of it already, with so many rows. odd: gets the number from 1, after the head, and the text of
    each row with another number of columns; None: such a row is an error.
    """

    source: PathOrFile
    head: bytes
    head_rows: int
    names: list[str]
    delimiter: str
    quoted: bool
    odd: Callable[[int, str], None] | None = None

    def batches(self, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of these names; others are not parsed. Raises BadInput, which names line and column."""

        def odd(row: Any) -> str:
            if self.odd is None:
                return "error"
            self.odd(row.number, row.text)
            return "skip"

        # On one thread, as only that counts the rows. A block holds at least a line.
        read = pacsv.ReadOptions(
            column_names=self.names, use_threads=False, block_size=max(1 << 20, 128 * len(self.names))
        )
        parse = pacsv.ParseOptions(
            delimiter=self.delimiter,
            quote_char='"' if self.quoted else False,
            newlines_in_values=self.quoted,
            invalid_row_handler=odd,
        )
        convert = pacsv.ConvertOptions(
            column_types=dict(types), include_columns=list(types), null_values=[], strings_can_be_null=False
        )
        with resumed(self.source, self.head) as file:
            try:
                yield from pacsv.open_csv(file, read, parse, convert)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                if "Empty CSV" not in str(error):
                    raise self._error(str(error)) from error

    def _error(self, told: str) -> BadInput:
        if found := _CONVERSION.search(told):
            name, place = self.names[int(found[1])], self.place(int(found[2]) - 1)
            if found[4] is None:
                return BadInput(f"{self.source} has bytes that are not UTF-8 in {place}; save it in UTF-8")
            kind = "an integer" if "int" in found[3] else "a number"
            wrong = f"{found[4]!r} is not {kind}" if found[4] else f"there is no {kind.split()[-1]}"
            return BadInput(f"{self.source}, {place}, column {name!r}: {wrong}; correct it, or leave the row out")
        if found := _COUNT.search(told):
            place = self.place(int(found[1]) - 1)
            return BadInput(f"{self.source}, {place}: it has {found[3]} columns, the first line has {found[2]}")
        if "straddling object" in told or "block_size" in told:
            return BadInput(f"{self.source} has a line of more than 1 MiB: it is damaged, or of another format")
        return BadInput(f"{self.source} is damaged: {told}")

    def place(self, row: int) -> str:
        """Say where a row is, by its number from 0 after the head: a file is read again to count its blank lines."""
        wanted = row + self.head_rows
        if isinstance(self.source, Path):
            rules: Any = {"quoting": csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE}
            with (
                resumed(self.source) as file,
                io.TextIOWrapper(cast(Any, file), "utf-8", "replace", newline="") as text,
            ):
                lines = csv.reader(text, delimiter=self.delimiter, **rules)
                try:
                    for number, _ in enumerate(filter(None, lines)):
                        if number == wanted:
                            return f"line {lines.line_num:,}"
                except csv.Error:
                    pass
        return f"row {wanted + 1:,}"


def read_csv(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read numbers as write_csv writes them: columns that end in _0, _1, ... form one list, in any order.

    A CSV does not contain dtypes: float32 values are assumed unless given, and keys are parsed when they are used.
    Columns that nobody asks for may hold anything. The delimiter is the one that the header has most: , tab ; or |.
    """
    head = next_line(source, MAX_HEAD_BYTES + 1)
    names, delimiter = _header(head, source)
    halves = ("float16", "bfloat16")  # pyarrow does not read these from text
    number = pa.from_numpy_dtype("float32" if given.value_dtype in (None, *halves) else given.value_dtype)
    types = {SCORE: pa.float64(), STEP: pa.int64(), given.key_column or KEY: pa.string()}
    schema = pa.schema([(name, types.get(name, number)) for name in names])
    text = Text(source, head, 1, names, delimiter, quoted=True)

    def read(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        return text.batches({name: schema.field(name).type for name in wanted})

    table, batches = of_arrow(source, schema, None, read, given, typed=False)
    table.place = text.place
    return table, batches


def _header(head: bytes, source: object) -> tuple[list[str], str]:
    """Return the column names in a CSV's first line, and the delimiter. Raises BadInput if there are too many."""
    advice = "import longer rows as parquet or npy"
    if len(head) > MAX_HEAD_BYTES:
        raise BadInput(f"{source} has a first line of more than {MAX_HEAD_BYTES:,} bytes; {advice}")
    text = head.decode("utf-8-sig", errors="replace")
    delimiter = max(",\t;|", key=text.count)
    try:
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter), [])]
    except csv.Error as error:
        raise BadInput(f"{source} has a first line that cannot be read: {error}") from error
    if len(names) > MAX_COLUMNS:
        raise BadInput(f"{source} has {len(names):,} columns, at most {MAX_COLUMNS:,} are allowed; {advice}")
    return names, delimiter
