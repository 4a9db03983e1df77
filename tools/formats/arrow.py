"""Parquet and Arrow IPC, by pyarrow. The table's description is JSON in the schema's metadata.

Of_arrow also chooses the columns of a CSV, so that all three formats choose in one way.
A column with a width is a list column of fixed size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvemb.tools.destinations import is_compressed
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import (
    KEY,
    VALUE,
    Batch,
    Column,
    PathOrFile,
    Read,
    SourceOptions,
    Table,
    check_width,
    parse_metadata,
    slices,
)

METADATA_KEY = b"kvemb"
# Rows of a row group, the smallest unit that a reader of a key range has to read.
GROUP_ROWS = 131_072
READ_ROWS = 32_768
# A file of kvemb.tools.export_parts.
_PART = re.compile(r"part-\d{5,}-of-(\d{5,})\.parquet")


def _type(column: Column) -> pa.DataType:
    number = pa.string() if column.dtype == object else pa.from_numpy_dtype(column.dtype)
    return number if column.width is None else pa.list_(number, column.width)


def _schema(table: Table) -> pa.Schema:
    fields = [pa.field(column.name, _type(column), nullable=False) for column in table.columns]
    return pa.schema(fields, {METADATA_KEY: json.dumps(table.metadata).encode()} if table.metadata else None)


def _record_batch(batch: Batch, table: Table, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for column in table.columns:
        flat = pa.array(np.ascontiguousarray(batch[column.name]).reshape(-1))
        arrays.append(flat if column.width is None else pa.FixedSizeListArray.from_arrays(flat, type=_type(column)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_parquet(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write row groups of GROUP_ROWS, with statistics of every column that is not a list, and checksums."""
    schema = _schema(table)
    plain = [column.name for column in table.columns if column.width is None]
    # Dictionary encoding would merge NaNs with different bits.
    how: dict[str, Any] = {"use_dictionary": False, "write_statistics": plain, "write_page_checksum": True}
    with pq.ParquetWriter(target, schema, **how) as writer:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(_record_batch(batch, table, schema))
            if sum(map(len, waiting)) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=GROUP_ROWS)
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=GROUP_ROWS)


def write_arrow(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write an Arrow IPC file; to a pipe, an Arrow IPC stream."""
    schema = _schema(table)
    begin = pa.ipc.new_file if isinstance(target, Path) else pa.ipc.new_stream
    with begin(target, schema) as writer:
        for batch in batches:
            writer.write_batch(_record_batch(batch, table, schema))


def read_parquet(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read a Parquet file of any origin, or a folder of them. Pages are checked against checksums that they have."""
    files = _files(source) if isinstance(source, Path) and source.is_dir() else [source]
    readers = []
    for file in files:
        with translated(file, "cannot be read"):
            # pre_buffer would read whole files into memory.
            readers.append(pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True))
        schema, found = readers[0].schema_arrow, readers[-1].schema_arrow
        if found.remove_metadata() != schema.remove_metadata():
            raise BadInput(
                f"{file} has the columns {found.names}, but {files[0]} has {schema.names}; "
                "all files must have the same columns"
            )

    def read(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        return (batch for reader in readers for batch in reader.iter_batches(READ_ROWS, columns=wanted))

    return of_arrow(source, schema, sum(reader.metadata.num_rows for reader in readers), read, given)


def _files(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder. Raises BadInput if there is none, or if a part of an export is missing."""
    hidden = ("_", ".")  # what Spark and Hadoop leave beside the data
    found = (file.relative_to(folder) for file in folder.rglob("*.parquet"))
    files = sorted(folder / file for file in found if not any(part.startswith(hidden) for part in file.parts))
    if not files:
        raise BadInput(f"{folder} has no .parquet file")
    there = set(files)
    parts = {(file.parent, int(part[1])) for file in files if (part := _PART.fullmatch(file.name))}
    for where, count in parts:
        names = (where / f"part-{part:05d}-of-{count:05d}.parquet" for part in range(count))
        if (missing := next((name for name in names if name not in there), None)) is not None:
            raise BadInput(f"{missing} is missing; copy all parts, or name one of them to import it alone")
    return files


def read_arrow(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read an Arrow IPC file or stream; of a compressed file, a stream."""
    buffer = source
    if isinstance(source, Path) and not is_compressed(source):
        buffer = pa.memory_map(str(source)) if source.stat().st_size else pa.BufferReader(b"")
        is_file = buffer.read(6) == b"ARROW1"
        buffer.seek(0)
        if is_file:
            with translated(source, "cannot be read"):
                file = pa.ipc.open_file(buffer)
            parts = (file.get_batch(at) for at in range(file.num_record_batches))
            return _streamed(source, file.schema, parts, given)
    elif isinstance(source, Path):
        buffer = pa.input_stream(str(source), compression="detect")
    with translated(source, "cannot be read"):
        stream = pa.ipc.open_stream(buffer)
    return _streamed(source, stream.schema, iter(stream), given)


def _streamed(
    source: PathOrFile, schema: pa.Schema, batches: Iterator[pa.RecordBatch], given: SourceOptions
) -> tuple[Table, Read]:
    """Read batches that come once; the first is kept until it is read again with the others."""
    with translated(source, "is damaged"):
        first = [batch for batch in [next(batches, None)] if batch is not None]

    def read(wanted: list[str]) -> Iterator[pa.RecordBatch]:
        return (batch.select([schema.get_field_index(name) for name in wanted]) for batch in chain(first, batches))

    return of_arrow(source, schema, None, read, given)


@contextmanager
def translated(source: object, what: str) -> Iterator[None]:
    """Within the block, raise pyarrow's errors as BadInput. what: what is wrong with the source then."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{source} {what}: {error}") from error


def of_arrow(
    source: object,
    schema: pa.Schema,
    rows: int | None,
    read: Callable[[list[str]], Iterator[pa.RecordBatch]],
    given: SourceOptions,
    *,
    typed: bool = True,
) -> tuple[Table, Read]:
    """Return the table of a schema. The key is a column of integers or words; the value one of lists, or several.

    Several columns NAME_0, NAME_1, ... are a list. read(names): yields batches with these columns; called for the first
    batch, too. typed: whether the types are known; without, any column may be anything.
    """
    metadata = parse_metadata((schema.metadata or {}).get(METADATA_KEY, b"{}"), source)
    kinds = {field.name: _plain(field.type) for field in schema}
    lists = _numbered([name for name in schema.names if _is_number(kinds[name])])
    _check_lists(source, given.value_column or VALUE, lists, schema.names)
    fits = _is_word if given.words else pa.types.is_integer
    key = given.key_column or _guess(source, schema, KEY, [name for name in kinds if typed and fits(kinds[name])])
    several = [name for name, parts in lists.items() if len(parts) > 1 and key not in parts]
    several += [name for name in kinds if _is_list(kinds[name])]
    value = given.value_column or (VALUE if VALUE in lists else _guess(source, schema, VALUE, several))
    for what, name in ((KEY, key), (VALUE, value)):
        if name not in schema.names and (what == KEY or name not in lists):
            raise _lacking(source, schema, what, name)
    # Columns besides these two are kvemb's own, which a CSV does not tell of itself.
    beside = [] if typed and not metadata else [name for name in (*lists, *schema.names) if name not in (key, value)]
    columns = {KEY: [key], VALUE: lists.get(value, [value])}
    columns |= {name: lists.get(name, [name]) for name in beside if name not in columns}
    _check_once([key, *columns[VALUE], *(beside if metadata else [])], schema.names, source)
    if typed and not (_is_word(kinds[key]) or pa.types.is_integer(kinds[key])):
        raise BadInput(f"column {key!r} of {source} must hold integers or words, got {schema.field(key).type}")
    if not (_is_list(kinds[columns[VALUE][0]]) or _is_number(kinds[columns[VALUE][0]])):
        raise BadInput(
            f"column {value!r} of {source} must hold lists of numbers, got {schema.field(value).type}; make lists of "
            "Spark's vectors with vector_to_array"
        )

    widths: dict[str, int | None] = {}

    def joined(arrays: list[Any], what: str) -> Any:
        return arrays[0] if widths[what] is None or arrays[0].ndim == 2 else np.stack(arrays, axis=1)

    def batches(wanted: Collection[str]) -> Iterator[Batch]:
        names = [name for what in wanted for name in columns[what]]
        at = 0
        with translated(source, "is damaged"):
            for part in read(names):
                part.validate(full=True)  # before use: offsets and lengths in a foreign file may point anywhere
                arrays = dict(zip(part.schema.names, part.columns, strict=True))
                for rows in slices(len(part), part.nbytes // max(1, len(part)), READ_ROWS):
                    found = {name: numbers_of(array[rows], name, source, at) for name, array in arrays.items()}
                    yield {what: joined([found[name] for name in columns[what]], what) for what in wanted}
                    at += rows.stop - rows.start

    described = []
    for what, parts in columns.items():
        kind, width = kinds[parts[0]], None
        if _is_list(kind):
            width = check_width(kind.list_size, source) if pa.types.is_fixed_size_list(kind) else 0
            with translated(source, "is damaged"):
                first = None if width else next(read(parts), None)
                if first is not None:
                    first.validate(full=True)
            if first is not None:
                width = numbers_of(first.column(0), parts[0], source).shape[1]
            kind = kind.value_type
        elif what == VALUE or parts != [what]:
            width = len(parts) if what != KEY else None
        number = _is_number(kind)
        widths[what] = width
        described.append(Column(what, np.dtype(kind.to_pandas_dtype() if number else object), width))
    return Table(described, rows, metadata), batches


def _numbered(names: list[str]) -> dict[str, list[str]]:
    """Return the columns STEM_0, STEM_1, ... by their stem, in the order of their numbers, if none is missing."""
    lists: dict[str, dict[int, str]] = {}
    for name in names:
        stem, _, number = name.rpartition("_")
        if number.isdecimal() and len(number) < 20 and number == str(int(number)):
            lists.setdefault(stem, {})[int(number)] = name
    return {
        stem: [parts[at] for at in range(len(parts))]
        for stem, parts in lists.items()
        if stem not in names and all(at in parts for at in range(len(parts)))
    }


def _check_lists(source: object, value: str, lists: dict[str, list[str]], names: list[str]) -> None:
    """Raise BadInput if the columns of the value have gaps, or can be read in several ways."""
    numbered = re.compile(rf"{re.escape(value)}_(0|[1-9][0-9]*)")
    if value not in lists and (name := next(filter(numbered.fullmatch, names), None)) is not None:
        missing = next(at for at in range(len(names) + 1) if f"{value}_{at}" not in names)
        wrong = f"and {value!r} too" if value in names else f"but no '{value}_{missing}'"
        raise BadInput(f"{source} has the column {name!r} {wrong}; number a list's columns from 0 without gaps")


def _guess(source: object, schema: pa.Schema, what: str, found: list[str]) -> str:
    """Return the column of what if there is one, otherwise the only one that it can be. Raises WrongUsage."""
    if what in schema.names:
        return what
    if len(found) != 1:
        raise _lacking(source, schema, what, what, found)
    return found[0]


def _lacking(source: object, schema: pa.Schema, what: str, name: str, found: list[str] | None = None) -> BadInput:
    there = ", ".join(schema.names)
    there = there if len(there) < 200 else f"{there[:200]}..."
    may = f"; it may be {' or '.join(found[:5])}" if found else ""
    return (WrongUsage if found else BadInput)(
        f"{source} has no column {name!r} for the {what}{may}: name one of its columns with --{what}-column, it has "
        f"{there or 'none'}"
    )


def _check_once(wanted: list[str], names: list[str], source: object) -> None:
    """Raise BadInput if a wanted column occurs twice, which is ambiguous."""
    counts = Counter(names)
    if doubled := [name for name in wanted if counts[name] > 1]:
        raise BadInput(f"{source} has the column {doubled[0]!r} twice; rename one, or leave it out")


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column without tensors, dictionaries and views: that of what they stand for."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_type)
    return kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _is_word(kind: pa.DataType) -> bool:
    words = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_a(kind) for is_a in words)


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_a(kind) for is_a in lists) and _is_number(kind.value_type)


def numbers_of(array: pa.Array, name: str, source: object, at: int = 0) -> Any:
    """Return a column's numbers, (n,) or (n, width), or its words as an Arrow array. at: its first row's number."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count:
        row = at + int(np.argmax(np.asarray(array.is_null())))
        raise BadInput(f"column {name!r} of {source} has no value in row {row:,}; fill or drop such rows")
    if _is_word(array.type):
        return array.cast(pa.large_string())
    if not _is_list(_plain(array.type)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(array.type):
        check_width(array.type.list_size, source)
    flat = array.flatten()
    if flat.null_count:
        raise BadInput(f"column {name!r} of {source} has lists with numbers missing; fill or drop them")
    numbers = np.asarray(flat.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(array.type):
        return numbers.reshape(len(array), array.type.list_size)
    lengths = np.asarray(pc.list_value_length(array))
    if len(lengths) and (lengths != lengths[0]).any():
        row = at + int(np.argmax(lengths != lengths[0]))
        raise BadInput(
            f"column {name!r} of {source} has lists of {lengths.min()} to {lengths.max()} numbers, the first other one "
            f"in row {row:,}; all must have the same length"
        )
    return numbers.reshape(len(array), check_width(int(lengths[0]), source) if len(lengths) else 0)
