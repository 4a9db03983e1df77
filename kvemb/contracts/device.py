"""What a hot table on a GPU does with arrays that are in that GPU's memory. Nothing here locks."""

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


class Missing(NamedTuple):
    """Keys that are not in a table, in the host's memory. positions (m,): where they were, ascending; keys (m,)."""

    positions: Positions
    keys: Keys


class DeviceRows(Protocol):
    """The rows of a hot table, for arrays on its device. All but the first few methods, up to finish(), REQUIRE on().

    keys: (n,) of the key dtype; embeddings (n, dim), gradients (n, dim) in the slots' dtype. Embeddings and slots have
    the bits that the methods of HotTable give. Raises MemoryError, before anything has changed.
    """

    device: str

    def on(self, *arrays: DeviceArray) -> AbstractContextManager[None]:
        """Do the work of the block on the stream of the first array, after what the others wait for."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array of CuPy on this device."""

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        """Return the CUDA array interface of an array, and what keeps its memory: of one that has __dlpack__ alone, an
        array of CuPy that shares its memory.
        """

    def given(self, array: Any) -> DeviceArray:
        """Return where an array of any dtype and shape is. Raises ValueError if it is not C-contiguous."""

    def array(self, given: npt.NDArray[Any]) -> Any:
        """Return a copy on this device, of at least one row, an array of CuPy."""

    def copy(self, array: DeviceArray) -> DeviceArray:
        """Return a copy, in an array of CuPy that nobody else has, so that it is known not to change."""

    def account(self, use: Callable[[int], None]) -> None:
        """Call use(bytes) when so much more of the device's memory is taken beside the cells; now for what is.

        That is calls' buffers, and what the device's pages leave at the ends of the cells' pieces.
        """

    def account_host(self, use: Callable[[int], None], total: int) -> None:
        """Call use(bytes) when pinned memory takes so much more of the host's; now for what it takes.

        All tables of a device share it, so a method that was given is not called for another table, too. total: bytes
        of the budget that pays; pinned memory is at most a small share of it.
        """

    def finish(self) -> None:
        """Wait until everything that was asked for is done."""

    def together(self) -> AbstractContextManager[None]:
        """Rows that HotTable.insert inserts in the block do not evict each other: as if their scores were infinite."""

    def find_again(self) -> None:
        """Find the keys of the last lookup, if rows have moved since, so that find() of them does nothing again."""

    # Arrays.

    def to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Return a copy."""

    def begin_to_host(self, array: DeviceArray) -> Callable[[], npt.NDArray[Any]] | None:
        """Begin to make a copy of an array as it is now; return a function, for any thread, that waits and returns it.

        It is called once. The array may be changed or freed on its stream afterwards. None: there is no memory left for
        more copies on their way.
        """

    def take(self, array: DeviceArray, positions: Positions) -> npt.NDArray[Any]:
        """Return copies of the rows at these positions."""

    def spread(self, array: DeviceArray, positions: Positions, rows: npt.NDArray[Any]) -> None:
        """Set the rows at these positions, which are distinct."""

    # Reading rows.

    def lookup(
        self, keys: DeviceArray, out: DeviceArray, exists: DeviceArray | None, rule: ScoreRule | None, now: float
    ) -> Missing:
        """See HotTable.lookup. exists: bool (n,), set to which keys are in the table.

        Where they are is known until rows move: find() of the same keys, if they have not changed since, does nothing.
        """

    def pool(self, keys: Keys, bags: Bags, out: DeviceArray, rule: ScoreRule | None, now: float) -> Positions:
        """See HotTable.pool. keys are in the host's memory."""

    def row_gradients(self, sums: Sums, bag_of: Positions, bags: Bags, grads: DeviceArray, out: DeviceArray) -> None:
        """Set out (m, dim) to each key's sum over its occurrences of weight * gradient of the bag / its divisor.

        See RowKernels.row_gradients; grads (bags, dim).
        """

    # Changing rows: those of the keys of find(), which comes first in the block.

    def find(self, keys: DeviceArray) -> Missing:
        """Find keys, in any order, for what comes next. Scores are not touched."""

    def only(self, chosen: DeviceArray) -> None:
        """Leave out the keys where chosen (n,), bool, is False."""

    def prepare(self, optimizer: Optimizer | None = None, matching: Optimizer | None = None) -> None:
        """Allocate what the changes that follow take, so that they cannot fail half-way for lack of memory.

        optimizer: of apply(); None: assign() or add() comes. matching: of match(). Raises MemoryError.
        """

    def assign(self, values: DeviceArray, step: int) -> None:
        """See HotTable.assign."""

    def add(self, old: DeviceArray, new: DeviceArray, step: int) -> None:
        """See HotTable.add."""

    def apply(self, optimizer: Optimizer, grads: DeviceArray, step: int, count: int) -> None:
        """Take one step on each row, with the sum of the gradients of its key in order. See HotTable.apply."""

    def match(self, optimizer: Optimizer, step: int) -> None:
        """See HotTable.match."""
