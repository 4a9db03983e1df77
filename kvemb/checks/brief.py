"""Values in messages: on one line, short, whatever they are. Pure; any thread may use it."""

from __future__ import annotations

import reprlib

MOST_CHARACTERS = 100
# Of an int that is longer, only the length is told: Python refuses to print one of more than 4,300 digits.
_MOST_BITS = 256


class _Brief(reprlib.Repr):
    """repr() of the beginning of a value."""

    maxlevel = 3
    maxstring = maxother = maxlong = 60

    def repr_int(self, x: int, level: int) -> str:
        """Return the digits, or how many bits they would be."""
        bits = x.bit_length()
        return repr(x) if bits <= _MOST_BITS else f"an int of {bits:,} bits"


def brief(value: object) -> str:
    """Return repr(value) for a message: on one line, at most MOST_CHARACTERS, nested values left out."""
    factory = _Brief()
    factory.maxlevel, factory.maxstring, factory.maxother, factory.maxlong = 3, 60, 60, 90
    text = " ".join(factory.repr(value).split())
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 4] + " ..."
