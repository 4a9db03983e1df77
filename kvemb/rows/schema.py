"""The schema of a variable's rows: dtypes, dim, slots, and the place of each part in a row.

A row is the embedding, the name if keys are strings, then its optimizer slots, in one run of 8-byte words (FORMAT.md,
"Row"). All values here are constant after construction.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any

import numpy as np

from kvemb.checks.fields import integer, text
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_DIM, MAX_STRING_BYTES

KEY_DTYPES = ("int64", "int32", "uint64")
# The key_dtype of variables whose keys are strings; their hashes are int64.
STRING = "string"
VALUE_DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64")
WORD_BYTES = 8
# The bytes of a string key, if none are given.
DEFAULT_NAME_BYTES = 32


def rounded_name_bytes(given: Any) -> int:
    """Return a name_bytes argument, rounded up to whole words. Raises TypeError, ValueError."""
    return -(-as_int(given, "name_bytes", 1, MAX_STRING_BYTES) // WORD_BYTES) * WORD_BYTES


def key_dtype(spec: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a key_dtype argument, or raise TypeError. Strings have int64, the dtype of hashes."""
    return np.dtype(np.int64) if is_string(spec) else _one_of(spec, (*KEY_DTYPES, STRING), "key_dtype", "")


def is_string(spec: Any) -> bool:
    """Whether a key_dtype argument means strings: "string", str, NumPy's StringDType or TensorFlow's tf.string."""
    named = spec if isinstance(spec, str) else getattr(spec, "name", None)  # tf.string has this name
    return spec is str or named == STRING or type(spec) is np.dtypes.StringDType


def value_dtype(spec: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a value_dtype argument, or raise TypeError."""
    return _one_of(spec, VALUE_DTYPES, "value_dtype", "")


def _one_of(spec: Any, names: tuple[str, ...], argument: str, advice: str) -> np.dtype[Any]:
    if isinstance(spec, numbers.Integral) and not isinstance(spec, bool):
        raise TypeError(f"{argument} must be one of {', '.join(names)}, got {spec}; did you mean dim={spec}?")
    try:
        found = dtype_of(spec)
    except TypeError as error:
        raise TypeError(f"{argument} must be one of {', '.join(names)}, got {spec!r}{advice}") from error
    if found.name not in names or found.byteorder == ">":
        raise TypeError(f"{argument} must be one of {', '.join(names)}, got {spec!r}{advice}")
    return found


def dtype_of(spec: Any) -> np.dtype[Any]:
    """Return np.dtype(spec); also accepts the name "bfloat16" if ml_dtypes is installed."""
    if isinstance(spec, str) and spec == "bfloat16":
        from kvemb.errors import BackendUnavailable
        from kvemb.installed import pip_install

        try:
            import ml_dtypes
        except ImportError as error:
            raise BackendUnavailable(f"bfloat16 needs ml_dtypes; run: {pip_install('bfloat16')}") from error
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    if spec is None:
        raise TypeError("None is not a dtype")
    found: np.dtype[Any] = np.dtype(spec)
    return found


@dataclass(frozen=True)
class SlotShape:
    """A slot of a row: its name, and its number of elements."""

    name: Annotated[str, text(r"\w{1,100}", "a name of a slot")]
    width: Annotated[int, integer(1, MAX_DIM)]


@dataclass(frozen=True)
class Schema:
    """The properties of a variable that determine the bytes of its rows.

    slots: the optimizer's slots, in their order in a row. Slots have the value dtype, but float32 for 16-bit values, in
    which an accumulator would stop growing. name_bytes: a multiple of 8, the bytes of a row's name, which is its string
    key (kvemb.rows.names); 0: keys are integers.
    """

    key_dtype: np.dtype[Any]
    value_dtype: np.dtype[Any]
    dim: int
    slots: tuple[SlotShape, ...] = ()
    name_bytes: int = 0

    @property
    def key_kind(self) -> str:
        """The name of the dtype of keys: "string", or that of key_dtype."""
        return STRING if self.name_bytes else self.key_dtype.name

    @property
    def public_key_dtype(self) -> np.dtype[Any]:
        """The dtype of arrays of keys that users get: object for strings."""
        return np.dtype(object) if self.name_bytes else self.key_dtype

    @cached_property
    def width(self) -> int:
        """The elements of an embedding with the name behind it, in the value dtype."""
        return self.dim + self.name_bytes // self.value_dtype.itemsize

    @cached_property
    def slot_dtype(self) -> np.dtype[Any]:
        """The dtype of every slot."""
        return self.value_dtype if self.value_dtype.itemsize > 2 else np.dtype(np.float32)

    @cached_property
    def slot_column(self) -> int:
        """The column of the first slot, in elements of slot_dtype."""
        size = self.slot_dtype.itemsize
        return -(-self.width * self.value_dtype.itemsize // size)

    @cached_property
    def slot_columns(self) -> tuple[int, ...]:
        """The first column of each slot, in elements of slot_dtype, and then the first column after the slots."""
        return tuple(accumulate((slot.width for slot in self.slots), initial=self.slot_column))

    @cached_property
    def row_words(self) -> int:
        """The number of 8-byte words of a row, padding included."""
        if not self.slots:
            return -(-self.width * self.value_dtype.itemsize // WORD_BYTES)
        return -(-self.slot_columns[-1] * self.slot_dtype.itemsize // WORD_BYTES)

    @cached_property
    def kernel_dtype(self) -> np.dtype[Any]:
        """The dtype in which kernels see values: the value dtype, or 16-bit integers in place of 16-bit floats."""
        stand_ins: dict[str, np.dtype[Any]] = {"float16": np.dtype(np.uint16), "bfloat16": np.dtype(np.int16)}
        return stand_ins.get(self.value_dtype.name, self.value_dtype)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row, the same in a cell and in a record."""
        return self.row_words * WORD_BYTES
