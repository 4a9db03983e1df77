"""Keys and values that callers give: what converts to them, exactly, and what is refused."""

from __future__ import annotations

import math
import sys
from types import ModuleType

import numpy as np
import pytest
from schemas import dtype_named

from kvemb.rows.device_arrays import is_tensor
from kvemb.rows.host_arrays import as_keys, as_values
from kvemb.rows.schema import VALUE_DTYPES

INT64, UINT64, INT32 = (np.dtype(name) for name in ("int64", "uint64", "int32"))


# Keys.


@pytest.mark.parametrize(
    "keys",
    [3, [1, 2], [[1, 2], [3, 4]], (), [], [[]], np.int8(3), np.arange(3, dtype=np.int32), range(4), np.empty((0, 5))],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [INT64, UINT64, INT32], ids=str)
def test_keys_keep_their_shape(keys, dtype):
    if dtype == UINT64 and isinstance(keys, (np.ndarray, np.generic)) and np.size(keys):
        keys = keys.astype(np.uint8)
    got = as_keys(keys, dtype)
    assert got.dtype == np.int64
    assert got.shape == np.shape(keys)
    assert got.tolist() == np.asarray(keys).astype(np.int64).tolist()


def test_unsigned_keys_keep_their_bits():
    assert as_keys([0, 2**63, 2**64 - 1], UINT64).tolist() == [0, -(2**63), -1]
    assert as_keys([[1], [2**63]], UINT64).tolist() == [[1], [-(2**63)]]
    assert as_keys(np.uint64(2**64 - 1), UINT64).tolist() == -1
    assert as_keys(np.uint64(5), UINT64).shape == ()


def test_any_layout_of_memory_is_accepted():
    keys = np.arange(24).reshape(4, 6)
    repeated = np.broadcast_to(keys[0], (3, 6))
    for view in (keys.T, keys[::2, ::-3], np.asfortranarray(keys), keys.astype(">i8"), repeated):
        got = as_keys(view, INT64)
        assert got.flags.c_contiguous
        assert got.tolist() == view.tolist()


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        *(([1.0], INT64), ([1.5], INT64), (np.array([1.0]), INT64), (np.array([1], np.uint64), INT64)),
        *((np.array([1]), INT32), (np.array([1]), UINT64), ([2**63], INT64), ([2**31], INT32), ([-1], UINT64)),
        *((["a"], INT64), ([None], INT64), ([b"ab"], INT64), ([2**64], UINT64), (1j, INT64), ({1, 2}, INT64)),
        *((np.array([1, 2], object), INT64), (np.zeros(1, [("id", "i8")]), INT64), ([2**70], INT64)),
        *((np.array([1], "M8[s]"), INT64), (np.array([1], "m8[s]"), INT64), ([-1, 2**63], INT64)),
        *((flags, dtype) for dtype in (INT64, UINT64, INT32) for flags in (True, np.ones(2, bool))),
    ],
    ids=repr,
)
def test_keys_that_would_lose_information_are_refused(keys, dtype):
    with pytest.raises(TypeError, match=f"keys must (be|fit) {dtype.name}"):
        as_keys(keys, dtype)


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        (["a"], r"got str, which would lose information; make keys of strings with kvemb.hash_strings\(keys\)"),
        (np.array([b"a"]), r"got bytes, .*kvemb.hash_strings\(keys\)"),
        (np.array([5, "a"], object), r"got object, .*kvemb.hash_strings\(keys\)"),
        ([1.0, float("nan")], "the key at position 1 is missing .*: leave it out"),
        ([[1, 2], [None, 3]], "the key at position 2 is missing"),
        (np.array([1, float("nan")], object), "the key at position 1 is missing"),
        ([1.5], "convert with keys.astype"),
        (np.array(["2020-01-01"], "M8[D]"), "number them"),
        ({1, 2}, "give an array or a list of numbers, not a set"),
        ((each for each in (1, 2)), "give an array or a list of numbers, not a generator"),
        (np.ones(2, bool), "got bool; if it is a mask, pass the keys"),
    ],
    ids=["str", "bytes", "objects", "NaN", "None", "NaN of objects", "float", "date", "set", "generator", "mask"],
)
def test_the_advice_fits_what_was_given(keys, advice):
    with pytest.raises(TypeError, match=advice):
        as_keys(keys, INT64)


def test_text_is_no_value():
    with pytest.raises(TypeError, match=r"values must be float32, got .*; give an array of numbers"):
        as_values(["a"], np.dtype(np.float32), (1,))


def test_ragged_lists_are_refused():
    with pytest.raises(ValueError, match="keys must be a rectangular array"):
        as_keys([[1], [2, 3]], INT64)


# Values.


def test_values_are_of_one_shape_exactly():
    float32 = np.dtype(np.float32)
    assert as_values([1, 2.5], float32, (2,)).tolist() == [[1.0, 2.5]]
    assert as_values(np.zeros((2, 3, 4), np.float32), float32, (2, 3, 4)).shape == (6, 4)
    assert as_values(np.zeros((0, 4)), float32, (0, 4)).shape == (0, 4)
    for shape in [(), (2,), (1, 3), (3, 2), (2, 3, 1), (6,)]:
        with pytest.raises(ValueError, match=r"grads must have shape keys.shape \+ \(dim,\) = \(2, 3\)"):
            as_values(np.zeros(shape, np.float32), float32, (2, 3), "grads")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        *((np.zeros(2, np.float32), "int32"), ([0.5, 1.0], "int8"), ([1, 200], "int8"), ([1j, 0], "float32")),
        *((["a", "b"], "float32"), ([None, 1.0], "float32"), (np.array([1, 2**31]), "int32")),
        *((np.zeros(2, np.complex64), "bfloat16"), (np.zeros(2, "m8[s]"), "int64"), (np.zeros(2, object), "float32")),
        *((np.array([0, 200]), "int8"), (np.array([0, -129], np.int16), "int8")),
        *((np.array([2**63, 2**64 - 1], np.uint64), "int64"), (np.zeros(2, [("value", "f4")]), "float32")),
    ],
    ids=repr,
)
def test_values_of_another_kind_or_out_of_range_are_refused(values, name):
    with pytest.raises(TypeError, match=r"values must (be|fit)"):
        as_values(values, dtype_named(name), (2,))


@pytest.mark.parametrize("name", VALUE_DTYPES)
@pytest.mark.parametrize("given", ["float64", "float32", "float16", "int64", "uint8", "bool"])
def test_values_are_cast_as_numpy_assigns_them(given, name):
    dtype = dtype_named(name)
    array = np.array([[0, 1], [0.1, 100.3]]).astype(given)
    if dtype.kind in "iu" and array.dtype.kind == "f":
        with pytest.raises(TypeError, match=rf"values must be {name}, got {given}, which would lose information"):
            as_values(array, dtype, (2, 2))
        return
    assigned = np.empty((2, 2), dtype)
    assigned[:] = array
    got = as_values(array, dtype, (2, 2))
    assert (got.dtype, got.tobytes()) == (dtype, assigned.tobytes())


@pytest.mark.parametrize(
    ("value", "name"), [(1e39, "float32"), (-1e300, "float32"), (65_520.0, "float16"), (3.4e38, "bfloat16")]
)
def test_no_finite_value_becomes_an_infinity(value, name):
    dtype = dtype_named(name)
    for values in ([value], np.array([value])):
        with pytest.raises(ValueError, match=f"values must fit {name}, got"):
            as_values(values, dtype, (1,))
    infinite = np.array([np.inf, -np.inf, np.nan])
    assert np.isinf(as_values(infinite, dtype, (3,)).astype("f8")).tolist() == [[True, True, False]]


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_pythons_numbers_take_the_dtype_they_are_stored_in(name):
    dtype = dtype_named(name)
    assert as_values([1, 2, 3], dtype, (3,)).tolist() == [[1, 2, 3]]
    if dtype.kind not in "iu":
        got = as_values([0.1, math.nan, -math.inf], dtype, (3,))
        assert got.tobytes() == np.array([[0.1, math.nan, -math.inf]]).astype(dtype).tobytes()


@pytest.mark.parametrize("module", ["torch", "numpy.ma"])
def test_arrays_are_taken_while_another_thread_imports_a_module_that_has_others(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, ModuleType(module))  # it is there from the beginning of its import
    assert as_keys([1, 2], np.dtype(np.int64)).tolist() == [1, 2]
    assert not is_tensor([1, 2])
