"""Which device a key is on, and what a partitioner may answer."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.rows.schema import dtype_of
from kvemb.tiers.partition import Partition, default_partitioner, owners_at

KEYS = np.array([-7, -1, 0, 1, 2, 3, 2**63 - 1, -(2**63)])


def devices_of(keys, partitioner, devices=2, key="int64"):
    return Partition(partitioner, dtype_of(key), devices).devices_of(np.array(keys))


def test_the_default_partitioner_is_the_floors_remainder():
    assert default_partitioner(KEYS, 3).tolist() == [int(key) % 3 for key in KEYS]
    assert default_partitioner(KEYS.view(np.uint64), 3).tolist() == [int(key) % 2**64 % 3 for key in KEYS]


def test_one_device_is_not_asked_for():
    assert devices_of(KEYS, default_partitioner, 1) is None
    assert owners_at(None, np.array([1])) is None
    assert owners_at(devices_of(KEYS, default_partitioner), np.array([5, 0])).tolist() == [1, 1]


def test_a_partitioner_sees_keys_in_their_own_dtype():
    seen = []

    def spy(keys, count):
        seen.append((keys.dtype, keys.tolist(), count))
        return np.zeros(len(keys), np.int8)

    devices_of([-1, 5], spy, key="uint64")
    devices_of([-1, 5], spy, key="int32")
    assert seen == [(np.dtype("uint64"), [2**64 - 1, 5], 2), (np.dtype("int32"), [-1, 5], 2)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        *(([0, 2], "from 0 to 1, got 0 to 2"), ([-1, 0], "from 0 to 1, got -1 to 0"), ([0.0, 1.0], "integer array")),
        *(([0], "integer array of shape"), (0, "integer array of shape"), ([True, False], "integer array")),
        ([[0, 1]], "integer array of shape"),
    ],
    ids=repr,
)
def test_other_answers_of_a_partitioner_are_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        devices_of([5, 6], lambda keys, n: answer)


def test_one_device_has_a_partitioner_too():
    with pytest.raises(ValueError, match="from 0 to 0, got 0 to 1"):
        devices_of([5, 6], lambda keys, n: [0, 1], 1)


def test_lists_and_any_integers_are_answers():
    for answer in ([1, 0], np.array([1, 0], np.uint8), (1, 0)):
        assert devices_of([5, 6], lambda keys, n, answer=answer: answer).tolist() == [1, 0]
