"""Keys: words of files that are integers, the file that --keys names, and the order of keys in a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.destinations import resumed, uncompressed
from kvemb.tools.failures import BadInput


def integers(words: Any, dtype: np.dtype[Any], place: Callable[[int], str], source: object) -> Any:
    """Return an Arrow array of words, each an integer in decimal digits, as (n,) in dtype.

    place(position): where a word is. Raises BadInput, which names the first word that is none: '1_2' and '0x10' are
    none, which int() and Arrow would take.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim(words, " ")
    are = np.asarray(pc.match_substring_regex(trimmed, "^-?[0-9]+$"))
    if not are.all():
        at = int(np.argmin(are))
        raise BadInput(
            f"{source}, {place(at)}: the key {str(words[at])[:64]!r} is not an integer; import words as strings, with "
            "--key-dtype string, or their hashes, with --hash-keys"
        )
    try:
        return np.asarray(trimmed.cast(pa.from_numpy_dtype(dtype)))
    except pa.ArrowInvalid:
        limits = np.iinfo(dtype)
        at = next(at for at, word in enumerate(trimmed) if not limits.min <= int(str(word)) <= limits.max)
        raise BadInput(
            f"{source}, {place(at)}: the key {str(words[at])[:64]} does not fit {dtype.name}; give another --key-dtype"
        ) from None


def in_order(keys: Any) -> Any:
    """Return keys (n,), of strings the hashes: the order of rows in a table is that of these numbers."""
    return kvemb.hash_strings(keys) if keys.dtype == object else keys


def read_keys(path: Path) -> Any:
    """Return the keys in a .npy file, integers (n,), or those of a text file, an Arrow array of its lines.

    Raises BadInput.
    """
    import pyarrow as pa

    if uncompressed(path.name).endswith(".npy"):
        try:
            keys = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # a damaged header can raise anything
            raise BadInput(f"{path} cannot be read: {error}") from error
        if not isinstance(keys, np.ndarray) or keys.ndim != 1 or keys.dtype.kind not in "iu":
            raise BadInput(f"{path} must hold integers of the shape (n,); or write one key a line to a text file")
        return keys
    try:
        with resumed(path) as file:
            lines = file.read().decode().split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} has bytes that are not UTF-8; save it in UTF-8") from error
    lines = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if "" in lines:
        raise BadInput(f"{path} has no key in line {lines.index('') + 1:,}; write one key a line")
    return pa.array(lines, pa.large_string())
