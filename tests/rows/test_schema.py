"""Schemas: which dtypes there are, and where each part of a row lies."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from schemas import dtype_named, schema_of

from kvemb.rows.schema import KEY_DTYPES, VALUE_DTYPES, Schema, SlotShape, is_string, key_dtype, value_dtype

# Dtypes.


@pytest.mark.parametrize("name", KEY_DTYPES)
def test_key_dtypes_go_by_name_type_and_dtype(name):
    for spec in (name, np.dtype(name), getattr(np, name)):
        assert key_dtype(spec) == np.dtype(name)


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_value_dtypes_go_by_name_and_dtype(name):
    dtype = dtype_named(name)
    assert value_dtype(name).name == name
    assert value_dtype(dtype) == value_dtype(name)


@pytest.mark.parametrize("spec", ["str", bytes, "S8", "U4", "float32", "int16", "uint32", bool, object, None, "no"])
def test_other_keys_are_refused_by_name(spec):
    with pytest.raises(TypeError, match=r"key_dtype must be one of int64, int32, uint64, string, got"):
        key_dtype(spec)


@pytest.mark.parametrize("spec", ["str", "uint8", "int16", "uint64", "complex64", bool, object, None, "no", ">f4", "g"])
def test_other_values_are_refused_by_name(spec):
    with pytest.raises(TypeError, match="value_dtype must be one of float32"):
        value_dtype(spec)


# Rows.


@pytest.mark.parametrize(
    ("name", "dim", "widths", "slot_dtype", "columns", "words"),
    [
        *(("float32", 4, [], "float32", [4], 2), ("float32", 3, [], "float32", [3], 2)),
        *(("float32", 3, [3], "float32", [3, 6], 3), ("float32", 3, [3, 3], "float32", [3, 6, 9], 5)),
        *(("float64", 3, [3], "float64", [3, 6], 6), ("int8", 1, [], "float32", [1], 1)),
        *(("int8", 9, [], "float32", [3], 2), ("float16", 5, [], "float32", [3], 2)),
        *(("float16", 5, [5], "float32", [3, 8], 4), ("bfloat16", 5, [5, 5], "float32", [3, 8, 13], 7)),
        *(("int64", 2, [], "int64", [2], 2), ("float16", 1, [1], "float32", [1, 2], 1)),
        *(("float32", 3, [1], "float32", [3, 4], 2), ("float32", 4, [1], "float32", [4, 5], 3)),
        *(("float16", 3, [3, 3, 1], "float32", [2, 5, 8, 9], 5), ("float64", 2, [2, 2, 1], "float64", [2, 4, 6, 7], 7)),
        ("float32", 3, [1, 7, 2], "float32", [3, 4, 11, 13], 7),
    ],
)
def test_where_the_parts_of_a_row_lie(name, dim, widths, slot_dtype, columns, words):
    schema = schema_of(name, dim, widths)
    assert schema.slot_dtype == np.dtype(slot_dtype)
    assert (schema.slot_column, list(schema.slot_columns)) == (columns[0], columns)
    assert schema.row_words == words
    assert schema.row_bytes == 8 * words


@pytest.mark.parametrize("spec", ["string", str, np.dtypes.StringDType(), SimpleNamespace(name="string")])
def test_strings_are_named_as_numpy_tensorflow_and_python_name_them(spec):
    assert is_string(spec)
    assert key_dtype(spec) == np.int64


def test_a_name_stands_between_embedding_and_slots():
    schema = Schema(np.dtype(np.int64), np.dtype(np.float16), 3, (SlotShape("sum", 3),), name_bytes=8)
    assert (schema.width, schema.slot_columns, schema.row_words) == (7, (4, 7), 4)
    assert (schema.key_kind, schema.public_key_dtype) == ("string", np.dtype(object))
    assert Schema(np.dtype(np.int64), np.dtype(np.int8), 3, (), name_bytes=8).row_bytes == 16
