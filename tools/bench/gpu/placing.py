"""Arrays in the memory of a variable's GPU, for benchmarks: made there, filled from the host, waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import DeviceRows
from kvemb.rows.device_arrays import DeviceArray, read_array


class Placing:
    """Places arrays beside the rows of one table."""

    def __init__(self, there: DeviceRows) -> None:
        self._there = there

    def array(self, given: npt.NDArray[Any]) -> Any:
        """Return a copy there, an array of CuPy."""
        made = self._there.empty(given.shape, given.dtype)
        found = self.found(made)
        with self._there.on(found):
            self._there.spread(found, np.arange(len(given)), given)
        return made

    def found(self, array: Any) -> DeviceArray:
        """Return where an array is."""
        return read_array(array, None, None, "array", self._there.imported)

    def wait(self, array: Any) -> None:
        """Wait until the table, and the stream of an array, have done what they were given."""
        found = self.found(array)
        with self._there.on(found):
            self._there.take(found, np.zeros(1, np.int64))
