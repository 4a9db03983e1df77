"""Names: strings as rows hold them, which strings are refused, and hashes that collide."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import kvemb
from kvemb.errors import HashCollision
from kvemb.rows.names import (
    StringKeys,
    check_names,
    distinct_names,
    joined_names,
    named_keys,
    names_behind,
    other_than,
    strings_of,
    with_names,
)

# XXH3 was inverted for strings of 7 and 8 bytes: both have the key -1952705945127909636.
COLLIDING = "bg1-kvn", "VzvtA_t%"
TEXTS = ["", "a", "Paris", "Zürich", "東京", "🦆🦆", "x" * 32, "é" * 16]


def test_names_are_the_strings_padded_with_a_byte_that_utf_8_lacks():
    named = named_keys(TEXTS, 32)
    assert named.names.shape == (8, 32)
    assert bytes(named.names[2]) == b"Paris" + b"\xff" * 27
    assert strings_of(named.names).tolist() == TEXTS
    assert strings_of(named.names[:3]).tolist() == TEXTS[:3]
    assert (named.keys == kvemb.hash_strings(TEXTS)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_names_stand_behind_values_of_every_width(dtype: str):
    values, named = np.arange(24).reshape(8, 3).astype(dtype), named_keys(TEXTS, 32)
    wide = with_names(values, named.names)
    assert (wide[:, :3] == values).all()
    assert (names_behind(wide, 3) == named.names).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a", "b" * 33], "the key at position 1 must have at most name_bytes=32 bytes in UTF-8, got 33: 'bbb"),
        (["é" * 17], "must have at most name_bytes=32 bytes in UTF-8, got 34"),
        (["a\0b"], "the key at position 0 must have no NUL character"),
        ([b"ok", b"a\xff"], "the key at position 1 must be text in UTF-8, got b'a"),
        ([b"\xc3", b"\xa9"], "the key at position 1 must be text in UTF-8"),
        ([b"\xc3"], "the key at position 0 must be text in UTF-8"),
        (["a", None], "the key at position 1 is missing; fill it, for example with fillna"),
    ],
)
def test_a_string_that_is_no_name_is_refused(given: list[object], message: str):
    with pytest.raises(ValueError, match=message):
        named_keys(given, 32)


def test_other_things_than_strings_are_refused():
    with pytest.raises(TypeError, match=r"keys must be strings, got int64; convert them, as in keys.astype\(str\)"):
        named_keys(np.arange(3), 32)


def test_strings_of_one_hash_collide_unless_they_are_equal_or_one_has_no_row():
    named = named_keys(COLLIDING, 8)
    assert named.keys[0] == named.keys[1]
    with pytest.raises(HashCollision, match=r"'VzvtA_t%' and 'bg1-kvn' have the same hash, -1952705945127909636"):
        distinct_names(named)
    with pytest.raises(HashCollision):
        check_names(named.keys, named.names, named.names[::-1])
    check_names(named.keys, named.names, np.zeros_like(named.names))
    twice = StringKeys(named.keys, named.names[[0, 0]], (2,))
    distinct_names(twice)


def test_keys_made_elsewhere_are_selected_joined_pickled_and_told_again():
    keys = pickle.loads(pickle.dumps(kvemb.string_keys([TEXTS[:4], TEXTS[4:]])))
    assert (len(keys), keys.shape, keys.strings().tolist()) == (8, (2, 4), [TEXTS[:4], TEXTS[4:]])
    assert named_keys(keys, 32) is keys
    assert keys[1:3].strings().tolist() == TEXTS[1:3]
    assert joined_names([keys[6:], keys[:1]]).strings().tolist() == [*TEXTS[6:], TEXTS[0]]
    assert other_than(keys, named_keys("Paris", 32)).tolist() == [text != "Paris" for text in TEXTS]
    assert other_than(named_keys(COLLIDING, 8), named_keys(COLLIDING[0], 8)).tolist() == [False, True]
    assert kvemb.string_keys(["a"], name_bytes=9).names.shape == (1, 16)
    with pytest.raises(ValueError, match=r"keys were made with name_bytes=16, but the variable has 32; make them with"):
        named_keys(kvemb.string_keys(["a"], name_bytes=9), 32)
    with pytest.raises(ValueError, match=r"name_bytes must be at least 1, got 0"):
        kvemb.string_keys(["a"], name_bytes=0)


def test_calls_take_keys_made_elsewhere(store: kvemb.Store):
    words = store.get_variable("words", key_dtype="string", dim=1)
    words.upsert(kvemb.string_keys([["a"], ["b"]]), [[[1]], [[2]]])
    assert words.lookup(kvemb.string_keys("b")).tolist() == [2]
    bags = kvemb.embedding_lookup_sparse(words, kvemb.string_keys(["a", "b"]), [0], combiner="sum")
    assert bags.values.tolist() == [[3]]
    words.remove(kvemb.string_keys(["a"]))
    assert words.export()[0].tolist() == ["b"]
