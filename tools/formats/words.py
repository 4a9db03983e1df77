"""Formats of word vectors: word2vec's text and binary, GloVe's text. Their keys are words."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from kvemb.tools.destinations import next_line, resumed
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import (
    KEY,
    ROW,
    VALUE,
    Batch,
    Column,
    PathOrFile,
    Read,
    SourceOptions,
    Table,
    check_width,
    slices,
)
from kvemb.tools.formats.csv import MAX_COLUMNS, MAX_HEAD_BYTES, Text, write_delimited
from kvemb.tools.numbers import rounded

# The most bytes of a word; a longer one is a sign of another format.
MAX_WORD_BYTES = 1024
_FLOAT32 = np.dtype(np.float32)
# Not all that str.strip() takes: a word may be one of Unicode's spaces.
_BLANK = " \t\r\n"


@contextmanager
def _begun(target: PathOrFile, table: Table) -> Iterator[IO[bytes]]:
    """Yield a new file, or a pipe, in which the first line is written: the numbers of rows and columns."""
    with open(target, "wb") if isinstance(target, Path) else nullcontext(target) as file:
        file.write(f"{table.rows} {table.value.width}\n".encode())
        file.flush()
        yield file


def write_word2vec(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write word2vec's text: a line with the numbers of rows and columns, then one line per row."""
    with _begun(target, table) as file:
        _write_rows(file, table, batches)


def write_glove(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write GloVe's text, one line per row."""
    with open(target, "wb") if isinstance(target, Path) else nullcontext(target) as file:
        _write_rows(file, table, batches)


def _write_rows(file: IO[bytes], table: Table, batches: Iterator[Batch]) -> None:
    """Write one line per row. Words stand before what pyarrow writes, as it refuses those with quotes or commas."""
    if table.key.dtype != object:
        write_delimited(file, table, batches, " ", header=False)
        return
    numbers = replace(table, columns=[column for column in table.columns if column.name != KEY])
    for batch in _words(batches):
        sink = pa.BufferOutputStream()
        write_delimited(sink, numbers, iter([batch]), " ", header=False)
        lines = sink.getvalue().to_pybytes().splitlines()
        words = batch[KEY].tolist()
        file.write(b"".join(b"%b %b\n" % (word.encode(), line) for word, line in zip(words, lines, strict=True)))


def _words(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches. Raises BadInput for a key that these formats cannot hold: they end a word at a blank."""
    for batch in batches:
        if batch[KEY].dtype == object:
            for word in batch[KEY].tolist():
                if not word or any(blank in word for blank in _BLANK):
                    told = f"the key {word[:64]!r} is empty or has a blank"
                    raise BadInput(f"{told}; choose another format, such as parquet")
        yield batch


def write_word2vec_binary(target: PathOrFile, table: Table, batches: Iterator[Batch]) -> None:
    """Write word2vec's binary format: the same line, then each key as text, a space, and float32 numbers."""
    with _begun(target, table) as file:
        for batch in _words(batches):
            value = np.ascontiguousarray(batch[VALUE], "<f4")
            rows = value.view(f"V{4 * value.shape[1]}").reshape(-1).tolist()
            keys = batch[KEY].astype("U").tolist()
            file.write(b"".join(b"%b %b" % (key.encode(), row) for key, row in zip(keys, rows, strict=True)))


def _counts(line: bytes) -> tuple[int, int] | None:
    """Return the numbers of rows and columns in word2vec's first line; None if it is none."""
    fields = line.removeprefix(codecs.BOM_UTF8).split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    return int(fields[0]), int(fields[1])


def _table(rows: int | None, dim: int, source: object) -> Table:
    if dim < 1:
        raise BadInput(f"{source} says that a row has no numbers")
    return Table([Column(KEY, np.dtype(object)), Column(VALUE, _FLOAT32, check_width(dim, source))], rows)


def read_word2vec(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read word2vec's text, as gensim and fastText write it. Without its first line, it is GloVe's."""
    head = next_line(source, MAX_HEAD_BYTES)
    if (counts := _counts(head)) is None:
        return _read_text(source, head, 0, None, None)
    table = _table(*counts, source)
    line = b"\n"
    while line and not line.strip():
        line = next_line(source, MAX_HEAD_BYTES, head)
        head += line
    return _read_text(source, head, 1, table, line)


def read_glove(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read GloVe's text: word2vec's without the first line."""
    head = next_line(source, MAX_HEAD_BYTES)
    return _read_text(source, head, 0, None, None)


def _read_text(
    source: PathOrFile, head: bytes, counted: int, table: Table | None, first: bytes | None
) -> tuple[Table, Read]:
    """Read rows of words and numbers. head: what was read: `counted` lines with counts, and the first row's."""
    line = (head if first is None else first).removeprefix(codecs.BOM_UTF8)
    delimiter = "\t" if b"\t" in line else " "
    ends = line.rstrip(b"\r\n").endswith(delimiter.encode())  # as fastText writes its lines
    try:
        row = line.decode().strip(_BLANK)
    except UnicodeDecodeError:
        raise BadInput(f"{source} is not a word2vec file: it must begin with two numbers, or with a word") from None
    if table is None:
        numbers = row.split(delimiter)[1:]
        if not numbers or not all(map(_is_number, numbers)):
            raise BadInput(
                f"{source} is not a word2vec file: it must begin with two numbers, or a word and numbers, "
                f"got {line[:40]!r}"
            )
        table = _table(None, len(numbers), source)
    dim = table.value.width or 0
    if dim >= MAX_COLUMNS:
        raise BadInput(f"{source} has rows of {dim:,} numbers, text may have {MAX_COLUMNS:,}; import parquet or npy")
    names = ["word", *(f"{at + 1}" for at in range(dim)), *(["end of line"] if ends else [])]
    odd: deque[tuple[int, str]] = deque()
    text = Text(source, head, counted + bool(row), names, delimiter, False, lambda *row: odd.append(row))
    types = {name: pa.string() if name == "word" else pa.float64() for name in names[: dim + 1]}

    def by_hand(number: int, line: str) -> Batch:
        """Return a row that may have spaces in its word, or at its end, by its number from 0 after the head."""
        word, *numbers = line.strip(_BLANK).rsplit(delimiter, dim)
        place = text.place(number)
        if len(numbers) != dim:
            raise BadInput(f"{source}, {place}: it has {len(numbers)} numbers, not {dim}")
        if len(word.encode()) > MAX_WORD_BYTES:
            raise BadInput(f"{source}, {place}: its word has more than {MAX_WORD_BYTES:,} bytes")
        if any(map(_is_number, word.split(delimiter)[1:])):
            raise BadInput(f"{source}, {place}: it has more than {dim} numbers after {word.split(delimiter)[0]!r}")
        if wrong := [each for each in numbers if not _is_number(each)]:
            raise BadInput(f"{source}, {place}: {wrong[0]!r} is not a number; correct it, or leave the row out")
        floats = pa.array(numbers, pa.string()).cast(pa.float64()).to_numpy()
        return _batch(pa.array([word], pa.large_string()), floats[None], np.array([number]))

    def lines() -> Iterator[Batch]:
        if row:
            yield by_hand(-1, row)
        done = 0
        for part in text.batches(types):
            # The odd rows that were met so far are not in the batch, and may be from after it.
            several = np.arange(done, done + len(part) + len(odd))
            numbers = np.setdiff1d(several, [number - 1 for number, _ in odd])[: len(part)]
            values = np.stack([np.asarray(column) for column in part.columns[1:]], axis=1)
            yield _batch(part.column(0).cast(pa.large_string()), values, numbers)
            done = int(numbers[-1]) + 1
            while odd and odd[0][0] <= done:
                number, line = odd.popleft()
                yield by_hand(number - 1, line)
        for number, line in odd:
            yield by_hand(number - 1, line)

    def batches(_: Collection[str]) -> Iterator[Batch]:
        read = 0
        for batch in lines():
            read += len(batch[KEY])
            yield batch
        if table.rows not in (None, read):
            raise BadInput(
                f"{source} has {read:,} rows, but its first line says {table.rows:,}: it is truncated, or of another "
                "format, such as glove"
            )

    table.place = text.place
    return table, batches


def _is_number(text: str) -> bool:
    try:
        pa.scalar(text).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _batch(words: pa.Array, values: np.ndarray, numbers: np.ndarray) -> Batch:
    values = rounded(values, _FLOAT32, words, "these formats hold float32 numbers")
    return {KEY: words, VALUE: values, ROW: numbers}


def _word(file: IO[bytes], source: object) -> bytes:
    """Read up to the space that ends a key. Raises BadInput if the key is longer than MAX_WORD_BYTES."""
    word = b""
    while (letter := file.read(1)) not in (b" ", b""):
        word += letter
        if len(word) > MAX_WORD_BYTES:
            raise BadInput(
                f"{source} has a key of more than {MAX_WORD_BYTES:,} bytes, {word[:20]!r}...: it is damaged, or of "
                "another format"
            )
    return word.lstrip(b"\n")  # some writers end rows with it


def read_word2vec_binary(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read word2vec's binary format."""
    head = next_line(source, MAX_HEAD_BYTES)
    if (counts := _counts(head)) is None:
        raise BadInput(f"{source} is not a word2vec file: it must begin with two numbers, got {head[:40]!r}")
    table = _table(*counts, source)
    rows, dim = counts

    def batches(_: Collection[str]) -> Iterator[Batch]:
        with resumed(source, head) as file:
            for part in slices(rows, 4 * dim):
                words, values = [], []
                for at in range(part.start, part.stop):
                    word = _word(file, source)
                    values.append(file.read(4 * dim))
                    if len(values[-1]) != 4 * dim:
                        raise BadInput(f"{source} is truncated: {rows - at:,} of {rows:,} rows are missing")
                    try:
                        words.append(word.decode())
                    except UnicodeDecodeError:
                        raise BadInput(f"{source} has a word that is not UTF-8 in row {at:,}: {word[:40]!r}") from None
                numbers = np.frombuffer(b"".join(values), "<f4").reshape(len(words), dim)
                yield {KEY: pa.array(words, pa.large_string()), VALUE: numbers}

    return table, batches
