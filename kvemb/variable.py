"""The public face of a table: checks what it is given, and hands it to the tiers.

Arguments follow TensorFlow Recommenders-Addons' dynamic_embedding.Variable and get_variable, in name, order and
default. Thread-safe: each call is atomic per key.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import registry
from kvemb.arguments import (
    DIM,
    KEY_DTYPE,
    VALUE_DTYPE,
    asked_shape,
    check_name,
    check_optimizer,
    check_stored,
    checked,
    creator_for,
    parse_devices,
    stored_optimizer,
    tell_if_default,
)
from kvemb.checks.numeric import as_int
from kvemb.contracts import ColdStore, HotTable
from kvemb.durability import cold_databases
from kvemb.durability.manifest import VariableEntry
from kvemb.durability.point_writer import Part
from kvemb.handle import Handle
from kvemb.initializers import Initializer, as_initializer, initializer_from_json
from kvemb.opening import default_store
from kvemb.optimizers import Optimizer, as_optimizer
from kvemb.options import Creator, MemoryCreator, RocksDBCreator, format_bytes
from kvemb.restrict import RestrictPolicy, as_policy, policy_from_json
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import unordered_keys
from kvemb.rows.schema import Schema, as_keys, as_values, public_keys
from kvemb.rows.tensors import plain
from kvemb.seeding import seeded
from kvemb.stats import Stats
from kvemb.store import GraphKeys, Store
from kvemb.tiers.hot_tables import HotTables, Partitioner, default_partitioner
from kvemb.tiers.operations import TableOperations
from kvemb.tiers.row_factory import RowFactory
from kvemb.tiers.scoring import Scoring
from kvemb.tiers.sizing import make_tables
from kvemb.tiers.storage import TieredStorage

EXPORT_ROWS = 65_536


class Variable(Handle):
    """An embedding table: rows of `dim` values by key, with their optimizer's slots and a score.

    Get one with Store.get_variable or kvemb.get_variable, which explain the arguments. Made by its class it must not
    be open yet: ValueError.
    """

    def __init__(
        self,
        key_dtype: npt.DTypeLike = KEY_DTYPE,
        value_dtype: npt.DTypeLike = VALUE_DTYPE,
        dim: int = DIM,
        devices: str | list[str] | None = None,
        partitioner: Partitioner = default_partitioner,
        shared_name: str | None = None,
        name: str = "DynamicEmbedding_Variable",
        initializer: Initializer | npt.ArrayLike | None = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: Creator | None = None,
        restrict_policy: RestrictPolicy | type[RestrictPolicy] | None = None,
        bp_v2: bool = False,
        *,
        store: Store | None = None,
        optimizer: Optimizer | None = None,
        hot_rows: int | None = None,
    ) -> None:
        store = default_store() if store is None else checked(store, Store, "store", "kvemb.open(path)")
        check_name(name)
        with store._lock:
            store.state.check_open()
            if name in store._opened:
                raise ValueError(f"variable {name!r} is open already; use get_variable({name!r}, ...) to get it")
            stored = store._manifest.variables.get(name)
            key_type, value_type, width = asked_shape(stored, key_dtype, value_dtype, dim)
            first_rows = as_int(init_size, "init_size", 0)
            chosen = as_optimizer(optimizer)
            policy = as_policy(restrict_policy)
            if stored is None:
                initial = seeded(as_initializer(initializer, width, value_type), name)
            else:
                asked = None if initializer is None else as_initializer(initializer, width, value_type)
                check_stored(name, stored, key_type, value_type, width, asked, chosen, policy)
                initial = initializer_from_json(stored.initializer)
                chosen = chosen or stored_optimizer(stored)
                policy = policy or policy_from_json(stored.policy)
            if chosen is not None and value_type.kind in "iu":
                raise ValueError(
                    f"optimizer must be None for value_dtype {value_type.name}, got {chosen!r}; train floats"
                )
            schema = Schema(key_type, value_type, width, chosen.shapes(width) if chosen else ())
            creator = creator_for(kv_creator, stored)
            if stored is None:
                store.state.check_writable()
            if not callable(partitioner):
                raise TypeError(f"partitioner must be callable as fn(keys, shard_num), got {partitioner!r}")
            self._devices = parse_devices(devices)
            self._store, self._name, self._schema = store, name, schema
            self._initializer, self._creator = initial, creator
            self._trainable, self._checkpointed, self._bp_v2 = bool(trainable), bool(checkpoint), bool(bp_v2)
            self._partitioner = partitioner
            self._policy = None if policy is None else policy.bind(self)
            self._bytes_cold: int | None = None
            self._last_stats: Stats | None = None
            cold = self._cold(stored)
            try:
                sized = make_tables(name, schema, self._devices, first_rows, hot_rows, store.budgets, store.limits)
            except BaseException:
                if stored is None and self.persistent:
                    store._in_order(store._database.drop, name)
                raise
            self._hot_tables = HotTables(sized.tables, partitioner, key_type, sized.budgets, growing=hot_rows is None)
            self._storage = TieredStorage(
                schema,
                self._hot_tables,
                cold,
                state=store.state,
                executor=store.spiller,
                readers=store.readers,
                spill_rows=sized.spill_rows,
                limits=store.limits,
                recorder=store._changes.of(name) if self.persistent and not store.state.read_only else None,
                log=store._log.of(name) if self.persistent and store._log else None,
                size=stored.rows if stored else 0,
                step=stored.step if stored else 0,
            )
            kernels = registry.row_kernels()
            factory = RowFactory(schema, initial, chosen, kernels)
            scratch = None if store.state.read_only else store.path
            scoring = Scoring(self._policy, self._hot_tables)
            self._operations = TableOperations(self._storage, factory, scoring, kernels, chosen, scratch)
            self._warm(store, name)
            store._opened[name] = self
            store._add_to_collection(GraphKeys.GLOBAL_VARIABLES, self)
            if self._trainable:
                store._add_to_collection(GraphKeys.TRAINABLE_VARIABLES, self)
            if stored is None:
                tell_if_default(name, dim)
            if stored is None and store._log is not None:
                store.flush()  # the log names only variables that the point before it has

    def _warm(self, store: Store, name: str) -> None:
        for ordered in store._hot_keys(name):
            self._operations.warm(unordered_keys(ordered, self._schema))

    def _cold(self, stored: VariableEntry | None) -> ColdStore:
        if isinstance(self._creator, MemoryCreator):
            return cold_databases.in_memory(self._schema)
        # In order with a checkpoint of the database that may have begun: it must not have what came after.
        store = self._store
        if stored is None:
            return store._in_order(store._database.create, self._name, self._schema, self._creator)
        return store._in_order(store._database.attach, self._name, self._schema)

    # What it is.

    @property
    def name(self) -> str:
        """The variable's name in its store."""
        return self._name

    @property
    def dim(self) -> int:
        """Values in a row."""
        return self._schema.dim

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of keys."""
        return self._schema.key_dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of values."""
        return self._schema.value_dtype

    @property
    def devices(self) -> tuple[str, ...]:
        """One device for each hot table."""
        return self._devices

    @property
    def partitioner(self) -> Partitioner:
        """The function that gives each key its hot table."""
        return self._partitioner

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """The policy, bound to this variable, or None."""
        return self._policy

    @property
    def tables(self) -> tuple[HotTable, ...]:
        """The hot tables, one a device. Not to be changed."""
        return tuple(self._hot_tables.tables)

    @property
    def trainable(self) -> bool:
        """Whether apply_gradients is allowed."""
        return self._trainable

    @property
    def initializer(self) -> Initializer:
        """What a missing key reads as."""
        return self._initializer

    @property
    def optimizer(self) -> Optimizer | None:
        """What apply_gradients uses. Set another of the same class to change its numbers, such as the learning rate.

        It is used from the next apply_gradients on, and the next durable point records it. Raises TypeError;
        SchemaMismatch for another class, whose slots the rows do not carry; Closed, ReadOnly, Poisoned.
        """
        return self._operations.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be an Optimizer, got {optimizer!r}; give one such as Adagrad(0.01)")
        check_optimizer(self.name, self.optimizer, optimizer)
        self._operations.train_with(optimizer)

    @property
    def bp_v2(self) -> bool:
        """Whether training adds deltas (accum) in place of setting values."""
        return self._bp_v2

    @property
    def persistent(self) -> bool:
        """Whether its rows outlive the store's closing."""
        return not isinstance(self._creator, MemoryCreator)

    @property
    def resource_handle(self) -> tuple[Store, str]:
        """The store and the name that together mean this variable."""
        return self._store, self._name

    @property
    def stats(self) -> Stats:
        """What it has done since it was opened, a copy; of a closed store, what it had done by then."""
        if self._last_stats is not None:
            return self._last_stats
        stats = self._storage.stats()
        return stats if self._bytes_cold is None else replace(stats, bytes_cold=self._bytes_cold)

    def __repr__(self) -> str:
        kind = f"{self.key_dtype.name} -> {self.dim} x {self.value_dtype.name}"
        if self._store.state.gone or self._last_stats is not None:
            return f"<kvemb.Variable {self.name!r} {kind}, closed>"
        stats = self.stats
        return (
            f"<kvemb.Variable {self.name!r} {kind}, {stats.rows:,} rows, {stats.rows_hot:,} hot in "
            f"{format_bytes(stats.bytes_hot)}, {format_bytes(stats.bytes_cold)} cold, hit rate {stats.hit_rate:.1%}>"
        )

    # What it does.

    def lookup(self, keys: npt.ArrayLike, return_exists: bool = False, *, touch: bool = True) -> Any:
        """Return the rows of keys, keys.shape + (dim,), a fresh array; missing keys give the initializer's row.

        With return_exists also a bool array of keys.shape. Inserts nothing. Each occurrence counts as a use for the
        policy unless touch=False. Raises TypeError for keys of a dtype that would lose information; Closed, Corruption.
        """
        wanted, flat = self._flat(keys)
        out = np.empty((len(flat), self.dim), self.value_dtype)
        exists = np.empty(len(flat), np.bool_) if return_exists else None
        self._operations.lookup(flat, out, exists, touch=bool(touch))
        rows = out.reshape(*wanted, self.dim)
        return rows if exists is None else (rows, exists.reshape(wanted))

    def upsert(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Insert rows, or replace the embedding of those that exist, which keep slots and score.

        values: keys.shape + (dim,), of the value dtype, or lists. Of duplicate keys the last wins. Where a cold
        read fails, keys that were hot may be replaced already. Raises TypeError, ValueError; Closed, ReadOnly,
        Poisoned.
        """
        shape, flat = self._flat_to_change(keys)
        given = as_values(values, self._schema.value_dtype, (*shape, self.dim))
        self._operations.upsert(flat, given)

    def accum(
        self, keys: npt.ArrayLike, old_values: npt.ArrayLike, new_values: npt.ArrayLike, exists: npt.ArrayLike
    ) -> None:
        """Where exists and the key is present add new - old; where not exists and the key is absent insert new; else
        ignore.

        old_values, new_values: keys.shape + (dim,); exists: bool of keys.shape, as lookup returned it. Duplicates take
        effect in order, so deltas add up. This is the reference's update with bp_v2: concurrent workers lose nothing.
        """
        shape, flat = self._flat_to_change(keys)
        old = as_values(old_values, self._schema.value_dtype, (*shape, self.dim), "old_values")
        new = as_values(new_values, self._schema.value_dtype, (*shape, self.dim), "new_values")
        told = plain(exists, np.dtype(np.bool_), "exists")
        believed = np.asarray(told, None if np.size(told) else np.bool_)
        if believed.dtype != np.bool_:
            raise TypeError(f"exists must be bool, got {believed.dtype.name}")
        if believed.shape != shape:
            raise ValueError(f"exists must have the shape of keys, {shape}, got {believed.shape}")
        self._operations.accum(flat, old, new, believed.reshape(-1))

    def apply_gradients(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> None:
        """Take one optimizer step on the rows of keys; missing rows are made by the initializer first.

        grads: keys.shape + (dim,), float32, for float64 values float64. Lists, float16 and whatever else float32 holds
        exactly are converted; float64 is refused: grads.astype("float32"). Gradients of duplicate keys are summed
        first. Raises TypeError, ValueError, also when the variable is not trainable or has no optimizer;
        Closed, ReadOnly, Poisoned.
        """
        if not self._trainable:
            raise ValueError(f"variable {self.name!r} is not trainable; create it with trainable=True to train it")
        if self.optimizer is None:
            raise ValueError(
                f"variable {self.name!r} has no optimizer; create it with optimizer=kvemb.optimizers.Adagrad()"
            )
        shape, flat = self._flat_to_change(keys)
        given = as_values(grads, self._schema.slot_dtype, (*shape, self.dim), "grads")
        self._operations.apply_gradients(flat, given)

    def remove(self, keys: npt.ArrayLike) -> None:
        """Drop rows with their slots and scores; missing keys are ignored."""
        _, flat = self._flat_to_change(keys)
        self._operations.remove(flat)

    def clear(self) -> None:
        """Drop every row."""
        self._operations.clear()

    def restrict(self, num_reserved: int, **kwargs: Any) -> int | None:
        """Keep the num_reserved rows with the highest scores, over both tiers; ties go to the larger key.

        kwargs go to restrict_policy.apply_restriction: trigger=n does nothing unless size() exceeds n. Returns how
        many rows left. A variable without a policy keeps every row, and returns None: it has no scores to choose by.
        Raises TypeError, ValueError; Closed, ReadOnly, Poisoned.
        """
        reserved = as_int(num_reserved, "num_reserved", 0)
        return None if self._policy is None else self._policy.apply_restriction(reserved, **kwargs)

    def size(self, index: int | None = None) -> int:
        """Return the number of rows, hot and cold, exactly.

        index: count only the keys the partitioner gives that device; with several devices this reads every key. Raises
        IndexError.
        """
        if index is None:
            self._storage.state.check_open()
            return self._storage.size
        number, count = operator.index(index), len(self._devices)
        if not 0 <= number < count:
            raise IndexError(f"index must be from 0 to {count - 1}, got {number}")
        if count == 1:
            return self.size()
        return sum(
            int(np.sum(self._hot_tables.owners(rows.keys) == number)) for rows in self._storage.scan(EXPORT_ROWS)
        )

    def export(self, *, with_slots: bool = False, with_scores: bool = False) -> tuple[npt.NDArray[Any], ...]:
        """Return (keys, values) of all rows, in key order: copies, as large as the table. See export_batches.

        with_slots adds a dict from slot name to (n, width); with_scores adds scores (n,), last.
        """
        batches = list(self.export_batches(EXPORT_ROWS, with_slots=with_slots, with_scores=with_scores))
        if not batches:
            batches = [self._batch(RowBlock(self._schema, 0), with_slots, with_scores)]
        return tuple(_joined(column) for column in zip(*batches, strict=True))

    def export_batches(
        self, n: int = EXPORT_ROWS, *, with_slots: bool = False, with_scores: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Yield all rows in key order, n at a time, as export returns them, from one instant: that of this call.

        Dirty rows are written to the cold store first, so a poisoned store refuses. Records no use. Raises Closed, also
        from a later batch.
        """
        size = as_int(n, "n", 1)
        scan = self._storage.scan(size)
        return (self._batch(rows, with_slots, with_scores) for rows in scan)

    def _batch(self, rows: RowBlock, with_slots: bool, with_scores: bool) -> tuple[Any, ...]:
        self._storage.state.check_open()
        batch: tuple[Any, ...] = (public_keys(rows.keys, self.key_dtype), rows.embeddings())
        if with_slots:
            batch += (rows.slots_by_name(),)
        return (*batch, rows.scores) if with_scores else batch

    def prefetch(self, keys: npt.ArrayLike) -> None:
        """Start reading the cold rows of keys in the background, for the call that follows. Changes no result."""
        _, flat = self._flat(keys)
        self._operations.prefetch(flat)

    # For the policy it is bound to.

    def _record_uses(self, keys: npt.ArrayLike) -> None:
        self._operations.use(self._flat(keys)[1])

    def _restrict(self, num_reserved: int, trigger: int | None) -> int:
        return self._operations.restrict(num_reserved, trigger)

    def _scores(self, keys: npt.ArrayLike) -> npt.NDArray[np.float64]:
        shape, flat = self._flat(keys)
        return self._operations.scores(flat).reshape(shape)

    # For the store.

    def _keep_bytes_cold(self) -> None:
        """Keep what stats cannot ask once the store is closed."""
        if self._bytes_cold is None:
            self._bytes_cold = self._storage.cold.disk_bytes()

    def _part(self) -> Part:
        return Part(self._name, self._schema, self._creator, self._storage, self._entry)

    def _entry(self) -> VariableEntry:
        return VariableEntry(
            key_dtype=self.key_dtype.name,
            value_dtype=self.value_dtype.name,
            dim=self.dim,
            slots=self._schema.slots,
            initializer=self._initializer.to_json(),
            optimizer=self.optimizer.to_json() if self.optimizer else None,
            policy=self._policy.to_json() if self._policy else None,
            creator=asdict(self._creator),
            trainable=self._trainable,
            checkpoint=self._checkpointed,
            bp_v2=self._bp_v2,
            rows=self._storage.size,
            step=self._storage.step,
        )

    def _flat(self, keys: npt.ArrayLike) -> tuple[tuple[int, ...], npt.NDArray[np.int64]]:
        array = as_keys(keys, self._schema.key_dtype)
        return array.shape, array.reshape(-1)

    def _flat_to_change(self, keys: npt.ArrayLike) -> tuple[tuple[int, ...], npt.NDArray[np.int64]]:
        shape, flat = self._flat(keys)
        self._hot_tables.owners(flat)  # a partitioner that raises does so before anything changes
        return shape, flat


def open_stored(store: Store, name: str, entry: VariableEntry) -> Variable:
    """Open a stored variable as it is stored; or make an empty one as it is stored elsewhere."""
    return Variable(
        entry.key_dtype,
        entry.value_dtype,
        entry.dim,
        name=name,
        initializer=initializer_from_json(entry.initializer),
        optimizer=stored_optimizer(entry),
        restrict_policy=policy_from_json(entry.policy),
        kv_creator=RocksDBCreator.from_json(entry.creator),
        trainable=entry.trainable,
        checkpoint=entry.checkpoint,
        bp_v2=entry.bp_v2,
        store=store,
    )


def _joined(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], dict):
        return {name: np.concatenate([part[name] for part in column]) for name in column[0]}
    return np.concatenate(column)
