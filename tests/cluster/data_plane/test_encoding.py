"""A message has its value, whatever that contains, and its arrays where they can be used at once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from kvemb.cluster.data_plane.encoding import ALIGN, Message, read

ODD = [
    np.arange(6).reshape(2, 3),
    np.ones(3, np.bool_),
    np.zeros((0, 4)),
    np.arange(5, dtype=np.float16),
    np.arange(12.0).reshape(3, 4)[:, ::2],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
]


@pytest.mark.parametrize("arrays", [[], [np.zeros(0)], [np.arange(10.0)], ODD], ids=["none", "empty", "one", "odd"])
def test_a_value_is_the_same_after_it_was_a_message(arrays):
    value = [(array, None, "text") for array in arrays]
    message = Message(value)
    at = np.full(message.nbytes + 100, 255, np.uint8)
    message.write(at)
    assert (at[message.nbytes :] == 255).all()
    for (array, *rest), (expected, *others) in zip(read(at[: message.nbytes]), value, strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        assert array.flags.writeable
        assert rest == others
        if expected.flags.contiguous and array.size:
            assert (array.ctypes.data - at.ctypes.data) % ALIGN == 0
            assert np.shares_memory(array, at)


def test_what_pickle_refuses_is_given_to_another_function():
    def local():
        pass

    def dumps(value, protocol, buffer_callback):
        return pickle.dumps("instead", protocol=protocol)

    message = Message(local, dumps)
    at = np.empty(message.nbytes, np.uint8)
    message.write(at)
    assert read(at) == "instead"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        Message(local)
