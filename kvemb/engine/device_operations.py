"""The calls on one variable whose arrays are in the memory of its GPU.

Rows that are hot there are read and changed there. Keys of the others come to the host, with the values and gradients
that are theirs, and are worked on as any call's; rows that a lookup finds for them go back. So a call has one part more
than kvemb.tiers.operations says, the rows that are hot on the GPU, which is atomic and comes first. REQUIRES:
HotTables.there. Arguments are checked (kvemb.engine.on_device).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import DeviceRows
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import DeviceArray
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.tiers.operations import TableOperations
from kvemb.tiers.reads import Missed, of_one_point


class DeviceOperations(TableOperations):
    """The calls on one variable's rows, for arrays in either memory."""

    @property
    def there(self) -> DeviceRows:
        """The rows on the device."""
        there = self._hot_tables.there
        assert there is not None
        return there

    def to_host(self, *arrays: DeviceArray) -> list[npt.NDArray[Any]]:
        """Return copies of arrays."""
        with self._storage.held(), self.there.on(*arrays):
            return [self.there.to_host(array) for array in arrays]

    def keys_to_host(self, keys: DeviceArray) -> Keys:
        """Return a copy of keys as int64."""
        (copied,) = self.to_host(keys)
        return copied.astype(np.int64, copy=False)

    # Reading.

    @of_one_point
    def lookup_there(self, keys: DeviceArray, out: DeviceArray, exists: DeviceArray | None, *, touch: bool) -> None:
        """Do what lookup does; out (n, dim) and exists (n,), bool, are on the device.

        REQUIRES: at the end of the call, storage.ahead.looked_up().
        """
        there, shape = self.there, (0, self._schema.dim)
        with self._storage.reading():
            rule, now = self._begin_use(touch)
            with there.on(keys, out):
                self._copy_before_change(keys, rule)
                missing = there.lookup(keys, out, exists, rule, now)
                if rule is ScoreRule.CUSTOM:
                    self._scoring.use_hot(np.delete(self._copied(keys), missing.positions), now)
            if not len(missing.keys):
                self._storage.counts.hits += keys.size
                if keys.borrowed or out.borrowed:
                    there.finish()
                return
            rows = np.empty((len(missing.keys), *shape[1:]), self._schema.value_dtype)
            absent = self._lookup_host(missing.keys, rows, rule, now)
            self._storage.counts.hits += keys.size - len(absent)
            self._storage.counts.misses += len(absent)
        found = np.ones(len(rows), np.bool_)
        if len(absent):
            self.lookup_cold(missing.keys, Missed(absent, None if rule is None else now), rows, found)
        self._spread(keys, out, missing.positions, rows)
        if exists is not None:
            self._spread(keys, exists, missing.positions, found)
        self._give_back(keys, out)

    def _give_back(self, *arrays: DeviceArray) -> None:
        """Wait until arrays of which nobody says when they were used last are in use no longer."""
        if any(array.borrowed for array in arrays):
            with self._storage.held():
                self.there.finish()

    def _lookup_host(self, keys: Keys, rows: npt.NDArray[Any], rule: ScoreRule | None, now: float) -> Positions:
        """Look up keys that are not on the device, in the table below it; return the positions that are not there."""
        if rule is not None:
            self._storage.copy_before_change(keys, self._hot_tables.owners(keys))
        absent = self._hot_tables.lookup_host(keys, rows, rule, now)
        if rule is ScoreRule.CUSTOM and len(absent) < len(keys):
            self._scoring.use_hot(np.delete(keys, absent), now)
        return absent

    def _copy_before_change(self, keys: DeviceArray, rule: ScoreRule | None = ScoreRule.LAST_USE) -> None:
        """A snapshot under way copies rows that may change. rule: how uses are recorded; None: nothing changes."""
        if rule is not None and self._storage.snapshot_under_way:
            copied = self._copied(keys)
            self._storage.copy_before_change(copied, self._hot_tables.owners(copied))

    def _copied(self, keys: DeviceArray) -> Keys:
        """Return a copy of keys as int64. REQUIRES: there.on()."""
        return self.there.to_host(keys).astype(np.int64, copy=False)

    def _spread(self, keys: DeviceArray, array: DeviceArray, positions: Positions, rows: npt.NDArray[Any]) -> None:
        with self._storage.held(), self.there.on(keys, array):
            self.there.spread(array, positions, rows)

    @of_one_point
    def pool_there(self, keys: Keys, bags: Bags, out: DeviceArray, *, touch: bool) -> None:
        """Do what pool does; out (b, dim) is on the device, the keys are in the host's memory.

        If one of the keys is in the table below the device's, all bags are pooled on the host.
        """
        missed: Missed | bool | None = False
        with self._storage.reading():
            owners = self._hot_tables.owners(keys)
            if owners is None or not owners.any():
                missed = self._record(keys, touch, lambda _, rule, now: self._pooled_there(keys, bags, out, rule, now))
        if missed is None:
            self._storage.ahead.looked_up()
            return
        chosen = bags.holding(missed.positions) if isinstance(missed, Missed) else np.arange(bags.bag_count)
        pooled = np.empty((len(chosen), self._schema.dim), self._schema.value_dtype)
        if isinstance(missed, Missed):
            self._pool_chosen(keys, bags, chosen, missed, pooled)
            self._storage.ahead.looked_up()
        else:
            self.pool(keys, bags, pooled, touch=touch)
        self._spread(out, out, chosen, pooled)

    def _pooled_there(self, keys: Keys, bags: Bags, out: DeviceArray, rule: ScoreRule | None, now: float) -> Positions:
        with self.there.on(out):
            return self.there.pool(keys, bags, out, rule, now)

    # Changing.

    @property
    def _by_host(self) -> bool:
        """Whether rows are needed in the host's memory before or after they change: for a log, or a constraint."""
        return self._storage.log.active or self._constraining is not None

    def upsert_there(self, keys: DeviceArray, values: DeviceArray) -> None:
        """Do what upsert does."""
        storage, there = self._storage, self.there
        if self._by_host:
            self.upsert(self.keys_to_host(keys), *self.to_host(values))
            return
        with storage.writing(), there.on(keys, values):
            self._copy_before_change(keys)
            missing = there.find(keys)
            rows = there.take(values, missing.positions)
            with storage.changing():
                there.assign(values, storage.step)
                if self._matching is not None:
                    there.match(self._matching, storage.step)
        self._give_back(keys, values)
        if len(missing.keys):
            self.upsert(missing.keys, rows)

    def accum_there(self, keys: DeviceArray, old: DeviceArray, new: DeviceArray, exists: DeviceArray) -> None:
        """Do what accum does."""
        storage, there = self._storage, self.there
        if self._by_host:
            self.accum(self.keys_to_host(keys), *self.to_host(old, new, exists))
            return
        with storage.writing(), there.on(keys, old, new, exists):
            self._copy_before_change(keys)
            missing = there.find(keys)
            rest = [there.take(array, missing.positions) for array in (old, new, exists)]
            with storage.changing():
                there.only(exists)
                there.add(old, new, storage.step)
                if self._matching is not None:
                    there.match(self._matching, storage.step)
        self._give_back(keys, old, new, exists)
        if len(missing.keys):
            self.accum(missing.keys, *rest)

    def apply_gradients_there(self, keys: DeviceArray, grads: DeviceArray, *, acknowledge: bool = True) -> None:
        """Do what apply_gradients does. The steps on the device and those on the host have the same number."""
        storage, there, optimizer = self._storage, self.there, self.optimizer
        assert optimizer is not None
        if self._by_host:
            self.apply_gradients(self.keys_to_host(keys), *self.to_host(grads), acknowledge=acknowledge)
            return
        with storage.writing(), there.on(keys, grads):
            self._copy_before_change(keys)
            missing = there.find(keys)
            rows = there.take(grads, missing.positions)
            number = storage.next_optimizer_step()
            with storage.changing():
                there.apply(optimizer, grads, storage.step, number)
                if optimizer.counts_steps:
                    storage.count_optimizer_step(number)
        self._give_back(keys, grads)
        if len(missing.keys):
            distinct = Unique(missing.keys)
            for chunk in self._chunks(len(distinct.keys)):
                part = distinct.keys[chunk], distinct.counts[chunk]
                self._apply(*part, optimizer, rows, distinct.sums.of(chunk), number)
