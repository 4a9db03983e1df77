"""A table as named columns, which is all that a file format sees of it.

A batch is a dict from a column's name to an array: (n,) where the column has no width, (n, width) where it has one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kvemb.tools.failures import BadInput

Batch = dict[str, npt.NDArray[Any]]
Place = Path | IO[bytes]

KEY, VALUE, SCORE, STEP, SCALE = "key", "value", "score", "step", "scale"
# Stands for the optimizer's slots, each of which is a column of its own name.
SLOTS = "slots"
# Numbers in a row, at most: a header that says more is damaged, or meant to exhaust the memory.
MOST_WIDTH = 1 << 20
# Of a batch that is read, unless a single row is longer.
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Column:
    """One column. width: numbers in a row, None for one that is no list."""

    name: str
    dtype: np.dtype[Any]
    width: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * (1 if self.width is None else self.width)


@dataclass
class Table:
    """Columns, of which there are always a key and a value. rows: how many, None where nobody knows yet.

    about: what is known beside the columns, as JSON can hold it.
    """

    columns: list[Column]
    rows: int | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def column(self, name: str) -> Column | None:
        """The column of a name."""
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
class Given:
    """What the user says of a source, None where it says it itself. See importing.import_table."""

    variable: str | None = None
    key_column: str | None = None
    value_column: str | None = None
    key_dtype: str | None = None
    value_dtype: str | None = None


def rows_at_once(row_bytes: int, most: int) -> int:
    """How many rows of so many bytes to read at once: as many as BATCH_BYTES hold, from 1 to `most`."""
    return max(1, min(most, BATCH_BYTES // max(1, row_bytes)))


def check_width(width: int, place: object) -> int:
    """Return how many numbers a row has. Raises BadInput where a source says what no row can have."""
    if not 0 <= width <= MOST_WIDTH:
        raise BadInput(f"{place} says that a row has {width:,} numbers; a row can have at most {MOST_WIDTH:,}")
    return width


def renamed(name: str, chosen: dict[str, str]) -> str:
    """Return what a source's column is called here. chosen: by KEY and VALUE, the source's names of these."""
    return next((ours for ours, theirs in chosen.items() if theirs == name), name)


def parse_about(text: str | bytes, place: object) -> dict[str, Any]:
    """Return what a file says of its table. Raises BadInput where that is not what kvemb writes."""
    try:
        about = json.loads(text)
        if not isinstance(about, dict) or not isinstance(about.get("name", ""), str):
            raise ValueError("it must be an object with a name")
        if about.get("whole") and not isinstance(about.get("slots"), list):
            raise ValueError("it must list the slots")
    except ValueError as error:
        raise BadInput(f"{place} describes its table in a way that cannot be read: {error}") from error
    return about
