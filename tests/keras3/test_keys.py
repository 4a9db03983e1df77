"""Keys as pairs of int32."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb.keras as kk
from kvemb.keras.keys import joined_keys


def test_split_keys_are_joined_again():
    keys = np.array([[0, -1, 2**31], [-(2**63), 2**63 - 1, 2**32]])
    pairs = kk.split_keys(keys)
    assert (pairs.dtype, pairs.shape) == (np.int32, (2, 3, 2))
    np.testing.assert_array_equal(joined_keys(pairs), keys)
    with pytest.raises(TypeError, match="keys must be integers, got float64"):
        kk.split_keys([1.5])
