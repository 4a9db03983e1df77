"""Words: strings as their UTF-8 bytes, one after the other, and the hash that makes a key of a word.

Lists, NumPy's arrays of strings, and columns of Arrow, pandas and polars are read without a Python call for each
string, where their memory permits it. docs/reference/string_keys.md specifies the hash. Pure functions; thread-safe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.rows.tensors import is_of
from kvemb.threads.parallel import free_cores, run_each

_MAX_SEED = 2**64 - 1
# Words for which another thread pays: half a millisecond of work.
_WORDS_OF_A_THREAD = 65_536
# Objects that are read at once: half a millisecond in which no other thread has the GIL.
_PIECE = 32_768
# Bytes of an object for which there is room at first. Pages that are not written take no memory.
_ROOM = 32

_FILL = "fill it, for example with fillna('')"
_MISSING = {"values": f"{_FILL}, or pass missing= to hash_strings, the key of all missing values", "keys": _FILL}
_NO_STRINGS = {"values": "integers are keys without a hash", "keys": "convert them, as in keys.astype(str)"}


@dataclass(frozen=True)
class Words:
    """n strings in UTF-8, much as Arrow keeps them: word i is data[offsets[i]:offsets[i + 1]].

    data: uint8. offsets: int32 or int64 (n + 1,), ascending. present: bool (n,), which words are not missing; None: all
    are there; the bytes of a missing one have no meaning. shape: that of the values, whose elements are in C order.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[Any]
    present: npt.NDArray[np.bool_] | None
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def word(self, at: int) -> bytes:
        """Return one word."""
        return bytes(self.data[self.offsets[at] : self.offsets[at + 1]])

    def hashes(self, seed: int = 0) -> npt.NDArray[np.int64]:
        """Return the hash of every word (n,). A large column is split over the cores."""
        from kvemb.kernels.xxh3 import SECRET, secret_of
        from kvemb.rows import word_kernels

        hashes, secret = np.empty(len(self), np.int64), secret_of(seed)

        def part(begin: int, end: int) -> None:
            word_kernels.hash_words(
                self.data, self.offsets[begin : end + 1], SECRET, np.uint64(seed), secret,
                np.empty(8, np.uint64), hashes[begin:end],
            )  # fmt: skip

        threads = min(free_cores(), len(self) // _WORDS_OF_A_THREAD)
        if threads < 2:
            part(0, len(self))
            return hashes
        bounds = [len(self) * at // threads for at in range(threads + 1)]
        for failure in run_each([partial(part, *ends) for ends in pairwise(bounds)], threads):
            if failure is not None:
                raise failure
        return hashes


def hash_strings(
    values: Any, *, field: str | None = None, seed: int = 0, missing: int | None = None
) -> npt.NDArray[np.int64]:
    """Hash strings to keys: XXH3 in 64 bits of their UTF-8 bytes, which any language can compute.

    Different strings rarely share a key: of a million strings, two do with a probability of 3e-8, of a thousand million
    with one of 3 %. Strings are hashed as they are: ``"Paris"``, ``"paris"`` and ``"Paris "`` have different keys.

    Args:
        values: Strings of any shape: a list, a NumPy array of dtype ``U``, ``S``, ``T`` or object, a column of Arrow,
            pandas or polars, or one ``str``. ``bytes`` are hashed as they are, so text should be in UTF-8. NUL
            characters at the end of elements of dtypes ``U`` and ``S`` are no part of the string, as in NumPy. Columns
            of Arrow and polars, and those of pandas, are read fastest if pyarrow is installed.
        field: The field of the strings, such as ``"city"``. Equal strings in two fields have different keys. None:
            there is no field.
        seed: From 0 to 2**64 - 1. Equal strings with two seeds have different keys.
        missing: The key of None, NaN and null. None: they raise ValueError.

    Returns:
        int64 of the shape of values, all 64 bits of the hash: about half are negative. For a variable with
        ``key_dtype="uint64"`` take ``.view("uint64")``.

    Raises:
        TypeError: A value is not a string; or an argument has the wrong type.
        ValueError: A value is missing; a string has a surrogate, which UTF-8 lacks; or an argument is out of range.

    Example:
        >>> kvemb.hash_strings(["Paris", "Rome"]).tolist()
        [2873337149631258118, 3247286455497517163]
        >>> kvemb.hash_strings(["Paris", None], field="city", missing=0).tolist()
        [-1408199251541921216, 0]
    """
    seed = as_int(seed, "seed", 0, _MAX_SEED)
    if field is not None:
        if not isinstance(field, str):
            raise TypeError(f"field must be a str, got {brief(field)}")
        seed = int(as_words(field).hashes(seed)[0]) & _MAX_SEED
    filler = None if missing is None else as_int(missing, "missing", -(2**63), 2**63 - 1)
    words = as_words(values)
    keys = words.hashes(seed)
    if filler is None:
        check_none_missing(words)
    elif words.present is not None:
        keys[~words.present] = filler
    return keys.reshape(words.shape)


def check_none_missing(words: Words, what: str = "values") -> None:
    """Raise ValueError if a word is missing. what: the name of the words."""
    if words.present is not None:
        at = int(np.flatnonzero(~words.present)[0])
        told = f"the {what.removesuffix('s')} at position {at} is missing"
        raise ValueError(f"{told}{', and so has no key' if what == 'values' else ''}; {_MISSING[what]}")


def as_words(values: Any, what: str = "values") -> Words:
    """Return strings of any kind that hash_strings() takes. what: their name. Raises TypeError, ValueError."""
    if isinstance(values, (str, bytes)):
        return _of_objects([values], (), what)
    if type(values) is list or type(values) is tuple:
        if not any(isinstance(each, (list, tuple, np.ndarray)) for each in values[:1]):
            return _of_objects(values if type(values) is list else list(values), (len(values),), what)
        values = _nested(values, what)
    if (column := _arrow_column(values)) is not None:
        return _of_arrow(column, what)
    if is_of(values, "numpy.ma", "MaskedArray"):
        raise TypeError(f"{what} must be an array without a mask, got a masked array; pass {what}.filled('')")
    array = np.asarray(values)
    if array.dtype.kind in "US":
        return _of_fixed(array)
    if array.dtype.kind == "T":
        array = array.astype(object)
    if array.dtype != object:
        if not array.size:
            return _of_objects([], array.shape, what)
        raise TypeError(f"{what} must be strings, got {array.dtype.name}; {_NO_STRINGS[what]}")
    if array.shape == () and not isinstance(array.item(), (str, bytes)):
        kind = type(values).__name__
        raise TypeError(f"{what} must be an array, a column or a list of strings, got {kind}; pass list({what})")
    return _of_objects(np.ascontiguousarray(array).reshape(-1), array.shape, what)


def _nested(values: Any, what: str) -> npt.NDArray[Any]:
    """Return nested lists as an array of objects. Raises ValueError if they are ragged."""
    shape, inner = [], values
    while isinstance(inner, (list, tuple, np.ndarray)) and len(inner):
        shape.append(len(inner))
        inner = inner[0]
    array = np.array(values, object)
    if array.shape != tuple(shape):
        raise ValueError(f"{what} must be a rectangular list of strings, got rows of different lengths in {shape}")
    return array


def _of_objects(values: Any, shape: tuple[int, ...], what: str) -> Words:
    """Return strings of a list, or of an array (n,) of objects; str, bytes and missing ones may be mixed."""
    from kvemb.rows import word_kernels

    count, listed, missing, done = len(values), isinstance(values, list), object(), 0
    address = id(values) if listed else values.ctypes.data
    offsets, data, present = np.zeros(count + 1, np.int64), np.empty(_ROOM * count, np.uint8), np.ones(count, np.bool_)
    while done < count:
        end = min(done + _PIECE, count)
        done = word_kernels.gather(address, listed, id(missing), done, end, offsets, data, present)
        if done == end:
            continue
        value, at = values[done], int(offsets[done])  # for which there is no room, or which is no str or bytes
        encoded = _encoded(value, done, what)
        if is_missing(value):
            missing, present[done] = value, False
        if at + len(encoded) > len(data):
            grown = np.empty(2 * len(data) + len(encoded), np.uint8)
            grown[:at] = data[:at]
            data = grown
        data[at : at + len(encoded)] = np.frombuffer(encoded, np.uint8)
        offsets[done + 1] = at + len(encoded)
        done += 1
    return Words(data[: offsets[-1]], offsets, None if present.all() else present, shape)


def _encoded(value: Any, at: int, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(_surrogate(at, value)) from None
    if is_missing(value):
        return b""
    raise TypeError(
        f"{what} must be strings, got {type(value).__name__} {brief(value)} at position {at}; convert it with str()"
    )


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )


def _surrogate(at: int, value: str) -> str:
    return f"the string at position {at} must be one that UTF-8 can hold, got a surrogate in {brief(value)}"


def _of_fixed(array: npt.NDArray[Any]) -> Words:
    """Return the strings of an array of dtype U or S, without the NULs behind them."""
    from kvemb.rows import word_kernels

    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    unit = np.dtype(np.uint8 if flat.dtype.kind == "S" else np.uint32)
    codes = flat.view(unit).reshape(len(flat), flat.itemsize // unit.itemsize)
    offsets, data = np.zeros(len(flat) + 1, np.int64), np.empty(flat.nbytes, np.uint8)
    wrong = word_kernels.encode(codes, offsets, data)
    if wrong >= 0:
        raise ValueError(_surrogate(wrong, str(flat[wrong])))
    return Words(data[: offsets[-1]], offsets, None, array.shape)


def _arrow_column(values: Any) -> Any:
    """Return a column as pyarrow's array; None if it is none, or if pyarrow is not installed."""
    pandas = any(is_of(values, "pandas", name) for name in ("Series", "Index", "Categorical"))
    if pandas and (values.dtype == object or getattr(values.dtype, "storage", None) == "python"):
        return None  # NumPy returns its objects as they are
    if not pandas and not hasattr(values, "__arrow_c_stream__") and not hasattr(values, "__arrow_c_array__"):
        return None
    try:
        import pyarrow
    except ImportError:
        return None  # NumPy reads it, element by element
    if isinstance(values, (pyarrow.Array, pyarrow.ChunkedArray)):
        return values
    try:
        return pyarrow.array(values, from_pandas=True) if pandas else pyarrow.chunked_array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError):
        return None  # objects of several types, or no column


# Names of Arrow's types: those with 32-bit offsets, those with 64-bit ones, and those that are cast to the latter.
_SMALL, _LARGE = ("string", "binary"), ("large_string", "large_binary")
_CAST = re.compile(r"(string|binary)_view|fixed_size_binary\[\d+\]")


def _of_arrow(column: Any, what: str) -> Words:
    """Return the strings of a pyarrow.Array or ChunkedArray."""
    import pyarrow

    large, count = pyarrow.large_binary(), len(column)
    coded = pyarrow.types.is_dictionary(column.type)
    kind = str(column.type.value_type if coded else column.type)
    if kind == "null":
        return Words(np.empty(0, np.uint8), np.zeros(count + 1, np.int64), np.zeros(count, np.bool_), (count,))
    if kind not in _SMALL + _LARGE and not _CAST.fullmatch(kind):
        raise TypeError(f"{what} must be strings, got a column of {kind}; {_NO_STRINGS[what]}")
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    if coded and chunks:  # pyarrow casts dictionaries of some kinds of strings only
        chunks = [chunk.dictionary.cast(large).take(chunk.indices) for chunk in chunks]
    elif not chunks or _CAST.fullmatch(kind):
        chunks = [chunk.cast(large) for chunk in chunks] or [pyarrow.array([], large)]
    try:
        array = chunks[0] if len(chunks) == 1 else pyarrow.concat_arrays(chunks)
    except pyarrow.ArrowInvalid:  # more bytes than offsets of 32 bits can count
        array = pyarrow.concat_arrays([chunk.cast(large) for chunk in chunks])
    _, ends, data = array.buffers()
    offsets: npt.NDArray[Any] = np.zeros(1, np.int64)
    if ends is not None and ends.size:
        wide = np.int32 if str(array.type) in _SMALL else np.int64
        offsets = np.frombuffer(ends, wide)[array.offset : array.offset + count + 1]
    present = None if array.null_count == 0 else np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return Words(np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8), offsets, present, (count,))
