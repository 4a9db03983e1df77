"""Initializers: the values they promise for ever, and what they refuse."""

from __future__ import annotations

import json
import math
import statistics
import struct
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from schemas import dtype_named

from kvemb import initializers
from kvemb.errors import UnsupportedFormat
from kvemb.initializers import (
    Constant,
    GlorotUniform,
    Initializer,
    Ones,
    RandomNormal,
    RandomUniform,
    Row,
    TruncatedNormal,
    Zeros,
    as_initializer,
    initializer_from_json,
)
from kvemb.initializers.base import agree

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int32", "int64")
KEYS = np.array([0, 1, -1, -(2**63), 2**63 - 1, 123456789012345])
RANDOM = [RandomUniform(seed=0), RandomNormal(seed=0), TruncatedNormal(seed=0), GlorotUniform(0)]
EVERY = [Zeros(), Ones(), Constant(0.25), Row((1.0, 2.0, -3.5)), *RANDOM]


def ids(value):
    return "cdf" if callable(value) and not hasattr(value, "rows") else repr(value)


# A row is a promise: these values may never change.

GOLDEN = {
    RandomUniform(seed=0): [
        "-0x1.541590febef7cp-5",
        "0x1.bbd5ce42d6c50p-9",
        "0x1.070f30ff2a274p-5",
        "0x1.18a3e6e172088p-6",
    ],
    RandomUniform(seed=2**64 - 1): [
        *("0x1.cb439d2830514p-6", "-0x1.817a9e78da8cdp-5", "0x1.ff10601b9dd00p-9", "-0x1.eb1aeaff9cb94p-6")
    ],
    RandomNormal(seed=0): [
        "-0x1.1936d6afffabdp-4",
        "0x1.16779e9c3b08dp-8",
        "0x1.78ae5e3736c05p-5",
        "0x1.6b4ba0a92b9ddp-6",
    ],
    RandomNormal(1, 2, 3): [
        *("0x1.14b37ee7f0de9p+1", "0x1.2e4302733c3e6p+1", "0x1.b76d909f8de1bp-1", "0x1.33f5d8025f57ep+1")
    ],
    TruncatedNormal(seed=7): [
        *("-0x1.1174fbefbe022p-5", "0x1.e607e6d50f857p-6", "0x1.598208475a794p-8", "0x1.217081f7bdd90p-5")
    ],
    GlorotUniform(0): ["-0x1.a91af53e6eb5ap-1", "0x1.1565a0e9c63b0p-4", "0x1.48d2fd3ef4b10p-1", "0x1.5ecce099ce8a8p-2"],
}


@pytest.mark.parametrize("initializer", GOLDEN, ids=ids)
def test_the_rows_of_a_seed_are_pinned_to_the_bit(initializer):
    rows = initializer.rows(KEYS, 3, np.float64)
    assert [float(x).hex() for x in (rows[0, 0], rows[2, 1], rows[3, 2], rows[4, 0])] == GOLDEN[initializer]


def mix(h):
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    h = (h ^ (h >> 27)) * 0x94D049BB133111EB % 2**64
    return h ^ (h >> 31)


def word(seed, key, column):
    """The 64 bits of an element, in Python's integers."""
    step = 0x9E3779B97F4A7C15
    start = mix((seed + step) % 2**64)
    state = mix((mix(start ^ key % 2**64) + start) % 2**64)
    return mix((state + (column + 1) * step) % 2**64)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_uniform_rows_are_the_hash_in_plain_integers(seed):
    for initializer, end, dim in ((RandomUniform(-1.0, 1.0, seed), 1.0, 5), (GlorotUniform(seed), 0.5, 12)):
        draws = [[(word(seed, int(key), j) >> 11) * 2.0**-53 for j in range(dim)] for key in KEYS]
        np.testing.assert_array_equal(initializer.rows(KEYS, dim, np.float64), 2 * end * np.array(draws) - end)


@pytest.mark.parametrize("initializer", [RandomNormal(0, 1, 9), TruncatedNormal(0, 1, 9)], ids=ids)
def test_normal_rows_are_the_quantiles_of_the_hash(initializer):
    keys = np.arange(500)
    rows = initializer.rows(keys, 8, np.float64)
    mass = 1.0 if isinstance(initializer, RandomNormal) else math.erf(math.sqrt(2))
    for key in keys:
        for j in range(8):
            q = ((word(9, int(key), j) >> 12) + 0.5) * 2.0**-52 - 0.5
            assert rows[key, j] == pytest.approx(statistics.NormalDist().inv_cdf(0.5 + q * mass), rel=1e-12, abs=1e-15)


# A pure function of (seed, key, column).


@pytest.mark.parametrize("initializer", EVERY, ids=ids)
@pytest.mark.parametrize("name", FLOATS)
def test_rows_do_not_depend_on_the_batch(initializer, name):
    dtype = dtype_named(name)
    keys = np.concatenate([KEYS, np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 500), KEYS])
    rows = initializer.rows(keys, 3, dtype)
    assert rows.shape == (len(keys), 3)
    assert rows.dtype == dtype
    assert rows.flags.c_contiguous
    assert rows.flags.writeable
    order = np.random.default_rng(2).permutation(len(keys))
    assert initializer.rows(keys[order], 3, dtype).tobytes() == rows[order].tobytes()
    assert initializer.rows(keys[::2], 3, dtype).tobytes() == rows[::2].tobytes()
    one_by_one = [initializer.rows(keys[i : i + 1], 3, dtype) for i in range(20)]
    assert np.concatenate(one_by_one).tobytes() == rows[:20].tobytes()
    assert initializer.rows(keys[:0], 3, dtype).shape == (0, 3)


@pytest.mark.parametrize("initializer", RANDOM, ids=ids)
def test_shorter_dtypes_are_float64_rounded_once(initializer):
    exact = initializer.rows(np.arange(1000), 7, np.float64)
    for name in ("float32", "float16"):
        np.testing.assert_array_equal(initializer.rows(np.arange(1000), 7, name), exact.astype(name))
    bfloat16 = dtype_named("bfloat16")
    np.testing.assert_array_equal(
        initializer.rows(np.arange(1000), 7, bfloat16), exact.astype(np.float32).astype(bfloat16)
    )


def test_elements_stay_in_their_interval():
    rows = TruncatedNormal(0.0, 1.0, 0).rows(np.arange(50000), 8, np.float32)
    assert abs(rows).max() <= 2.0
    rows = RandomUniform(1.0, 2.0, 0).rows(np.arange(50000), 8, np.float64)
    assert (rows.min() >= 1.0, rows.max() < 2.0) == (True, True)
    for constant in (RandomUniform(3.0, 3.0, 0), RandomNormal(3.0, 0.0, 0)):
        assert (constant.rows(KEYS, 2, np.float64) == 3.0).all()


# The argument of get_variable.


@pytest.mark.parametrize("name", FLOATS + INTEGERS)
def test_numbers_and_arrays_become_constant_rows(name):
    dtype = dtype_named(name)
    for spec, row in [
        (None, [0, 0, 0]),
        (2, [2, 2, 2]),
        (2.0, [2, 2, 2]),
        (np.float32(2), [2, 2, 2]),
        (np.array(2), [2, 2, 2]),
        ([1, 2, 3], [1, 2, 3]),
        ((1.0, 2.0, 3.0), [1, 2, 3]),
        (np.array([1, 2, 3], np.int8), [1, 2, 3]),
        (np.array([1, 2, 3]).astype(dtype), [1, 2, 3]),
    ]:
        rows = as_initializer(spec, 3, dtype).rows(KEYS, 3, dtype)
        assert rows.dtype == dtype
        assert (rows == np.array(row).astype(dtype)).all()


def test_large_integers_keep_every_bit():
    large = [2**63 - 1, -(2**63), 2**53 + 1]
    assert as_initializer(large, 3, "int64").rows(KEYS, 3, "int64")[0].tolist() == large
    assert as_initializer(2**63 - 1, 2, "int64").rows(KEYS, 2, "int64")[0, 0] == 2**63 - 1


def test_a_row_owns_its_values_and_an_initializer_is_taken_as_it_is():
    normal = RandomNormal(seed=5)
    assert as_initializer(normal, 4, "float32") is normal
    mine = np.array([1.0, 2.0])
    row = as_initializer(mine, 2, "float32")
    mine[:] = 9
    assert row.rows(KEYS[:1], 2, "float32").tolist() == [[1.0, 2.0]]


def test_an_array_of_another_shape_is_refused():
    for spec in (np.zeros(3), [], [[1.0] * 4], np.zeros((1, 4)), [[1.0], [2.0, 3.0]]):
        with pytest.raises(ValueError, match=r"must have shape \(dim,\) = \(4,\), got "):
            as_initializer(spec, 4, "float32")
    with pytest.raises(ValueError, match="must have dim = 4 values, got 3"):
        as_initializer(Row((0.0,) * 3), 4, "float32")


@pytest.mark.parametrize(
    "spec",
    [
        *("zeros", b"0", True, np.True_, 1j, np.complex64(1), ..., Zeros, {1: 2}, [1j, 2], ["a", "b"]),
        *([True, False], np.array([True, False]), np.array(["a", "b"]), np.array([None, None]), np.array(1j)),
    ],
    ids=ids,
)
def test_anything_else_is_refused(spec):
    with pytest.raises(TypeError, match="must be"):
        as_initializer(spec, 2, "float32")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        *((128, "int8"), (-129, "int8"), (0.5, "int32"), (2**63, "int64"), (math.nan, "int32"), (math.inf, "int64")),
        *((1e39, "float32"), (70000, "float16"), (4e38, "bfloat16"), (10**400, "float64"), ([0, 300], "int8")),
        *((RandomUniform(-1e6, 0), "float16"), (RandomNormal(0, 1e38), "float32"), (TruncatedNormal(1e5), "float16")),
    ],
    ids=ids,
)
def test_values_that_do_not_fit_the_dtype_are_refused(spec, name):
    with pytest.raises(ValueError, match=f"must fit {name}"):
        as_initializer(spec, 2, dtype_named(name))


@pytest.mark.parametrize("initializer", RANDOM, ids=ids)
@pytest.mark.parametrize("name", INTEGERS)
def test_random_rows_of_integers_are_refused(initializer, name):
    with pytest.raises(TypeError, match="must be a constant"):
        as_initializer(initializer, 2, name)


def test_parameters_are_checked_when_an_initializer_is_made():
    for make in (RandomUniform, RandomNormal, TruncatedNormal, GlorotUniform, Constant, Row):
        for name in (field.name for field in fields(make)):
            for value in ("a", 1j, True):
                with pytest.raises(TypeError, match=f"^{make.__name__} {name} must be "):
                    make(**{name: value})
    wrong = [(make, {"seed": seed}) for make in (RandomUniform, GlorotUniform) for seed in (-1, 2**64)]
    wrong += [(make, {"stddev": -1.0}) for make in (RandomNormal, TruncatedNormal)]
    wrong += [(RandomUniform, {"minval": low, "maxval": high}) for low, high in ((2.0, 1.0), (-1.7e308, 1.7e308))]
    wrong += [(RandomUniform, {"maxval": each}) for each in (math.inf, 10**400)] + [(RandomNormal, {"mean": math.nan})]
    for make, given in wrong:
        with pytest.raises(ValueError, match=f"^{make.__name__} .* must be"):
            make(**given)
    assert GlorotUniform(np.uint64(2**64 - 1)).seed == 2**64 - 1


def test_lower_case_names_make_the_same_values():
    assert initializers.zeros() == Zeros()
    assert initializers.ones() == Ones()
    assert initializers.constant(3) == Constant(3)
    assert initializers.uniform(-1, 1, seed=2) == RandomUniform(-1, 1, 2)
    assert initializers.normal(stddev=1) == RandomNormal(0, 1)
    assert initializers.truncated_normal(seed=4) == TruncatedNormal(seed=4)
    assert initializers.glorot_uniform(5) == GlorotUniform(5)


# JSON.

NANS = [struct.unpack(">d", struct.pack(">Q", bits))[0] for bits in (0x7FF8000000000000, 0xFFF8000000000123)]


@pytest.mark.parametrize(
    "initializer",
    [
        *(*EVERY, *GOLDEN, *(Constant(v) for v in [0.1, -0.0, 5e-324, math.inf, -math.inf, 2**63 - 1, *NANS])),
        *(Row((2**53 + 1, -0.0, 0.1, math.nan, -math.inf)), Row(np.array([0.1, 0.2], np.float32))),
    ],
    ids=ids,
)
def test_json_brings_back_every_bit(initializer):
    text = json.dumps(initializer.to_json(), allow_nan=False)
    back = initializer_from_json(json.loads(text))
    assert type(back) is type(initializer)
    assert back.to_json() == initializer.to_json()
    for name, value in vars(initializer).items():
        values = value if isinstance(value, tuple) else (value,)
        again = getattr(back, name) if isinstance(value, tuple) else (getattr(back, name),)
        for a, b in zip(values, again, strict=True):
            assert type(a) is type(b)
            assert struct.pack(">d", a) == struct.pack(">d", b) if isinstance(a, float) else a == b


def test_unknown_json_is_refused():
    unknown = [
        {},
        {"kind": "orthogonal"},
        {"kind": "zeros", "x": 1},
        {"kind": "constant"},
        {"kind": "row", "values": 1},
    ]
    bits = [{"kind": "constant", "value": value} for value in ("nan:zz", "0x1p0")]
    seedless = [{"kind": "glorot_uniform"}, {"kind": "random_uniform", "seed": None}]
    for data in (*unknown, *bits, *seedless):
        with pytest.raises(UnsupportedFormat):
            initializer_from_json(data)


def test_agreement_is_that_of_the_rows():
    assert agree(Zeros(), Constant(0.0), 2, "float32")
    assert agree(Ones(), Row((1, 1.0)), 2, "float32")
    assert agree(Constant(math.nan), Constant(float("nan")), 2, "float32")
    assert agree(Constant(0.1), Constant(np.float32(0.1)), 2, "float32")
    assert not agree(Constant(0.1), Constant(np.float32(0.1)), 2, "float64")
    assert not agree(Zeros(), Constant(-0.0), 2, "float32")
    assert not agree(Row((1, 2)), Row((1, 3)), 2, "float32")
    assert not agree(Zeros(), RandomUniform(0, 0), 2, "float32")
    assert agree(RandomNormal(seed=1), RandomNormal(seed=1), 2, "float32")
    assert not agree(RandomNormal(seed=1), RandomNormal(seed=2), 2, "float32")


def test_initializers_are_frozen_and_abstract():
    with pytest.raises(AttributeError):
        RandomNormal().seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="abstract"):
        Initializer()


def of_a_framework(name, **config):
    """An object as TensorFlow's and Keras' initializers are: a class of that name, with get_config()."""
    return type(name, (), {"get_config": lambda self: config})()


def test_initializers_of_tensorflow_and_keras_are_converted():
    found = {
        Zeros(): of_a_framework("Zeros", dtype="float32"),
        Ones(): of_a_framework("Ones"),
        Constant(0.5): of_a_framework("Constant", value=0.5),
        Row([1.0, 2.0]): of_a_framework("Constant", value=[1.0, 2.0]),
        RandomUniform(-1, 2, 7): of_a_framework("RandomUniform", minval=-1, maxval=2, seed=7),
        RandomUniform(0, 1): of_a_framework("RandomUniform", minval=0, maxval=None, seed=None),
        RandomNormal(0.0, 0.1): of_a_framework("RandomNormal", mean=0.0, stddev=0.1, seed={"class_name": "Generator"}),
        TruncatedNormal(1, 2): of_a_framework("TruncatedNormal", mean=1, stddev=2),
    }
    for expected, given in found.items():
        assert as_initializer(given, 2, "float32").to_json() == expected.to_json()
    for given in (of_a_framework("GlorotUniform", seed=None), type("Zeros", (), {"get_config": dict})):
        with pytest.raises(TypeError, match=r"use one of kvemb\.initializers"):
            as_initializer(given, 2, "float32")


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_they_are_so_called_in_tensorflow():
    code = """
import tensorflow as tf, kvemb
v1, kinds = tf.compat.v1, kvemb.initializers
for given, kind in [
    (tf.zeros_initializer(), kinds.Zeros), (tf.ones_initializer(), kinds.Ones),
    (tf.constant_initializer(2.0), kinds.Constant), (tf.constant_initializer([1.0, 2.0]), kinds.Row),
    (tf.random_normal_initializer(0.0, 0.1), kinds.RandomNormal),
    (tf.random_uniform_initializer(-1, 1), kinds.RandomUniform),
    (v1.random_normal_initializer(0.0, 0.1, seed=3), kinds.RandomNormal),
    (v1.random_uniform_initializer(), kinds.RandomUniform),
    (v1.truncated_normal_initializer(), kinds.TruncatedNormal), (v1.constant_initializer(1), kinds.Constant),
    (tf.keras.initializers.RandomNormal(0.0, 0.1), kinds.RandomNormal),
    (tf.keras.initializers.TruncatedNormal(), kinds.TruncatedNormal), (tf.keras.initializers.Zeros(), kinds.Zeros),
]:
    assert isinstance(kinds.as_initializer(given, 2, "float32"), kind), given
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
