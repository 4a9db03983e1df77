"""The interface of a hot table on a GPU for arrays in that GPU's memory. Implementations do not lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import DeviceArray
from kvemb.rows.hashing import Keys, Positions, Sums


class MissingKeys(NamedTuple):
    """Keys that are not in a table, in the host's memory. positions (m,): in the call's keys, ascending; keys (m,)."""

    positions: Positions
    keys: Keys


class DeviceCounts(NamedTuple):
    """How many uses each key of a lookup is: int64 (n,), on a device. uses: their sum."""

    array: DeviceArray
    uses: int


class DeviceRows(Protocol):
    """The rows of a hot table, for arrays on its device. All methods after finish() REQUIRE on().

    A contract, although backends/cuda/arrays.py alone implements it: the core imports nothing of CUDA.
    keys: (n,) of the key dtype; embeddings (n, dim), gradients (n, dim) in the slots' dtype. Embeddings and slots have
    the bits that the methods of HotTable give. Raises MemoryError, before anything has changed.
    """

    device: str

    def on(self, *arrays: DeviceArray) -> AbstractContextManager[None]:
        """Run the work of the block on the stream of the first array, after the work that the other arrays wait for."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array of CuPy on this device."""

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        """Return the CUDA array interface of an array, and an object that keeps its memory alive.

        For an array that has only __dlpack__, that object is a CuPy array that shares its memory.
        """

    def copy(self, array: DeviceArray) -> DeviceArray:
        """Return a copy in a private CuPy array, which is known not to change."""

    def account(self, use: Callable[[int], None]) -> None:
        """Call use(nbytes) whenever nbytes more of the device's memory are taken beside the cells, and once now.

        This memory is for calls' buffers, and for the unused ends of the cells' pages.
        """

    def account_host(self, use: Callable[[int], None], total: int) -> None:
        """Call use(nbytes) whenever pinned memory takes nbytes more of the host's memory, and once now.

        All tables of a device share the pinned memory, so the same `use` given for another table is not called twice.
        total: bytes of the budget that pays; pinned memory is at most a small share of it.
        """

    def finish(self) -> None:
        """Wait until all work that was begun is done."""

    def together(self) -> AbstractContextManager[None]:
        """Rows that HotTable.insert inserts in the block do not evict each other, as if their scores were infinite."""

    def refresh_cells(self) -> None:
        """Find the keys of the last lookup again if rows have moved since, so that find() of them costs nothing."""

    # Arrays.

    def to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a copy."""

    def begin_to_host(self, array: DeviceArray) -> Callable[[], npt.NDArray[Any]] | None:
        """Begin to copy an array as it is now; return a function, for any thread, that waits and returns the copy.

        The function must be called exactly once. After this call the array may be changed or freed on its stream.
        Returns None if there is no memory for another copy in progress.
        """

    def take(self, array: DeviceArray, positions: Positions) -> npt.NDArray[Any]:
        """Return copies of the rows at these positions."""

    def spread(self, array: DeviceArray, positions: Positions, rows: npt.NDArray[Any]) -> None:
        """Set the rows at these positions, which are distinct."""

    # Reading rows.

    def lookup(
        self,
        keys: DeviceArray,
        out: DeviceArray,
        exists: DeviceArray | None,
        rule: ScoreRule | None,
        now: float,
        counts: DeviceArray | None = None,
    ) -> MissingKeys:
        """See HotTable.lookup. exists: bool (n,), set to which keys are in the table.

        The cells found stay known until rows move: until then, find() of the same, unchanged keys does nothing.
        """

    def pool(self, keys: Keys, bags: Bags, out: DeviceArray, rule: ScoreRule | None, now: float) -> Positions:
        """See HotTable.pool. keys are in the host's memory."""

    def row_gradients(self, sums: Sums, bag_of: Positions, bags: Bags, grads: DeviceArray, out: DeviceArray) -> None:
        """Set out (m, dim) to each key's sum over its occurrences of weight * gradient of the bag / its divisor.

        See RowKernels.row_gradients; grads (bags, dim).
        """

    # Changing rows. They are the rows of the keys of find(), which must be called first in the block.

    def find(self, keys: DeviceArray) -> MissingKeys:
        """Find keys, in any order, for the changes that follow. Scores are not touched."""

    def only(self, chosen: DeviceArray) -> None:
        """Exclude the keys for which chosen (n,), bool, is False from the changes that follow."""

    def prepare(self, optimizer: Optimizer | None = None, matching: Optimizer | None = None) -> None:
        """Allocate the buffers of the changes that follow, so that they cannot run out of memory half-way.

        optimizer: that of apply(); None: assign() or add() follows. matching: that of match(). Raises MemoryError.
        """

    def assign(self, values: DeviceArray, step: int) -> None:
        """See HotTable.assign."""

    def add(self, old: DeviceArray, new: DeviceArray, step: int) -> None:
        """See HotTable.add."""

    def apply(self, optimizer: Optimizer, grads: DeviceArray, step: int, count: int) -> None:
        """Take one step on each row, with the sum of the gradients of its key in order. See HotTable.apply."""

    def match(self, optimizer: Optimizer, step: int) -> None:
        """See HotTable.match."""
