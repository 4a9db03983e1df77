"""A CSV read as numbers, by pyarrow: which columns make a row, and how many there may be. Written by format_arrow."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from kvemb.tools.destinations import first_line, going_on
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.arrow import check_once, numbers_of, told
from kvemb.tools.formats.columns import KEY, SCORE, STEP, VALUE, Batch, Column, Given, Place, Table, renamed

# A column is a number, and costs some kilobytes while it is read.
MOST_COLUMNS = 16_384
MOST_HEAD_BYTES = 1 << 20


def read_csv(place: Place, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read numbers as write_csv writes them: columns that end in _0, _1, ... are one list, in whatever order.

    A CSV does not say of what dtype they are: int64 and float32 unless that is given.
    """
    chosen = {KEY: given.key_column or KEY, VALUE: given.value_column or VALUE}
    head = first_line(place, MOST_HEAD_BYTES + 1)
    names = _csv_names(head, place)
    groups = _groups(names, chosen, place)
    halves = ("float16", "bfloat16")  # which pyarrow does not read from text
    number_dtype = np.dtype("float32" if given.value_dtype in (None, *halves) else given.value_dtype)
    plain = {chosen[KEY]: np.dtype(given.key_dtype or "int64"), SCORE: np.dtype(np.float64), STEP: np.dtype(np.int64)}
    dtypes = {name: plain.get(name, number_dtype) for name in groups}
    wide = {name: len(parts) > 1 or parts[0] != name for name, parts in groups.items()}
    columns = [
        Column(renamed(name, chosen), dtypes[name], len(parts) if wide[name] else None)
        for name, parts in groups.items()
    ]
    at = {name: number for number, name in enumerate(names)}
    types = {part: pa.from_numpy_dtype(dtypes[name]) for name, parts in groups.items() for part in parts}
    options = pacsv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False)

    def batches() -> Iterator[Batch]:
        with going_on(place, head) as file:
            try:
                reader = pacsv.open_csv(file, pacsv.ReadOptions(column_names=names), convert_options=options)
            except pa.ArrowInvalid as error:
                if "Empty CSV" in str(error):
                    return
                raise BadInput(f"{place} cannot be read: {error}") from error
            for part in told(iter(reader), place):
                batch = {}
                for name, parts in groups.items():
                    arrays = [numbers_of(part.column(at[each]), each, place) for each in parts]
                    batch[renamed(name, chosen)] = np.stack(arrays, axis=1) if wide[name] else arrays[0]
                yield batch

    return Table(columns), batches()


def _csv_names(head: bytes, place: object) -> list[str]:
    """Return the columns that a CSV's first line names. Raises BadInput where there are too many."""
    advice = "import longer rows as parquet or npy"
    if len(head) > MOST_HEAD_BYTES:
        raise BadInput(f"{place} has a first line of more than {MOST_HEAD_BYTES:,} bytes; {advice}")
    try:
        names = next(csv.reader([head.decode("utf-8-sig", errors="replace")]), [])
    except csv.Error as error:
        raise BadInput(f"{place} has a first line that cannot be read: {error}") from error
    if len(names) > MOST_COLUMNS:
        raise BadInput(f"{place} has {len(names):,} columns, a CSV may have {MOST_COLUMNS:,}; {advice}")
    return names


def _groups(names: list[str], chosen: dict[str, str], place: object) -> dict[str, list[str]]:
    """Return the columns of each list by its name, and every other column by its own. Raises BadInput.

    What is needed must be whole: a list of numbers from 0 on, the key one column. Others are let through as they are.
    """
    check_once(names, names, place)
    lists: dict[str, dict[int, str]] = {}
    known_names = set(names)
    for name in names:
        stem, _, number = name.rpartition("_")
        if stem and number.isdecimal() and len(number) < 20 and number == str(int(number)):
            lists.setdefault(stem, {})[int(number)] = name
    groups: dict[str, list[str]] = {}
    for stem, parts in lists.items():
        missing = next((at for at in range(len(parts)) if at not in parts), None)
        if missing is None and stem not in known_names:
            groups[stem] = [parts[at] for at in range(len(parts))]
        elif stem == chosen[VALUE]:
            wrong = f"and {stem!r} too" if missing is None or stem in names else f"but no '{stem}_{missing}'"
            raise BadInput(
                f"{place} has the column {parts[min(parts)]!r} {wrong}; number a list's columns from 0 without gaps"
            )
    listed = {part for parts in groups.values() for part in parts}
    groups |= {name: [name] for name in names if name not in listed}
    for what, name in chosen.items():
        if name not in groups:
            known = ", ".join(groups)[:200] or "none"
            raise BadInput(f"{place} has no column {name!r} for the {what}; it has {known}")
    for name in (chosen[KEY], SCORE, STEP):
        if name in groups and groups[name] != [name]:
            raise BadInput(f"{place} has the column {groups[name][0]!r}; a {name} is one number: name it {name!r}")
    return groups
