"""Short, one-line representations of values for messages. Pure functions; thread-safe."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

MAX_CHARACTERS = 100
# A longer int is shown by its length: Python refuses to print one of more than 4,300 digits.
_MAX_BITS = 256


class _Brief(reprlib.Repr):
    """repr() of the beginning of a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 60, 60, 90

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or the number of bits of a long int."""
        bits = x.bit_length()
        return repr(x) if bits <= _MAX_BITS else f"an int of {bits:,} bits"


def brief(value: object) -> str:
    """Return repr(value) for a message: one line, at most MAX_CHARACTERS, deeply nested values omitted."""
    text = " ".join(_Brief().repr(value).split())
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 4] + " ..."


def there_are(names: Iterable[object]) -> str:
    """Return what there is, for an error about a name that there is not: "there is users", "there are items, users"."""
    known = [str(name) for name in names]
    return f"there {'are' if len(known) > 1 else 'is'} {', '.join(known) or 'none'}"
