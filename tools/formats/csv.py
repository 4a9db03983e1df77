"""CSV of numbers, by pyarrow. A column with a width is one column per number: value_0, value_1, ..."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from kvemb.tools.destinations import first_line, resumed
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.arrow import check_once, numbers_of, translated
from kvemb.tools.formats.columns import (
    KEY,
    SCORE,
    STEP,
    VALUE,
    Batch,
    Column,
    PathOrFile,
    SourceOptions,
    Table,
    renamed,
)

# A CSV has a column for each number of a row; each column takes some kilobytes of memory while the file is read.
MAX_COLUMNS = 16_384
MAX_HEAD_BYTES = 1 << 20


def write_csv(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write a header and numbers; floats with enough digits to read them back exactly."""
    write_delimited(target, table, batches, ",", header=True)


def write_delimited(
    target: PathOrFile, table: Table, batches: Iterator[Batch], delimiter: str, *, header: bool
) -> None:
    """Write numbers as text."""
    names = [name for column in table.columns for name in _names(column)]
    types = [pa.from_numpy_dtype(_in_text(column.dtype)) for column in table.columns for _ in _names(column)]
    schema = pa.schema(list(zip(names, types, strict=True)))
    options = pacsv.WriteOptions(include_header=header, delimiter=delimiter, quoting_style="none")
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


def read_csv(source: PathOrFile, given: SourceOptions) -> tuple[Table, Iterator[Batch]]:
    """Read numbers as write_csv writes them: columns that end in _0, _1, ... form one list, in any order.

    A CSV does not contain dtypes: int64 keys and float32 values are assumed unless given.
    """
    chosen = {KEY: given.key_column or KEY, VALUE: given.value_column or VALUE}
    head = first_line(source, MAX_HEAD_BYTES + 1)
    names = _csv_names(head, source)
    groups = _groups(names, chosen, source)
    halves = ("float16", "bfloat16")  # pyarrow does not read these from text
    number_dtype = np.dtype("float32" if given.value_dtype in (None, *halves) else given.value_dtype)
    plain = {chosen[KEY]: np.dtype(given.key_dtype or "int64"), SCORE: np.dtype(np.float64), STEP: np.dtype(np.int64)}
    dtypes = {name: plain.get(name, number_dtype) for name in groups}
    is_list = {name: len(parts) > 1 or parts[0] != name for name, parts in groups.items()}
    columns = [
        Column(renamed(name, chosen), dtypes[name], len(parts) if is_list[name] else None)
        for name, parts in groups.items()
    ]
    positions = {name: number for number, name in enumerate(names)}
    types = {part: pa.from_numpy_dtype(dtypes[name]) for name, parts in groups.items() for part in parts}
    options = pacsv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False)

    def batches() -> Iterator[Batch]:
        with resumed(source, head) as file:
            try:
                reader = pacsv.open_csv(file, pacsv.ReadOptions(column_names=names), convert_options=options)
            except pa.ArrowInvalid as error:
                if "Empty CSV" in str(error):
                    return
                raise BadInput(f"{source} cannot be read: {error}") from error
            with translated(source, "is damaged"):
                for part in reader:
                    batch = {}
                    for name, parts in groups.items():
                        arrays = [numbers_of(part.column(positions[each]), each, source) for each in parts]
                        batch[renamed(name, chosen)] = np.stack(arrays, axis=1) if is_list[name] else arrays[0]
                    yield batch

    return Table(columns), batches()


def _csv_names(head: bytes, source: object) -> list[str]:
    """Return the column names in a CSV's first line. Raises BadInput if there are too many."""
    advice = "import longer rows as parquet or npy"
    if len(head) > MAX_HEAD_BYTES:
        raise BadInput(f"{source} has a first line of more than {MAX_HEAD_BYTES:,} bytes; {advice}")
    try:
        names = next(csv.reader([head.decode("utf-8-sig", errors="replace")]), [])
    except csv.Error as error:
        raise BadInput(f"{source} has a first line that cannot be read: {error}") from error
    if len(names) > MAX_COLUMNS:
        raise BadInput(f"{source} has {len(names):,} columns, at most {MAX_COLUMNS:,} are allowed; {advice}")
    return names


def _groups(names: list[str], chosen: dict[str, str], source: object) -> dict[str, list[str]]:
    """Return the columns of each list under the list's name, and every other column under its own.

    Raises BadInput if the list of values has gaps or does not start at 0, or if key, score or step is a list.
    """
    check_once(names, names, source)
    lists: dict[str, dict[int, str]] = {}
    given_names = set(names)
    for name in names:
        stem, _, number = name.rpartition("_")
        if stem and number.isdecimal() and len(number) < 20 and number == str(int(number)):
            lists.setdefault(stem, {})[int(number)] = name
    groups: dict[str, list[str]] = {}
    for stem, parts in lists.items():
        missing = next((at for at in range(len(parts)) if at not in parts), None)
        if missing is None and stem not in given_names:
            groups[stem] = [parts[at] for at in range(len(parts))]
        elif stem == chosen[VALUE]:
            wrong = f"and {stem!r} too" if missing is None or stem in names else f"but no '{stem}_{missing}'"
            raise BadInput(
                f"{source} has the column {parts[min(parts)]!r} {wrong}; number a list's columns from 0 without gaps"
            )
    listed = {part for parts in groups.values() for part in parts}
    groups |= {name: [name] for name in names if name not in listed}
    for what, name in chosen.items():
        if name not in groups:
            known = ", ".join(groups)[:200] or "none"
            raise BadInput(f"{source} has no column {name!r} for the {what}; it has {known}")
    for name in (chosen[KEY], SCORE, STEP):
        if name in groups and groups[name] != [name]:
            raise BadInput(
                f"{source} has the column {groups[name][0]!r}; a {name} is one number, so name the column {name!r}"
            )
    return groups
