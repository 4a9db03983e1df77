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
from kvemb.rows.schema import DEFAULT_NAME_BYTES, rounded_name_bytes
from kvemb.rows.words import Words, as_words, check_none_missing

PAD = 0xFF  # on disk; do not change
Names = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class StringKeys:
    """Keys of a variable with ``key_dtype="string"``, ready for its calls. ``kvemb.string_keys`` makes them of strings.

    They hold arrays alone, so they can be pickled. ``keys[i:j]``, a mask (n,) or positions select some of them, which
    are flat, and ``len`` counts them.

    Args:
        keys: The strings' hashes, int64 (n,).
        names: The strings' UTF-8, uint8 (n, name_bytes), padded with 0xFF.
        shape: The shape in which the strings were given.
    """

    keys: Keys
    names: Names
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, places: Any) -> StringKeys:
        keys = self.keys[places]
        return StringKeys(keys, self.names[places], keys.shape)

    def strings(self) -> npt.NDArray[Any]:
        """Return the strings.

        Returns:
            An array of ``str`` objects, of the shape in which they were given.
        """
        return strings_of(self.names).reshape(self.shape)


def string_keys(values: Any, *, name_bytes: int = DEFAULT_NAME_BYTES) -> StringKeys:
    """Make keys of strings, for variables with ``key_dtype="string"``, away from their store.

    Calls take strings as they are. Reading, checking and hashing them takes time, which workers of a ``DataLoader`` can
    spend instead: every call takes what this returns in place of strings.

    Args:
        values: Strings of any shape and kind that ``kvemb.hash_strings`` takes. None may be missing.
        name_bytes: That of the variable.

    Returns:
        The keys, of the shape of values.

    Raises:
        TypeError: A value is not a string; or an argument has the wrong type.
        ValueError: A string is longer than ``name_bytes`` in UTF-8, has a NUL, is missing, or UTF-8 lacks it.

    Example:
        >>> keys = kvemb.string_keys(["Paris", "Rome"])
        >>> (len(keys), keys.shape, keys[1:].strings().tolist())
        (2, (2,), ['Rome'])
    """
    return named_keys(values, rounded_name_bytes(name_bytes))


def named_keys(strings: Any, name_bytes: int) -> StringKeys:
    """Return strings of any kind that hash_strings() takes, or those of StringKeys.

    Raises TypeError; ValueError, also for a longer string.
    """
    if isinstance(strings, StringKeys):
        if strings.names.shape[1] != name_bytes:
            raise ValueError(
                f"keys were made with name_bytes={strings.names.shape[1]}, but the variable has {name_bytes}; make "
                f"them with kvemb.string_keys(..., name_bytes={name_bytes})"
            )
        return strings
    words = as_words(strings, "keys")
    check_none_missing(words, "keys")
    return StringKeys(words.hashes(), _packed(words, name_bytes), words.shape)


def distinct_names(given: StringKeys) -> Unique:
    """Return the distinct hashes. Raises HashCollision if two different strings have the same one."""
    found = Unique(given.keys)
    if found.repeated:
        check_names(given.keys, given.names, given.names[found.sums.first][found.inverse])
    return found


def other_than(given: StringKeys, one: StringKeys) -> npt.NDArray[np.bool_]:
    """Return which keys (n,) are not `one`, a single key."""
    same = given.keys == one.keys
    same[same] = (given.names[same] == one.names).all(axis=1)
    different: npt.NDArray[np.bool_] = ~same
    return different


def joined_names(parts: list[StringKeys]) -> StringKeys:
    """Return the keys of all parts, flat."""
    keys = np.concatenate([each.keys for each in parts])
    return StringKeys(keys, np.concatenate([each.names for each in parts]), keys.shape)


def _packed(words: Words, name_bytes: int) -> Names:
    """Return words as names (n, name_bytes). Raises ValueError."""
    from kvemb.rows import word_kernels

    names = np.full((len(words), name_bytes), PAD, np.uint8)
    wrong, only_ascii = word_kernels.pack(words.data, words.offsets, names)
    if wrong >= 0:
        raise ValueError(_refusal(words.word(wrong), wrong, name_bytes))
    if not only_ascii:  # no word begins within a character, so all of them are UTF-8 if their bytes together are
        given = bytes(words.data[words.offsets[0] : words.offsets[-1]])
        try:
            given.decode()
        except UnicodeDecodeError as error:
            at = int(np.searchsorted(words.offsets - words.offsets[0], error.start, "right")) - 1
            raise ValueError(_refusal(words.word(at), at, name_bytes)) from None
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
