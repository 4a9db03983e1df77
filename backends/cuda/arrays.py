"""The rows of a hot table on a GPU, for arrays in its memory: only data of missing keys is copied to the host.

Work runs on the caller's stream (kvemb.backends.cuda.queue). Not thread-safe: the table's caller locks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda import source
from kvemb.backends.cuda.cells import NULL, WARP, Cells
from kvemb.backends.cuda.memory import unit_of
from kvemb.backends.cuda.steps import GivenSums, Steps
from kvemb.contracts import DeviceRows, MissingKeys
from kvemb.optimizers import Optimizer
from kvemb.optimizers.formula import uses_buffers
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import DeviceArray, read_array
from kvemb.rows.hashing import Keys, Positions, Sums

KEY_BYTES = 8
_NONE = MissingKeys(np.empty(0, np.int64), np.empty(0, np.int64))


class ArrayRows(DeviceRows):
    """The rows of a CudaTable. device: its name."""

    def __init__(self, cells: Cells, steps: Steps, device: str) -> None:
        self.device, self._cells, self._steps, self._buffers = device, cells, steps, cells.buffers
        self._count, self._buffer = 0, "cells"  # of find(): the number of keys, and the buffer of their cells
        # The keys of the last lookup; their cells, as of _kept_moves moves of rows, are in the buffer "kept"; -1: some
        # lack.
        self._kept: DeviceArray | None = None
        self._kept_moves = -1

    def on(self, *arrays: DeviceArray) -> AbstractContextManager[None]:
        streams = [array.stream for array in arrays]
        return self._cells.queue.on(streams[0], frozenset(streams) - {streams[0]})

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self._cells.queue.device.empty(shape, dtype)

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        return self._cells.queue.device.interface(data)

    def given(self, array: Any) -> DeviceArray:
        """Return the DeviceArray of an array of any dtype and shape. Raises ValueError if it is not C-contiguous."""
        return read_array(array, None, None, "array", self.interface)

    def array(self, given: npt.NDArray[Any]) -> Any:
        """Return a copy on this device, a CuPy array, for benchmarks. REQUIRES: at least one row."""
        made = self.empty(given.shape, given.dtype)
        found = self.given(made)
        with self.on(found):
            self.spread(found, np.arange(len(given)), given)
        return made

    def copy(self, array: DeviceArray) -> DeviceArray:
        made = replace(self.given(self.empty(array.shape, array.dtype)), version=0)
        with self.on(array, made):
            self._cells.queue.copy(made.address, array.address, array.size * array.dtype.itemsize)
        return made

    def account(self, use: Callable[[int], None]) -> None:
        self._buffers.account(use)
        self._cells.chunks.account(use)

    def account_host(self, use: Callable[[int], None], total: int) -> None:
        self._cells.queue.device.staging.account(use, total)

    def finish(self) -> None:
        self._cells.queue.download(np.empty(1, np.int64), self._buffers.of("count", 8))

    @contextmanager
    def together(self) -> Iterator[None]:
        self._cells.together = True
        try:
            yield
        finally:
            self._cells.together = False

    def refresh_cells(self) -> None:
        if self._kept is not None and self._kept_moves != self._cells.moves:
            missing = self._cells.find(self._wide(self._kept).address, self._kept.size, cells="kept")
            self._kept_moves = -1 if missing else self._cells.moves

    # Arrays.

    def to_host(self, array: DeviceArray) -> npt.NDArray[Any]:
        found = np.empty(array.shape, array.dtype)
        if array.size:
            self._cells.queue.download(found, array.address)
        return found

    def begin_to_host(self, array: DeviceArray) -> Callable[[], npt.NDArray[Any]] | None:
        if not array.size:
            return lambda: np.empty(array.shape, array.dtype)
        download = self._cells.queue.begin_download(array.address, array.size * array.dtype.itemsize)
        if download is None:
            return None
        shape, dtype = array.shape, array.dtype  # the array may be freed meanwhile
        return lambda: download.copied().view(dtype).reshape(shape)

    def take(self, array: DeviceArray, positions: Positions) -> npt.NDArray[Any]:
        found = np.empty((len(positions), *array.shape[1:]), array.dtype)
        if found.size:
            taken = self._buffers.of("taken", found.nbytes)
            self._by_position("take_rows", array.address, positions, array.row_bytes, taken)
            self._cells.queue.download(found, taken)
        return found

    def spread(self, array: DeviceArray, positions: Positions, rows: npt.NDArray[Any]) -> None:
        if rows.size:
            self._by_position(
                "spread_rows", self._buffers.put("taken", rows), positions, array.row_bytes, array.address
            )

    def _by_position(self, kernel: str, given: int, positions: Positions, nbytes: int, to: int) -> None:
        chosen = self._buffers.put("chosen", positions)
        threads = WARP * len(positions)
        self._cells.run_plain(kernel, threads, given, chosen, len(positions), nbytes, unit_of(nbytes, given, to), to)

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
        flags, times = (NULL if array is None else array.address for array in (exists, counts))
        self._kept = None  # if this fails, the buffer's contents are unknown
        wide = self._wide(keys)
        count = self._cells.find(
            wide.address, keys.size, cells="kept", out=out.address, exists=flags, rule=rule, now=now, counts=times
        )
        missing = self._missing(wide, count)
        self._kept = None if keys.version is None else keys
        self._kept_moves = -1 if len(missing.keys) else self._cells.moves
        return missing

    def _missing(self, keys: DeviceArray, count: int) -> MissingKeys:
        """Return the `count` missing keys of a find() of int64 keys."""
        positions = self._cells.missing(count)
        return MissingKeys(positions, self.take(keys, positions))

    def _wide(self, keys: DeviceArray) -> DeviceArray:
        """Return keys as int64."""
        shape, dtype = (keys.size,), np.dtype(np.int64)
        if keys.dtype.itemsize == KEY_BYTES:
            return DeviceArray(keys.address, shape, dtype, keys.stream, keys.owner)
        buffer = self._buffers.of("keys", KEY_BYTES * keys.size)
        self._cells.run_plain("widen_keys", keys.size, keys.address, keys.size, buffer)
        return DeviceArray(buffer, shape, dtype, keys.stream, None)

    def pool(self, keys: Keys, bags: Bags, out: DeviceArray, rule: ScoreRule | None, now: float) -> Positions:
        n = len(keys)
        count = self._cells.find(self._buffers.put("keys", keys), n, rule=rule, now=now)
        missing = self._cells.missing(count)
        self._cells.pool(self._buffers.of("cells", 8 * n), n, bags, NULL, NULL, out.address)
        return missing

    def row_gradients(self, sums: Sums, bag_of: Positions, bags: Bags, grads: DeviceArray, out: DeviceArray) -> None:
        buffers, count, dim = self._buffers, len(sums.first), self._cells.schema.dim
        entries, starts, ends = self._steps.put_groups(sums)
        of_keys = buffers.put("at", bag_of)
        weights, divisors = self._cells.put_weights(bags)
        arguments = weights, divisors, grads.address, dim, out.address, self._steps.many_buffer(len(bag_of))
        program, threads = source.values_source(self._cells.schema), count * self._steps.warps_across() * WARP
        groups = entries, starts, ends, of_keys
        self._cells.queue.run(program, "row_gradients", threads, *groups, count, *arguments)
        threads = self._steps.threads_of_many(len(bag_of))
        self._cells.queue.run(program, "many_row_gradients", threads, *groups, *arguments)

    # Changing rows.

    def find(self, keys: DeviceArray) -> MissingKeys:
        known = keys.same_contents(self._kept) and self._kept_moves == self._cells.moves
        self._count, self._buffer = keys.size, "kept" if known else "cells"
        if known:
            return _NONE
        wide = self._wide(keys)
        return self._missing(wide, self._cells.find(wide.address, keys.size))

    @property
    def _found_cells(self) -> int:
        return self._buffers.of(self._buffer, 8 * self._count)

    def only(self, chosen: DeviceArray) -> None:
        if self._buffer == "kept":
            self._kept_moves = -1
        self._cells.run_plain("leave_out", self._count, self._found_cells, self._count, chosen.address)

    def prepare(self, optimizer: Optimizer | None = None, matching: Optimizer | None = None) -> None:
        n = self._count
        self._cells.prepare_change(n, adding=optimizer is None)
        if optimizer is not None or matching is not None:
            self._group_buffers(n)
        if optimizer is not None:
            self._steps.prepare_step(optimizer.formulas, optimizer, n, entries=n, apart=True)
        if matching is not None:
            self._steps.prepare_match(n, matching)

    def assign(self, values: DeviceArray, step: int) -> None:
        self._cells.assign(self._found_cells, values.address, self._count, step)

    def add(self, old: DeviceArray, new: DeviceArray, step: int) -> None:
        self._cells.add(self._found_cells, old.address, new.address, self._count, step)

    def apply(self, optimizer: Optimizer, grads: DeviceArray, step: int, count: int) -> None:
        # Entries of a cell are summed in the order of the batch, which a stable sort keeps; the first entry takes the
        # step.
        heads, sums = self._grouped(everywhere=uses_buffers(optimizer.formulas)[0])
        self._steps.step(optimizer.formulas, optimizer, heads, self._count, grads.address, sums, step, count)

    def match(self, optimizer: Optimizer, step: int) -> None:
        self._steps.match(self._grouped(everywhere=False)[0], self._count, optimizer, step)

    def _grouped(self, *, everywhere: bool) -> tuple[int, GivenSums]:
        """Return the address of distinct cells, and the sums over each one's entries.

        everywhere: whether every cell has a sum, not only those with several entries.
        """
        n = self._count
        groups = heads, starts, ends, sum_at = self._group_buffers(n)
        if not n:
            return heads, GivenSums()
        order = self._cells.ordered(self._found_cells, n)
        self._cells.run_plain("group_cells", n, self._found_cells, order, n, int(everywhere), *groups)
        return heads, GivenSums(entries=order, starts=starts, ends=ends, entry_count=n, at=sum_at)

    def _group_buffers(self, n: int) -> tuple[int, int, int, int]:
        """Return the buffers for the results of _grouped()."""
        heads, starts, ends, sum_at = (self._buffers.of(name, 8 * n) for name in ("heads", "starts", "ends", "sum_at"))
        return heads, starts, ends, sum_at
