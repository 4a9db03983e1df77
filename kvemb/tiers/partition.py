"""The partition of keys over a variable's devices: a user's function, whose every result is checked.

It divides the hot tier only; all devices share the cold store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.host_arrays import public_keys

Partitioner = Callable[[npt.NDArray[Any], int], npt.ArrayLike]
# The number of each key's table (n,); None: all keys are in the first table.
Owners = npt.NDArray[np.int64] | None


def default_partitioner(keys: npt.NDArray[Any], shard_num: int) -> npt.NDArray[Any]:
    """Return keys % shard_num, which is never negative."""
    return keys % shard_num


def owners_at(owners: Owners, positions: Positions) -> Owners:
    """Return the tables of the keys at these positions."""
    return None if owners is None else owners[positions]


class Partition:
    """A partitioner over a number of devices. public_dtype: the dtype of keys passed to the partitioner."""

    def __init__(self, partitioner: Partitioner, public_dtype: np.dtype[Any], devices: int) -> None:
        self._partitioner, self._public_dtype, self.devices = partitioner, public_dtype, devices

    def devices_of(self, keys: Keys) -> Owners:
        """Return the number of each key's device.

        Raises ValueError if the partitioner's result has the wrong dtype, shape or range; also any error of the
        partitioner.
        """
        if (count := self.devices) == 1 and self._partitioner is default_partitioner:
            return None
        given = np.asarray(self._partitioner(public_keys(keys, self._public_dtype), count))
        if given.shape != keys.shape or given.dtype.kind not in "iu":
            raise ValueError(
                f"partitioner must return an integer array of shape {keys.shape}, got {given.dtype} {given.shape}"
            )
        if len(given) and (int(given.min()) < 0 or int(given.max()) >= count):
            raise ValueError(
                f"partitioner must return numbers from 0 to {count - 1}, got {int(given.min())} to {int(given.max())}"
            )
        return given.astype(np.int64)
