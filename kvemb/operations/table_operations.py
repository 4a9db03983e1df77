"""All calls on one variable; this file adds those whose arrays are in the memory of its GPU.

Rows that are hot on the GPU are read and changed there. The keys of other rows, with their values or gradients, are
copied to the host and processed as in any call; rows that a lookup finds for them are copied back. So a call has one
more part than kvemb.operations.updates says: the rows that are hot on the GPU, which is atomic and comes first.
Arguments have been checked by kvemb.engine.on_device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import DeviceCounts, DeviceRows, PlannedChange
from kvemb.operations.reads import MissedKeys, PartOfLookup, repeat_if_refreshed
from kvemb.operations.updates import TableUpdates
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import DeviceArray
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.tiers.gpu_tables import GpuTables
from kvemb.tiers.partition import Owners


class TableOperations(TableUpdates):
    """The calls on one variable's rows, for arrays in the host's or the GPU's memory.

    For the GPU's, REQUIRES: HotTables.device_rows.
    """

    _hot_tables: GpuTables  # for the calls of this file

    @property
    def device_rows(self) -> DeviceRows:
        """The rows on the device."""
        device_rows = self._hot_tables.device_rows
        assert device_rows is not None
        return device_rows

    def copy(self, array: DeviceArray) -> DeviceArray:
        """Return a private copy, which does not change."""
        with self._storage.access.held(land=False):
            copied = self.device_rows.copy(array)
        self.give_back(array)
        return copied

    def to_host(self, *arrays: DeviceArray) -> list[npt.NDArray[Any]]:
        """Return copies of arrays."""
        with self._storage.access.held(land=False), self.device_rows.on(*arrays):
            return [self.device_rows.to_host(array) for array in arrays]

    def keys_to_host(self, keys: DeviceArray) -> Keys:
        """Return a copy of keys as int64."""
        (copied,) = self.to_host(keys)
        return copied.astype(np.int64, copy=False)

    def prefetch_on_device(self, keys: DeviceArray, *, after_lookup: bool) -> None:
        """Do what prefetch does. Does not wait for keys. If memory is short, nothing is read ahead."""
        with self._storage.access.held(land=False), self.device_rows.on(keys):
            self._storage.state.check_open()
            download = self.device_rows.begin_to_host(keys)
        self.give_back(keys)
        if download is not None:
            self._storage.ahead.start(lambda: download().astype(np.int64, copy=False), after_lookup=after_lookup)

    # Reading.

    @repeat_if_refreshed
    def lookup_on_device(
        self,
        keys: DeviceArray,
        out: DeviceArray,
        exists: DeviceArray | None,
        *,
        touch: bool,
        counts: DeviceCounts | None = None,
    ) -> None:
        """Do what lookup does; out (n, dim), exists (n,), bool, and counts (n,) are on the device.

        REQUIRES: the caller then calls storage.ahead.looked_up().
        """
        device_rows = self.device_rows
        with self._storage.reading():
            rule, now = self._begin_use(touch)
            given = [array for array in (exists, None if counts is None else counts.array) if array is not None]
            with device_rows.on(keys, out, *given):
                if rule is not None:
                    self._copy_before_change(keys)
                missing = device_rows.lookup(keys, out, exists, rule, now, None if counts is None else counts.array)
                wanted, first = missing.keys, np.arange(len(missing.keys))
                if counts is not None and len(wanted):  # each occurrence of the few keys that are not on the device
                    times = device_rows.take(counts.array, missing.positions)
                    wanted, first = np.repeat(wanted, times), np.cumsum(times) - times
                if rule is ScoreRule.CUSTOM:
                    each = None if counts is None else np.delete(device_rows.to_host(counts.array), missing.positions)
                    self._scoring.use_hot(np.delete(self._copied(keys), missing.positions), now, each)
            uses = keys.size if counts is None else counts.uses
            if not len(missing.keys):
                self._storage.counts.hits += uses
                if keys.borrowed or out.borrowed:
                    device_rows.finish()
                return
            rows = np.empty((len(wanted), self._schema.dim), self._schema.value_dtype)
            absent = self._lookup_host(wanted, rows, rule, now)
            self._storage.counts.hits += uses - len(absent)
            self._storage.counts.misses += len(absent)
            parts: list[PartOfLookup] = []
            found = np.ones(len(rows), np.bool_)
            if len(absent):
                parts = self._begin_missed(wanted, MissedKeys(absent, None if rule is None else now), rows, found)
        self._finish(parts)
        self._spread(keys, out, missing.positions, rows[first])
        if exists is not None:
            self._spread(keys, exists, missing.positions, found[first])
        self.give_back(keys, out)

    def give_back(self, *arrays: DeviceArray) -> None:
        """Wait for the work on borrowed arrays (DeviceArray.borrowed), which may be reused after the call."""
        if any(array.borrowed for array in arrays):
            with self._storage.access.held(land=False):
                self.device_rows.finish()

    def _lookup_host(self, keys: Keys, rows: npt.NDArray[Any], rule: ScoreRule | None, now: float) -> Positions:
        """Look up keys that are not on the device in the host tier; return the positions of keys that are not there."""
        if rule is not None:
            self._storage.snapshot.copy_before_change(keys, None, self._hot_tables.owners(keys))
        absent = self._hot_tables.lookup_host(keys, rows, rule, now)
        if rule is ScoreRule.CUSTOM and len(absent) < len(keys):
            self._scoring.use_hot(np.delete(keys, absent), now)
        return absent

    def _copy_before_change(self, keys: DeviceArray) -> None:
        """Let a snapshot copy rows that may change."""
        if self._storage.snapshot.under_way:
            copied = self._copied(keys)
            self._storage.snapshot.copy_before_change(copied, None, self._hot_tables.owners(copied))

    def _copied(self, keys: DeviceArray) -> Keys:
        """Return a copy of keys as int64. REQUIRES: device_rows.on()."""
        return self.device_rows.to_host(keys).astype(np.int64, copy=False)

    def _spread(self, keys: DeviceArray, array: DeviceArray, positions: Positions, rows: npt.NDArray[Any]) -> None:
        with self._storage.access.held(land=False), self.device_rows.on(keys, array):
            self.device_rows.spread(array, positions, rows)

    @repeat_if_refreshed
    def pool_on_device(self, keys: Keys, bags: Bags, out: DeviceArray, *, touch: bool) -> None:
        """Do what pool does; out (b, dim) is on the device, the keys are in the host's memory.

        Bags with keys that are not hot on the device are pooled on the host.
        """
        below: Positions = np.empty(0, np.int64)

        def pooled_on_device(_: Owners, rule: ScoreRule | None, now: float) -> Positions:
            nonlocal below
            with self.device_rows.on(out):
                missing = self.device_rows.pool(keys, bags, out, rule, now)
            rows = np.empty((len(missing), self._schema.dim), self._schema.value_dtype)
            absent = self._hot_tables.lookup_host(keys[missing], rows, rule, now)  # records uses; pooling reads again
            below = np.delete(missing, absent)
            return missing[absent]

        with self._storage.reading():
            missed = self._read_hot(keys, touch, pooled_on_device)
        if missed is None:
            missed = MissedKeys(np.empty(0, np.int64), None)
        chosen = bags.holding(np.concatenate([below, missed.positions]))
        if len(chosen):
            pooled = np.empty((len(chosen), self._schema.dim), self._schema.value_dtype)
            self._pool_chosen(keys, bags, chosen, missed, pooled)
        self._storage.ahead.looked_up()
        if len(chosen):
            self._spread(out, out, chosen, pooled)

    # Changing.

    @property
    def _by_host(self) -> bool:
        """Whether rows are needed in the host's memory before or after they change: for a log, or a constraint."""
        return self._storage.log.active or self._constraining is not None

    def _prepare_missing(self, count: int, change: PlannedChange) -> None:
        """Allocate the buffers of a call's last part before its first part begins, so that both are done or neither.

        count: the last part's keys, which may be hot by then. Raises MemoryError.
        """
        if count:
            self._hot_tables.prepare(None, min(count, self._storage.limits.call_rows), change)

    def upsert_on_device(self, keys: DeviceArray, values: DeviceArray) -> None:
        """Do what upsert does."""
        storage, device_rows = self._storage, self.device_rows
        if self._by_host:
            self.upsert(self.keys_to_host(keys), *self.to_host(values))
            return
        with storage.writing(), device_rows.on(keys, values):
            self._copy_before_change(keys)
            missing = device_rows.find(keys)
            rows = device_rows.take(values, missing.positions)
            self._prepare_missing(len(rows), PlannedChange(embeddings=1, matching=self._factory.matching))
            device_rows.prepare(matching=self._factory.matching)
            with storage.access.poisoning():
                device_rows.assign(values, storage.step)
                if self._factory.matching is not None:
                    device_rows.match(self._factory.matching, storage.step)
        self.give_back(keys, values)
        if len(missing.keys):
            self.upsert(missing.keys, rows)

    def accum_on_device(self, keys: DeviceArray, old: DeviceArray, new: DeviceArray, exists: DeviceArray) -> None:
        """Do what accum does."""
        storage, device_rows = self._storage, self.device_rows
        if self._by_host:
            self.accum(self.keys_to_host(keys), *self.to_host(old, new, exists))
            return
        with storage.writing(), device_rows.on(keys, old, new, exists):
            self._copy_before_change(keys)
            missing = device_rows.find(keys)
            rest = [device_rows.take(array, missing.positions) for array in (old, new, exists)]
            self._prepare_missing(len(missing.keys), PlannedChange(embeddings=2, matching=self._factory.matching))
            device_rows.prepare(matching=self._factory.matching)
            with storage.access.poisoning():
                device_rows.only(exists)
                device_rows.add(old, new, storage.step)
                if self._factory.matching is not None:
                    device_rows.match(self._factory.matching, storage.step)
        self.give_back(keys, old, new, exists)
        if len(missing.keys):
            self.accum(missing.keys, *rest)

    def apply_gradients_on_device(self, keys: DeviceArray, grads: DeviceArray, *, acknowledge: bool = True) -> None:
        """Do what apply_gradients does. The steps on the device and those on the host have the same number."""
        storage, device_rows, optimizer = self._storage, self.device_rows, self._factory.optimizer
        assert optimizer is not None
        if self._by_host:
            self.apply_gradients(self.keys_to_host(keys), *self.to_host(grads), acknowledge=acknowledge)
            return
        with storage.writing(), device_rows.on(keys, grads):
            self._copy_before_change(keys)
            missing = device_rows.find(keys)
            rows = device_rows.take(grads, missing.positions)
            number, distinct = storage.next_optimizer_step(), Unique(missing.keys)
            self._prepare_missing(
                len(distinct.keys), PlannedChange(optimizer=optimizer, grads=rows, sums=distinct.sums)
            )
            device_rows.prepare(optimizer)
            with storage.access.poisoning():
                device_rows.apply(optimizer, grads, storage.step, number)
                if optimizer.counts_steps and keys.size:
                    storage.count_optimizer_step(number)
        self.give_back(keys, grads)
        for chunk in self._chunks(len(distinct.keys)):
            part = distinct.keys[chunk], distinct.counts[chunk]
            self._apply(*part, optimizer, rows, distinct.sums.of(chunk), number)
