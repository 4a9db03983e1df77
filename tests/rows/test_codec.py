"""Keys and rows as bytes: their order, their layout, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schemas import schema_of

from kvemb.errors import Corruption
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.codec import (
    decode_keys,
    decode_records,
    encode_keys,
    encode_records,
    key_at,
    order_key,
    order_keys,
    record_dtype,
    unordered_keys,
)
from kvemb.rows.schema import VALUE_DTYPES

LEAST, MOST = -(2**63), 2**63 - 1
INT64 = st.integers(LEAST, MOST)


@given(st.lists(INT64, max_size=50), st.sampled_from(["int64", "uint64"]))
def test_the_order_of_keys_bytes_is_numeric(keys, dtype):
    schema, array = schema_of(key=dtype), np.array(keys, np.int64)
    numbers, encoded = array.view(dtype).tolist(), encode_keys(array, schema)
    assert decode_keys(encoded, schema).tolist() == keys
    assert decode_keys(sorted(encoded), schema).view(dtype).tolist() == sorted(numbers)
    least = LEAST if dtype == "int64" else 0
    assert encoded == [struct.pack(">Q", number - least) for number in numbers]


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint64"])
def test_one_key_is_ordered_as_many_are(dtype):
    schema, limits = schema_of(key=dtype), np.iinfo(dtype)
    for key in (limits.min, limits.max, 0, 7):
        stored = np.array([key], np.uint64 if dtype == "uint64" else np.int64).view(np.int64)
        place = order_key(int(key), schema)
        assert place == int(order_keys(stored, schema)[0])
        assert key_at(place, schema) == key
        assert unordered_keys(order_keys(stored, schema), schema).tolist() == stored.tolist()
    assert (key_at(0, schema), key_at(2**64 - 1, schema)) == (limits.min, limits.max)


@pytest.mark.parametrize("bad", [[b"123456789"], [b""], [b"12345678", b"1"], [b"1234567", b"123456789"]])
def test_keys_of_another_width_are_refused(bad):
    with pytest.raises(Corruption, match="8 bytes each"):
        decode_keys(bad, schema_of(dim=2, widths=()))


@pytest.mark.parametrize("name", VALUE_DTYPES)
@pytest.mark.parametrize("widths", [(), (1,), (8,), (3, 1, 2)])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_records_keep_every_bit(name, widths, dim):
    schema = schema_of(name, dim, widths)
    block = RowBlock(schema, 50)
    random = np.random.default_rng(dim)
    block.keys[:] = random.integers(LEAST, MOST, 50)
    block.words[:] = random.integers(0, 2**64, block.words.shape, dtype=np.uint64)
    block.scores[:] = random.normal(size=50)
    block.scores[:4] = [-0.0, np.inf, -np.inf, 5e-324]
    block.steps[:] = random.integers(LEAST, MOST, 50)
    block.flags[:] = np.where(np.arange(50) % 2, DIRTY | REMOVED, 0)
    records = encode_records(block)
    assert {len(record) for record in records} == {17 + schema.row_bytes} == {record_dtype(schema).itemsize}
    back = decode_records(block.keys, records, schema)
    for column in ("keys", "steps", "words"):
        np.testing.assert_array_equal(getattr(back, column), getattr(block, column))
    assert back.scores.tobytes() == block.scores.tobytes()
    assert not back.flags.any(), "flags of the memory do not reach the disk"
    assert encode_records(back) == records


@pytest.mark.parametrize("dim", [7, 8])
def test_embeddings_and_slots_are_copies(dim):
    block = RowBlock(schema_of(dim=dim, widths=(1,) * (dim % 2)), 3)
    before = block.embeddings(), *block.slots_by_name().values()
    block.words[:] = 2**64 - 1
    assert not any(array.any() for array in before)


def test_no_rows_are_no_records():
    schema = schema_of(dim=2, widths=())
    assert encode_records(RowBlock(schema, 0)) == encode_keys(np.empty(0, np.int64), schema) == []
    assert len(decode_records(np.empty(0, np.int64), [], schema)) == 0
    assert len(decode_keys([], schema)) == 0


def test_decoded_rows_own_their_memory():
    schema = schema_of(dim=2, widths=())
    keys, records = np.zeros(1, np.int64), encode_records(RowBlock(schema, 1))
    block = decode_records(keys, records, schema)
    block.words[:], block.scores[:], block.keys[:] = 1, 2.0, 3
    again = decode_records(keys, records, schema)
    assert (again.words.max(), again.scores[0], again.keys[0]) == (0, 0.0, 0)


def test_records_of_another_width_are_refused():
    """Also if their widths add up."""
    schema = schema_of(dim=2, widths=())
    one, two, three = encode_records(RowBlock(schema, 3))
    for records in (
        [one, two[:-1], three],
        [one, two + b"\0", three],
        [one, b"", three],
        [one[:-1], two + b"\0", three],
    ):
        with pytest.raises(Corruption, match="25 bytes each"):
            decode_records(np.zeros(3, np.int64), records, schema)
