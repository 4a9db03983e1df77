"""word2vec's text and binary files, whose keys are words: those that are integers can be read."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvemb.tools.destinations import first_line, going_on
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import KEY, VALUE, Batch, Column, Given, Place, Table, check_width, rows_at_once
from kvemb.tools.numbers import rounded

READ_ROWS = 65_536
READ_BYTES = 4 << 20
MOST_HEAD_BYTES = 100
# Of a key or a number as text: what is longer is another format.
MOST_DIGITS = 64
_SHORTER = f"word2vec's are at most {MOST_DIGITS} long: it is damaged, or another format"


def _head(table: Table) -> bytes:
    return f"{table.rows} {table.value.width}\n".encode()


def write_words(place: Place, table: Table, batches: Iterator[Batch]) -> None:
    """Write word2vec's text: a line with the numbers of rows and of columns, then a line a row."""
    from kvemb.tools.formats.arrow import write_delimited

    if isinstance(place, Path):
        with open(place, "wb") as file:
            return write_words(file, table, batches)
    place.write(_head(table))
    place.flush()
    return write_delimited(place, table, batches, " ", header=False)


def write_words_binary(place: Place, table: Table, batches: Iterator[Batch]) -> None:
    """Write word2vec's binary format: the same line, then each key as text, a space, and float32 numbers."""
    if isinstance(place, Path):
        with open(place, "wb") as file:
            return write_words_binary(file, table, batches)
    place.write(_head(table))
    for batch in batches:
        value = np.ascontiguousarray(batch[VALUE], "<f4")
        rows = value.view(f"V{4 * value.shape[1]}").reshape(-1).tolist()
        keys = batch[KEY].astype("U").tolist()
        place.write(b"".join(b"%b %b" % (key.encode(), row) for key, row in zip(keys, rows, strict=True)))
    return None


def _read_head(line: bytes, place: object) -> tuple[int, int]:
    try:
        rows, dim = map(int, line.removeprefix(codecs.BOM_UTF8).split())
        if rows < 0 or dim < 1:
            raise ValueError
    except ValueError:
        raise BadInput(f"{place} is not a word2vec file: it must begin with two numbers, got {line[:40]!r}") from None
    return rows, check_width(dim, place)


def _key(word: bytes, place: object) -> int:
    try:
        return int(word)
    except ValueError:
        raise BadInput(
            f"{place} has the key {word[:MOST_DIGITS].decode(errors='replace')!r}; keys must be integers: number or "
            "hash them"
        ) from None


def _keys(keys: list[int], dtype: np.dtype[Any], place: object) -> Any:
    try:
        return np.array(keys, dtype)
    except OverflowError as error:
        raise BadInput(f"{place} has a key that does not fit {dtype.name}: {error}") from error


def _lines(file: IO[bytes], most: int, place: object) -> Iterator[list[bytes]]:
    """Yield the lines of a file, some megabytes at a time. Raises BadInput for one of more than `most` bytes."""
    rest = b""
    while part := file.read(max(READ_BYTES, most)):
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > most:
            raise BadInput(f"{place} has a line of more than {most:,} bytes: it is damaged, or another format")
        if lines:
            yield lines
    if rest:
        yield [rest]


def read_words(place: Place, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read word2vec's text, whose words must be integers."""
    head = first_line(place, MOST_HEAD_BYTES)
    rows, dim = _read_head(head, place)
    dtype = np.dtype(given.key_dtype or "int64")

    def batches() -> Iterator[Batch]:
        read = 0
        with going_on(place, head) as file:
            for lines in _lines(file, MOST_DIGITS * (dim + 1), place):
                words = [line.split() for line in lines]
                if wrong := [word for word in words if len(word) != dim + 1]:
                    raise BadInput(f"{place} has a row of {len(wrong[0]) - 1} numbers after row {read:,}, not {dim}")
                if (longest := max(map(len, chain.from_iterable(words)))) > MOST_DIGITS:
                    raise BadInput(f"{place} has a number of {longest:,} characters after row {read:,}; {_SHORTER}")
                keys = _keys([_key(word[0], place) for word in words], dtype, place)
                try:
                    values = np.array([word[1:] for word in words]).astype(np.float64)
                except ValueError as error:
                    raise BadInput(f"{place} cannot be read after row {read:,}: {error}") from error
                read += len(words)
                values = values.reshape(len(words), dim)
                yield {KEY: keys, VALUE: rounded(values, np.dtype(np.float32), keys, "word2vec's are no greater")}
        if read != rows:
            raise BadInput(f"{place} has {read:,} rows and says {rows:,}: it was cut short, or is another format")

    return Table([Column(KEY, dtype), Column(VALUE, np.dtype(np.float32), dim)], rows), batches()


def _word(file: IO[bytes], place: object) -> bytes:
    """Read on to the space that ends a key. Raises BadInput where none comes soon."""
    word = b""
    while (letter := file.read(1)) not in (b" ", b""):
        word += letter
        if len(word) > MOST_DIGITS:
            raise BadInput(f"{place} has a key of more than {MOST_DIGITS} bytes, {word[:20]!r}...; {_SHORTER}")
    return word


def read_words_binary(place: Place, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read word2vec's binary format, whose words must be integers."""
    head = first_line(place, MOST_HEAD_BYTES)
    rows, dim = _read_head(head, place)
    dtype = np.dtype(given.key_dtype or "int64")
    step = rows_at_once(4 * dim, READ_ROWS)

    def batches() -> Iterator[Batch]:
        left = rows
        with going_on(place, head) as file:
            while left:
                keys, values = [], []
                for _ in range(min(left, step)):
                    word = _word(file, place)
                    row = file.read(4 * dim)
                    if len(row) != 4 * dim:
                        raise BadInput(f"{place} was cut short: {left:,} of {rows:,} rows are missing")
                    keys.append(_key(word.strip(), place))
                    values.append(row)
                left -= len(keys)
                numbers = np.frombuffer(b"".join(values), "<f4").reshape(len(keys), dim)
                yield {KEY: _keys(keys, dtype, place), VALUE: numbers}

    return Table([Column(KEY, dtype), Column(VALUE, np.dtype(np.float32), dim)], rows), batches()
