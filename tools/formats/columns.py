"""A table as named columns: all that a file format sees of it.

A batch is a dict from a column's name to an array: (n, width) if the column has a width, otherwise (n,). Keys that are
words are an Arrow array of large strings (n,).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from kvemb.tools.failures import BadInput

Batch = dict[str, Any]
PathOrFile = Path | IO[bytes]
# Of a source that was opened: yields batches of the columns of these names.
Read = Callable[[Collection[str]], Iterator[Batch]]

KEY, VALUE, SCORE, STEP, SCALE = "key", "value", "score", "step", "scale"
# Stands for all of the optimizer's slots; each slot is a column under its own name.
SLOTS = "slots"
# The rows' numbers in their source, where these are not consecutive.
ROW = "row number"
# Which rows have no slots in their source, bools (n,), where others have: they get those of new rows.
SLOTLESS = "rows without slots"
# The most numbers in a row: a header that claims more is damaged, or crafted to exhaust the memory.
MAX_WIDTH = 1 << 20
# The most bytes of the description of a variable; names and initializers of a row are the long parts.
MAX_METADATA_BYTES = 64 << 20
# The most rows, and bytes, of a batch that is read; a single row may be larger.
READ_ROWS, BATCH_BYTES = 65_536, 16 << 20


@dataclass(frozen=True)
class Column:
    """One column. width: numbers in each row; None if each row is one number. dtype: object for words."""

    name: str
    dtype: np.dtype[Any]
    width: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * (1 if self.width is None else self.width)


@dataclass
class Table:
    """Columns, always with a key and a value. rows: their number, None if it is not known yet.

    metadata: a description of the variable, of types that JSON has. place: says where a row of a source is, by its
    number from 0.
    """

    columns: list[Column]
    rows: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    place: Callable[[int], str] = "row {:,}".format

    def column(self, name: str) -> Column | None:
        """Return the column of a name, or None."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def key(self) -> Column:
        """The column of keys."""
        return next(column for column in self.columns if column.name == KEY)

    @property
    def value(self) -> Column:
        """The column of values."""
        return next(column for column in self.columns if column.name == VALUE)


@dataclass(frozen=True)
class SourceOptions:
    """What the user said about a source; None: as in the source. See importing.import_table.

    keys: those of the rows of a matrix, integers (n,) or an Arrow array of words; None: the rows' numbers. words:
    whether keys are words, so that a column of words is one of keys.
    """

    variable: str | None = None
    key_column: str | None = None
    value_column: str | None = None
    keys: Any = None
    words: bool = False
    key_dtype: str | None = None
    value_dtype: str | None = None
    hash_keys: bool = False
    name_bytes: int | None = None


def slices(rows: int, row_bytes: int, most: int = READ_ROWS) -> Iterator[slice]:
    """Yield the slices of a table's rows to read at once: as many as fit into BATCH_BYTES, from 1 to `most`."""
    step = max(1, min(most, BATCH_BYTES // max(1, row_bytes)))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def check_width(width: int, source: object) -> int:
    """Return width. Raises BadInput if no row can have so many numbers."""
    if not 0 <= width <= MAX_WIDTH:
        raise BadInput(f"{source} says that a row has {width:,} numbers; a row can have at most {MAX_WIDTH:,}")
    return width


def parse_metadata(text: str | bytes, source: object) -> dict[str, Any]:
    """Parse the metadata of a file. Raises BadInput if it is not as kvemb writes it."""
    try:
        if len(text) > MAX_METADATA_BYTES:
            raise ValueError(f"it is longer than {MAX_METADATA_BYTES:,} bytes")
        metadata = json.loads(text)
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name", ""), str):
            raise ValueError("it must be an object with a name")
        if metadata.get("whole") and not isinstance(metadata.get("slots"), list):
            raise ValueError("it must list the slots")
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} has metadata that cannot be read: {error}") from error
    return metadata
