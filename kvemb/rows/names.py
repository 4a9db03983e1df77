"""Names: string keys as rows hold them, each in name_bytes bytes behind the embedding (FORMAT.md, "Row").

A name is the string's UTF-8, padded with bytes of 0xFF, which no UTF-8 has. Zeros stand where there is no row. A row is
found by the hash of its name (kvemb.rows.words), so each call compares the name that it was given with the row's. Pure
functions; thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.errors import HashCollision
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Unique
from kvemb.rows.host_arrays import public_keys
from kvemb.rows.words import Words, as_words, check_none_missing

PAD = 0xFF  # on disk; do not change
Names = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class NamedKeys:
    """String keys: their hashes, keys (n,), and names (n, name_bytes). shape: as they were given."""

    keys: Keys
    names: Names
    shape: tuple[int, ...]

    def check_one_name_each(self) -> None:
        """Raise HashCollision if two different strings have the same key."""
        distinct = Unique(self.keys)
        if distinct.repeated:
            check_names(self.keys, self.names, self.names[distinct.sums.first][distinct.inverse])


def named_keys(strings: Any, name_bytes: int) -> NamedKeys:
    """Return strings of any kind that hash_strings() takes. Raises TypeError; ValueError, also for a longer string."""
    words = as_words(strings, "keys")
    check_none_missing(words, "keys")
    return NamedKeys(words.hashes(), _packed(words, name_bytes), words.shape)


def _packed(words: Words, name_bytes: int) -> Names:
    """Return words as names (n, name_bytes). Raises ValueError."""
    from kvemb.rows import word_kernels

    names = np.full((len(words), name_bytes), PAD, np.uint8)
    wrong, only_ascii = word_kernels.pack(words.data, words.offsets, names)
    if wrong >= 0:
        given = bytes(words.data[words.offsets[wrong] : words.offsets[wrong + 1]])
        raise ValueError(_refusal(given, wrong, name_bytes))
    if not only_ascii:  # no word begins within a character, so all of them are UTF-8 if their bytes together are
        given = bytes(words.data[words.offsets[0] : words.offsets[-1]])
        try:
            given.decode()
        except UnicodeDecodeError as error:
            at = int(np.searchsorted(words.offsets - words.offsets[0], error.start, "right")) - 1
            wrong_word = bytes(words.data[words.offsets[at] : words.offsets[at + 1]])
            raise ValueError(f"the key at position {at} must be text in UTF-8, got {brief(wrong_word)}") from None
    return names


def _refusal(given: bytes, at: int, name_bytes: int) -> str:
    told = f"the key at position {at}"
    if len(given) > name_bytes:
        return (
            f"{told} must have at most name_bytes={name_bytes} bytes in UTF-8, got {len(given)}: "
            f"{brief(given.decode(errors='replace'))}; make the variable with a larger name_bytes"
        )
    if b"\0" in given:
        return f"{told} must have no NUL character, got {brief(given.decode(errors='replace'))}"
    return f"{told} must be text in UTF-8, got {brief(given)}"


def strings_of(names: Names) -> npt.NDArray[Any]:
    """Return the strings (n,) of names, an array of str objects."""
    inside = names != PAD
    bounds = [0, *np.cumsum(inside.sum(axis=1)).tolist()]
    joined = names[inside].tobytes()
    strings = np.empty(len(names), object)
    if joined.isascii():
        text = joined.decode()
        strings[:] = [text[begin:end] for begin, end in pairwise(bounds)]
    else:
        strings[:] = [joined[begin:end].decode(errors="replace") for begin, end in pairwise(bounds)]
    return strings


def keys_of(rows: RowBlock) -> npt.NDArray[Any]:
    """Return the keys (n,) of rows as users see them: in the key dtype, or as an array of str objects."""
    return strings_of(rows.names()) if rows.schema.name_bytes else public_keys(rows.keys, rows.schema.key_dtype)


def with_names(values: npt.NDArray[Any], names: Names) -> npt.NDArray[Any]:
    """Return values (n, m) of a dtype of at most 8 bytes with names (n, name_bytes) behind them, in that dtype."""
    count, columns = values.shape
    wide = np.empty((count, columns + names.shape[1] // values.dtype.itemsize), values.dtype)
    wide[:, :columns] = values
    wide.view(np.uint8)[:, columns * values.dtype.itemsize :] = names
    return wide


def names_behind(wide: npt.NDArray[Any], columns: int) -> Names:
    """Return the names (n, name_bytes) behind the first columns of what with_names() returned."""
    return np.ascontiguousarray(wide[:, columns:]).view(np.uint8)


def check_names(keys: Keys, names: Names, stored: Names) -> None:
    """Raise HashCollision if a row with one of the keys (n,) has another name. stored: zeros where there is no row."""
    differs = (names.view(np.uint64) != stored.view(np.uint64)).any(axis=1)
    if not differs.any():
        return
    for at in np.flatnonzero(differs):
        if stored[at].any():
            mine, other = strings_of(np.stack([names[at], stored[at]])).tolist()
            raise HashCollision(
                f"the strings {brief(mine)} and {brief(other)} have the same hash, {keys[at]}, so they cannot both be "
                "keys of one variable; write one of them in another way, for example with a prefix"
            )
