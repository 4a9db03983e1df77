"""word2vec's text and binary formats. Their keys are words; only words that are integers can be read."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvemb.tools.destinations import first_line, resumed
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import KEY, VALUE, Batch, Column, PathOrFile, SourceOptions, Table, check_width, slices
from kvemb.tools.numbers import rounded

READ_BYTES = 4 << 20
MAX_HEAD_BYTES = 100
# The most bytes of a key or a number as text; a longer one is a sign of another format.
MAX_DIGITS = 64
_SHORTER = f"word2vec allows {MAX_DIGITS}: the file is damaged, or of another format"


@contextmanager
def _begun(target: PathOrFile, table: Table) -> Iterator[IO[bytes]]:
    """Yield a new file, or a pipe, in which the first line is written: the numbers of rows and columns."""
    with open(target, "wb") if isinstance(target, Path) else nullcontext(target) as file:
        file.write(f"{table.rows} {table.value.width}\n".encode())
        file.flush()
        yield file


def write_word2vec(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write word2vec's text: a line with the numbers of rows and columns, then one line per row."""
    from kvemb.tools.formats.csv import write_delimited

    with _begun(target, table) as file:
        write_delimited(file, table, batches, " ", header=False)


def write_word2vec_binary(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write word2vec's binary format: the same line, then each key as text, a space, and float32 numbers."""
    with _begun(target, table) as file:
        for batch in batches:
            value = np.ascontiguousarray(batch[VALUE], "<f4")
            rows = value.view(f"V{4 * value.shape[1]}").reshape(-1).tolist()
            keys = batch[KEY].astype("U").tolist()
            file.write(b"".join(b"%b %b" % (key.encode(), row) for key, row in zip(keys, rows, strict=True)))


def _read_head(source: PathOrFile, given: SourceOptions) -> tuple[bytes, Table, int]:
    """Return the first line, the table that it describes, and its dim."""
    head = first_line(source, MAX_HEAD_BYTES)
    try:
        rows, dim = map(int, head.removeprefix(codecs.BOM_UTF8).split())
        if rows < 0 or dim < 1:
            raise ValueError
    except ValueError:
        raise BadInput(f"{source} is not a word2vec file: it must begin with two numbers, got {head[:40]!r}") from None
    columns = [Column(KEY, np.dtype(given.key_dtype or "int64")), Column(VALUE, np.dtype(np.float32), dim)]
    return head, Table(columns, rows), check_width(dim, source)


def _keys(words: list[bytes], dtype: np.dtype[Any], source: object) -> Any:
    keys = []
    for word in words:
        try:
            keys.append(int(word))
        except ValueError:
            shown = word.strip()[:MAX_DIGITS].decode(errors="replace")
            raise BadInput(f"{source} has the key {shown!r}; keys must be integers: number or hash the words") from None
    try:
        return np.array(keys, dtype)
    except OverflowError as error:
        raise BadInput(f"{source} has a key that does not fit {dtype.name}: {error}") from error


def _lines(file: IO[bytes], most: int, source: object) -> Iterator[list[bytes]]:
    """Yield lists of lines, some megabytes at a time. Raises BadInput for a line of more than `most` bytes."""
    rest = b""
    while part := file.read(max(READ_BYTES, most)):
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > most:
            raise BadInput(f"{source} has a line of more than {most:,} bytes: it is damaged, or of another format")
        if lines:
            yield lines
    if rest:
        yield [rest]


def read_word2vec(source: PathOrFile, given: SourceOptions) -> tuple[Table, Iterator[Batch]]:
    """Read word2vec's text, whose words must be integers."""
    head, table, dim = _read_head(source, given)

    def batches() -> Iterator[Batch]:
        read = 0
        with resumed(source, head) as file:
            for lines in _lines(file, MAX_DIGITS * (dim + 1), source):
                words = [line.split() for line in lines]
                if wrong := [word for word in words if len(word) != dim + 1]:
                    raise BadInput(f"{source} has a row of {len(wrong[0]) - 1} numbers after row {read:,}, not {dim}")
                if (longest := max(map(len, chain.from_iterable(words)))) > MAX_DIGITS:
                    raise BadInput(f"{source} has a number of {longest:,} characters after row {read:,}; {_SHORTER}")
                keys = _keys([word[0] for word in words], table.key.dtype, source)
                try:
                    values = np.array([word[1:] for word in words]).astype(np.float64)
                except ValueError as error:
                    raise BadInput(f"{source} cannot be read after row {read:,}: {error}") from error
                read += len(words)
                values = values.reshape(len(words), dim)
                yield {KEY: keys, VALUE: rounded(values, np.dtype(np.float32), keys, "word2vec holds float32 numbers")}
        if read != table.rows:
            raise BadInput(
                f"{source} has {read:,} rows, but its first line says {table.rows:,}: it is truncated, or of another "
                "format"
            )

    return table, batches()


def _word(file: IO[bytes], source: object) -> bytes:
    """Read up to the space that ends a key. Raises BadInput if the key is longer than MAX_DIGITS."""
    word = b""
    while (letter := file.read(1)) not in (b" ", b""):
        word += letter
        if len(word) > MAX_DIGITS:
            raise BadInput(f"{source} has a key of more than {MAX_DIGITS} bytes, {word[:20]!r}...; {_SHORTER}")
    return word


def read_word2vec_binary(source: PathOrFile, given: SourceOptions) -> tuple[Table, Iterator[Batch]]:
    """Read word2vec's binary format, whose words must be integers."""
    head, table, dim = _read_head(source, given)
    rows = table.rows or 0

    def batches() -> Iterator[Batch]:
        with resumed(source, head) as file:
            for part in slices(rows, 4 * dim):
                words, values = [], []
                for at in range(part.start, part.stop):
                    words.append(_word(file, source))
                    values.append(file.read(4 * dim))
                    if len(values[-1]) != 4 * dim:
                        raise BadInput(f"{source} is truncated: {rows - at:,} of {rows:,} rows are missing")
                numbers = np.frombuffer(b"".join(values), "<f4").reshape(len(words), dim)
                yield {KEY: _keys(words, table.key.dtype, source), VALUE: numbers}

    return table, batches()
