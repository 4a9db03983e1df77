"""Parquet and Arrow IPC, by pyarrow. The table's description is JSON in the schema's metadata.

A column with a width is a list column of fixed size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import (
    KEY,
    VALUE,
    Batch,
    Column,
    PathOrFile,
    SourceOptions,
    Table,
    check_width,
    parse_metadata,
    renamed,
    slices,
)

METADATA_KEY = b"kvemb"
# Rows of a row group, the smallest unit that a reader of a key range has to read.
GROUP_ROWS = 131_072
READ_ROWS = 32_768
# A file of kvemb.tools.export_parts.
_PART = re.compile(r"part-\d{5,}-of-(\d{5,})\.parquet")


def _type(column: Column) -> pa.DataType:
    number = pa.from_numpy_dtype(column.dtype)
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


def read_parquet(source: PathOrFile, given: SourceOptions) -> tuple[Table, Iterator[Batch]]:
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
    rows = sum(reader.metadata.num_rows for reader in readers)
    batches = (batch for reader in readers for batch in reader.iter_batches(READ_ROWS))
    return _table(str(source), schema, rows, batches, given)


def _files(folder: Path) -> list[Path]:
    """Return the Parquet files in a folder. Raises BadInput if there is none, or if a part of an export is missing."""
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise BadInput(f"{folder} has no .parquet file")
    there = set(files)
    parts = {(file.parent, int(found[1])) for file in files if (found := _PART.fullmatch(file.name))}
    for where, count in parts:
        names = (where / f"part-{part:05d}-of-{count:05d}.parquet" for part in range(count))
        if (missing := next((name for name in names if name not in there), None)) is not None:
            raise BadInput(f"{missing} is missing; copy all parts, or name one of them to import it alone")
    return files


def read_arrow(source: PathOrFile, given: SourceOptions) -> tuple[Table, Iterator[Batch]]:
    """Read an Arrow IPC file or stream."""
    buffer = source
    if isinstance(source, Path):
        buffer = pa.memory_map(str(source)) if source.stat().st_size else pa.BufferReader(b"")
        is_file = buffer.read(6) == b"ARROW1"
        buffer.seek(0)
        if is_file:
            with translated(source, "cannot be read"):
                file = pa.ipc.open_file(buffer)
            parts = (file.get_batch(at) for at in range(file.num_record_batches))
            return _table(str(source), file.schema, None, parts, given)
    with translated(source, "cannot be read"):
        stream = pa.ipc.open_stream(buffer)
    return _table(str(source), stream.schema, None, iter(stream), given)


def check_once(wanted: list[str], names: list[str], source: object) -> None:
    """Raise BadInput if a wanted column occurs twice, which is ambiguous."""
    counts = Counter(names)
    if doubled := [name for name in wanted if counts[name] > 1]:
        raise BadInput(f"{source} has the column {doubled[0]!r} twice; rename one, or leave it out")


@contextmanager
def translated(source: object, what: str) -> Iterator[None]:
    """Within the block, raise pyarrow's errors as BadInput. what: what is wrong with the source then."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{source} {what}: {error}") from error


def _table(
    source: str,
    schema: pa.Schema,
    rows: int | None,
    batches: Iterator[pa.RecordBatch],
    given: SourceOptions,
) -> tuple[Table, Iterator[Batch]]:
    metadata = parse_metadata((schema.metadata or {}).get(METADATA_KEY, b"{}"), source)
    chosen = {
        KEY: given.key_column or _guess(source, schema, KEY, "an integer", _is_key),
        VALUE: given.value_column or _guess(source, schema, VALUE, "a list", _is_list),
    }
    for what, name in chosen.items():
        if name not in schema.names:
            raise BadInput(f"{source} has no column {name!r} for the {what}; it has {', '.join(schema.names)}")
    check_once(schema.names if metadata else [*chosen.values()], schema.names, source)
    if not _is_key(schema.field(chosen[KEY]).type):
        raise BadInput(f"column {chosen[KEY]!r} of {source} must hold integers, got {schema.field(chosen[KEY]).type}")
    if not _is_list(schema.field(chosen[VALUE]).type):
        raise BadInput(
            f"column {chosen[VALUE]!r} of {source} must hold lists of numbers, got {schema.field(chosen[VALUE]).type}"
        )
    wanted = [name for name in schema.names if name in chosen.values() or metadata]
    positions = [schema.get_field_index(name) for name in wanted]

    def read() -> Iterator[Batch]:
        with translated(source, "is damaged"):
            for part in batches:
                asked = part.select(positions)
                asked.validate(full=True)  # before use: offsets and lengths in a foreign file may point anywhere
                for rows in slices(len(asked), asked.nbytes // max(1, len(asked)), READ_ROWS):
                    arrays = zip(wanted, asked[rows].columns, strict=True)
                    yield {renamed(name, chosen): numbers_of(array, name, source) for name, array in arrays}

    stream = read()
    first = next(stream, None)
    columns = []
    for name in wanted:
        kind = schema.field(name).type
        width = None
        if _is_list(kind):
            width = check_width(kind.list_size, source) if pa.types.is_fixed_size_list(kind) else 0
            if first is not None:
                width = first[renamed(name, chosen)].shape[1]
            kind = kind.value_type
        columns.append(Column(renamed(name, chosen), np.dtype(kind.to_pandas_dtype()), width))

    return Table(columns, rows, metadata), chain([] if first is None else [first], stream)


def _guess(source: str, schema: pa.Schema, name: str, kind: str, fits: Callable[[pa.DataType], bool]) -> str:
    """Return name if there is such a column, otherwise the only column of this kind. Raises WrongUsage."""
    if name in schema.names:
        return name
    found = [field.name for field in schema if fits(field.type)]
    if len(found) != 1:
        raise WrongUsage(
            f"{source} has no column {name!r}, but {len(found)} columns that hold {kind}; "
            f"name one with --{name}-column (it has {', '.join(schema.names)})"
        )
    return str(found[0])


def _is_key(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_a(kind) for is_a in lists) and bool(
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )


def numbers_of(array: pa.Array, name: str, source: object) -> np.ndarray[Any, Any]:
    """Return a column's numbers, (n,) or (n, width)."""
    if array.null_count:
        raise BadInput(f"column {name!r} of {source} has rows without a value; fill or drop them")
    if not _is_list(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(array.type):
        check_width(array.type.list_size, source)
    flat = array.flatten()
    if flat.null_count:
        raise BadInput(f"column {name!r} of {source} has lists with numbers missing; fill or drop them")
    numbers = np.asarray(flat.to_numpy(zero_copy_only=False))
    if pa.types.is_fixed_size_list(array.type):
        return numbers.reshape(len(array), array.type.list_size)
    lengths = np.diff(np.asarray(array.offsets))
    if len(lengths) and (lengths != lengths[0]).any():
        raise BadInput(
            f"column {name!r} of {source} has lists of {lengths.min()} to {lengths.max()} numbers; "
            "all must have the same length"
        )
    return numbers.reshape(len(array), check_width(int(lengths[0]), source) if len(lengths) else 0)
