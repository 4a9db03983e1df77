"""The public face of a table: checks what it is given, and hands it to the tiers.

Arguments follow TensorFlow Recommenders-Addons' dynamic_embedding.Variable and get_variable, in name, order and default.
Thread-safe: each call is atomic per key.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import registry
from kvemb.contracts import ColdStore, HotTable
from kvemb.errors import SchemaMismatch
from kvemb.initializers import Initializer, as_initializer, initializer_from_json
from kvemb.manifest import VariableEntry
from kvemb.optimizers import Optimizer, as_optimizer, optimizer_from_json
from kvemb.options import Creator, MemoryCreator, RocksDBCreator, format_bytes
from kvemb.restrict import RestrictPolicy, as_policy, policy_class_name, policy_from_json
from kvemb.rows import RowBlock
from kvemb.schema import Schema, as_keys, as_values, key_dtype as as_key_dtype, value_dtype as as_value_dtype
from kvemb.shards import Partitioner, Shards, default_partitioner
from kvemb.stats import Stats
from kvemb.store import Store, default_store
from kvemb.tiered import Tiered

DEFAULT_INIT_ROWS = 8192
EXPORT_ROWS = 65_536


class GraphKeys:
    """Names of a store's collections."""

    GLOBAL_VARIABLES = "variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    REGULARIZATION_LOSSES = "regularization_losses"


class Variable:
    """An embedding table: rows of `dim` values by key, with their optimizer's slots and a score.

    key_dtype: int64, int32 or uint64. value_dtype: float32, float64, float16, bfloat16, int8, int32 or int64. dim: at least 1.
    devices: None (the CPU), a device, or a list of devices with one hot table each. partitioner(keys, n): each key's table.
    initializer: what a missing key reads as: None (0), a number, `dim` values, or an Initializer. trainable, checkpoint: whether it
    joins TRAINABLE_VARIABLES, and is in checkpoints. init_size: rows the hot tables hold at first. kv_creator: where cold rows
    live. restrict_policy: a RestrictPolicy or a class of one. bp_v2: writers use accum, which adds, in place of upsert.
    shared_name is accepted and unused, as in the reference.
    store: the default store unless given. optimizer: what apply_gradients uses. hot_rows: cells of the hot tier, all reserved at
    once; None: a share of the store's budget, grown into under pressure.
    """

    def __init__(
        self,
        key_dtype: Any = "int64",
        value_dtype: Any = "float32",
        dim: int = 1,
        devices: str | list[str] | None = None,
        partitioner: Partitioner = default_partitioner,
        shared_name: str | None = None,
        name: str = "DynamicEmbedding_Variable",
        initializer: Any = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: Creator | None = None,
        restrict_policy: Any = None,
        bp_v2: bool = False,
        *,
        store: Store | None = None,
        optimizer: Optimizer | None = None,
        hot_rows: int | None = None,
    ) -> None:
        store = default_store() if store is None else _checked(store, Store, "store", "kvemb.open(path)")
        _check_name(name)
        with store._lock:
            store.health.check_open()
            if name in store._opened:
                raise ValueError(f"variable {name!r} is open already; use get_variable({name!r}, ...) to get it")
            stored = store._manifest.variables.get(name)
            keys, values = as_key_dtype(key_dtype), as_value_dtype(value_dtype)
            rows = _at_least(dim, 1, "dim")
            first_rows = _at_least(init_size, 0, "init_size")
            chosen = as_optimizer(optimizer)
            policy = as_policy(restrict_policy)
            if stored is None:
                start = as_initializer(initializer, rows, values)
            else:
                asked = None if initializer is None else as_initializer(initializer, rows, values)
                _check_stored(name, stored, keys, values, rows, asked, chosen, policy)
                start = initializer_from_json(stored.initializer)
                chosen = chosen or _stored_optimizer(stored)
                policy = policy or policy_from_json(stored.policy)
            if chosen is not None and values.kind in "iu":
                raise ValueError(f"optimizer must be None for value_dtype {values.name}, got {chosen!r}; train floats")
            schema = Schema(keys, values, rows, chosen.slots if chosen else ())
            creator = _creator(kv_creator, stored)
            if stored is None:
                store.health.check_writable()
            if not callable(partitioner):
                raise TypeError(f"partitioner must be callable as fn(keys, shard_num), got {partitioner!r}")
            self._devices = _devices(devices)
            self._store, self._name, self._schema = store, name, schema
            self._initializer, self._optimizer, self._creator = start, chosen, creator
            self._trainable, self._checkpointed, self._bp_v2 = bool(trainable), bool(checkpoint), bool(bp_v2)
            self._partitioner = partitioner
            self._policy = None if policy is None else policy.bind(self)
            tables = self._make_tables(first_rows, hot_rows)
            shards = Shards(tables, partitioner, keys, store.budget, growing=hot_rows is None)
            self._shards = shards
            self._tiered = Tiered(
                schema,
                shards,
                self._cold(stored),
                initializer=start,
                optimizer=chosen,
                policy=self._policy,
                health=store.health,
                executor=store.spiller,
                readers=store.readers,
                spill_rows=self._spill_rows,
                scratch=None if store.health.read_only else store.path,
                size=stored.rows if stored else 0,
                step=stored.step if stored else 0,
            )
            store._opened[name] = self
            store._add_to_collection(GraphKeys.GLOBAL_VARIABLES, self)
            if self._trainable:
                store._add_to_collection(GraphKeys.TRAINABLE_VARIABLES, self)

    def _make_tables(self, init_size: int, hot_rows: int | None) -> list[HotTable]:
        """Reserve memory for the spill buffer, read-ahead and hot tables, and make the tables."""
        budget, count = self._store.budget, len(self._devices)
        row_bytes = RowBlock.bytes_per_row(self._schema)
        share = min(budget.total // 16, budget.free // 4)
        # Two piles that wait to be written, and two reads ahead, of this many rows each.
        self._spill_rows = max(64, min(65_536, share // (4 * row_bytes)))
        makers = [registry.hot_table(device) for device in self._devices]
        cell_bytes = [maker.bytes_per_cell(self._schema) for maker in makers]
        if hot_rows is not None:
            cells = -(-_at_least(hot_rows, 1, "hot_rows") // count)
            first = [cells] * count
            most = first
        else:
            wanted = -(-(init_size or DEFAULT_INIT_ROWS) // count)
            most = [max(maker.cells_per_bucket, budget.free // count // size) for maker, size in zip(makers, cell_bytes, strict=True)]
            if init_size == 0:
                wanted = min(wanted, max(16, budget.free // count // (8 * max(cell_bytes))))
            # Starting at most / 2^k, doubling ends at `most` and not short of it.
            first = [_halved(limit, wanted) for limit in most]
        tables: list[HotTable] = []
        reserved = 4 * self._spill_rows * row_bytes
        needed = sum(-(-rows // 16) * 16 * size for rows, size in zip(first, cell_bytes, strict=True))
        what = "hot_rows" if hot_rows is not None else "init_size" if init_size else "a new variable"
        budget.reserve(reserved + needed, f"{what} of variable {self._name!r}")
        for maker, rows, limit in zip(makers, first, most, strict=True):
            tables.append(maker(self._schema, rows, limit))
        return tables

    def _cold(self, stored: VariableEntry | None) -> ColdStore:
        if isinstance(self._creator, MemoryCreator):
            cold: ColdStore = registry.cold_backend("memory")(self._schema)
            return cold
        database = self._store._database
        attached: ColdStore
        if stored is None:
            attached = database.create(self._name, self._schema, self._creator)
        else:
            attached = database.attach(self._name, self._schema)
        return attached

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
        return tuple(self._shards.tables)

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
        """What apply_gradients uses."""
        return self._optimizer

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
        """What it has done since it was opened, a copy."""
        return self._tiered.stats()

    def __repr__(self) -> str:
        kind = f"{self.key_dtype.name} -> {self.dim} x {self.value_dtype.name}"
        if self._store.health.closed:
            return f"<kvemb.Variable {self.name!r} {kind}, closed>"
        stats = self.stats
        return (
            f"<kvemb.Variable {self.name!r} {kind}, {stats.rows:,} rows, {stats.rows_hot:,} hot in "
            f"{format_bytes(stats.bytes_hot)}, {format_bytes(stats.bytes_cold)} cold, hit rate {stats.hit_rate:.1%}>"
        )

    # What it does.

    def lookup(self, keys: npt.ArrayLike, return_exists: bool = False, *, touch: bool = True) -> Any:
        """Return the rows of keys, keys.shape + (dim,), a fresh array; missing keys give the initializer's row.

        With return_exists also a bool array of keys.shape. Inserts nothing. Each occurrence counts as a use for the policy unless
        touch=False. Raises TypeError for keys of a dtype that would lose information; Closed, Corruption.
        """
        wanted, flat = self._flat(keys)
        out = np.empty((len(flat), self.dim), self.value_dtype)
        exists = np.empty(len(flat), np.bool_) if return_exists else None
        self._tiered.lookup(flat, out, exists, touch=bool(touch))
        rows = out.reshape(*wanted, self.dim)
        return rows if exists is None else (rows, exists.reshape(wanted))

    def upsert(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Insert rows, or replace the embedding of those that exist, which keep slots and score.

        values: keys.shape + (dim,), of the value dtype. Of duplicate keys the last wins. Raises TypeError, ValueError; Closed,
        ReadOnly, Poisoned.
        """
        shape, flat = self._flat(keys)
        given = as_values(values, self._schema.value_dtype, (*shape, self.dim))
        self._shards.of(flat)
        self._tiered.upsert(flat, given)

    def accum(
        self, keys: npt.ArrayLike, old_values: npt.ArrayLike, new_values: npt.ArrayLike, exists: npt.ArrayLike
    ) -> None:
        """Where exists and the key is present add new - old; where not exists and the key is absent insert new; else ignore.

        old_values, new_values: keys.shape + (dim,); exists: bool of keys.shape, as lookup returned it. Duplicates take effect in
        order, so deltas add up. This is the reference's update with bp_v2: concurrent workers lose nothing.
        """
        shape, flat = self._flat(keys)
        old = as_values(old_values, self._schema.value_dtype, (*shape, self.dim), "old_values")
        new = as_values(new_values, self._schema.value_dtype, (*shape, self.dim), "new_values")
        believed = np.asarray(exists, None if np.size(exists) else np.bool_)
        if believed.dtype != np.bool_:
            raise TypeError(f"exists must be bool, got {believed.dtype.name}")
        if believed.shape != shape:
            raise ValueError(f"exists must have the shape of keys, {shape}, got {believed.shape}")
        self._shards.of(flat)
        self._tiered.accum(flat, old, new, believed.reshape(-1))

    def apply_gradients(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> None:
        """Take one optimizer step on the rows of keys; missing rows are made by the initializer first.

        grads: keys.shape + (dim,); gradients of duplicate keys are summed first. Raises ValueError when the variable is not
        trainable or has no optimizer.
        """
        if not self._trainable:
            raise ValueError(f"variable {self.name!r} is not trainable; create it with trainable=True to train it")
        if self._optimizer is None:
            raise ValueError(f"variable {self.name!r} has no optimizer; create it with optimizer=kvemb.optimizers.Adagrad()")
        shape, flat = self._flat(keys)
        given = as_values(grads, self._schema.slot_dtype, (*shape, self.dim), "grads")
        self._shards.of(flat)
        self._tiered.apply_gradients(flat, given)

    def remove(self, keys: npt.ArrayLike) -> None:
        """Drop rows with their slots and scores; missing keys are ignored."""
        _, flat = self._flat(keys)
        self._shards.of(flat)
        self._tiered.remove(flat)

    def clear(self) -> None:
        """Drop every row."""
        self._tiered.clear()

    def restrict(self, num_reserved: int, **kwargs: Any) -> int | None:
        """Keep the num_reserved rows with the highest scores, over both tiers; ties go to the larger key.

        kwargs go to restrict_policy.apply_restriction: trigger=n does nothing unless size() exceeds n. Returns how many rows left,
        or None when the variable has no policy. Raises TypeError, ValueError.
        """
        if self._policy is None:
            return None
        return self._policy.apply_restriction(num_reserved, **kwargs)

    def size(self, index: int | None = None) -> int:
        """Return the number of rows, hot and cold, exactly.

        index: count only the keys the partitioner gives that device; with several devices this reads every key. Raises IndexError.
        """
        if index is None:
            self._store.health.check_open()
            return self._tiered.size
        number, count = operator.index(index), len(self._devices)
        if not 0 <= number < count:
            raise IndexError(f"index must be from 0 to {count - 1}, got {number}")
        if count == 1:
            return self.size()
        return sum(int((self._shards.of(rows.keys) == number).sum()) for rows in self._tiered.scan(EXPORT_ROWS))

    def export(self, *, with_slots: bool = False, with_scores: bool = False) -> tuple[npt.NDArray[Any], ...]:
        """Return (keys, values) of all rows, in key order: copies, as large as the table. See export_batches.

        with_slots adds a dict from slot name to (n, dim); with_scores adds scores (n,), last.
        """
        batches = list(self.export_batches(EXPORT_ROWS, with_slots=with_slots, with_scores=with_scores))
        if not batches:
            batches = [self._batch(RowBlock(self._schema, 0), with_slots, with_scores)]
        return tuple(_joined(column) for column in zip(*batches, strict=True))

    def export_batches(
        self, n: int = EXPORT_ROWS, *, with_slots: bool = False, with_scores: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Yield all rows in key order, n at a time, as export returns them, from one instant: that of this call.

        Dirty rows are written to the cold store first, so a poisoned store refuses. Records no use.
        """
        size = _at_least(n, 1, "n")
        scan = self._tiered.scan(size)
        return (self._batch(rows, with_slots, with_scores) for rows in scan)

    def _batch(self, rows: RowBlock, with_slots: bool, with_scores: bool) -> tuple[Any, ...]:
        keys = rows.keys.view(np.uint64) if self.key_dtype == np.uint64 else rows.keys.astype(self.key_dtype)
        batch: tuple[Any, ...] = (keys, rows.embeddings())
        if with_slots:
            batch += ({name: rows.slot(at).copy() for at, name in enumerate(self._schema.slots)},)
        return (*batch, rows.scores) if with_scores else batch

    def prefetch(self, keys: npt.ArrayLike) -> None:
        """Start reading the cold rows of keys in the background, for the call that follows. Changes no result."""
        _, flat = self._flat(keys)
        self._tiered.prefetch(flat)

    # For the policy it is bound to.

    def _record_uses(self, keys: npt.ArrayLike) -> None:
        self._tiered.use(self._flat(keys)[1])

    def _restrict(self, num_reserved: int, trigger: int | None) -> int:
        return self._tiered.restrict(num_reserved, trigger)

    def _scores(self, keys: npt.ArrayLike) -> npt.NDArray[np.float64]:
        shape, flat = self._flat(keys)
        return self._tiered.scores(flat).reshape(shape)

    # For the store.

    def _entry(self) -> VariableEntry:
        """REQUIRES: paused."""
        return VariableEntry(
            key_dtype=self.key_dtype.name,
            value_dtype=self.value_dtype.name,
            dim=self.dim,
            slots=self._schema.slots,
            initializer=self._initializer.to_json(),
            optimizer=self._optimizer.to_json() if self._optimizer else None,
            policy=self._policy.to_json() if self._policy else None,
            creator=asdict(self._creator),
            trainable=self._trainable,
            checkpoint=self._checkpointed,
            bp_v2=self._bp_v2,
            rows=self._tiered.size,
            step=self._tiered.step,
        )

    def _flat(self, keys: npt.ArrayLike) -> tuple[tuple[int, ...], npt.NDArray[np.int64]]:
        array = as_keys(keys, self._schema.key_dtype)
        return array.shape, array.reshape(-1)


def get_variable(
    name: str,
    key_dtype: Any = "int64",
    value_dtype: Any = "float32",
    dim: int = 1,
    devices: str | list[str] | None = None,
    partitioner: Partitioner = default_partitioner,
    shared_name: str = "get_variable",
    initializer: Any = None,
    trainable: bool = True,
    checkpoint: bool = True,
    init_size: int = 0,
    kv_creator: Creator | None = None,
    restrict_policy: Any = None,
    bp_v2: bool = False,
    *,
    store: Store | None = None,
    optimizer: Optimizer | None = None,
    hot_rows: int | None = None,
) -> Variable:
    """Return the variable of this name in the store: the open one, the stored one, or a new one.

    Arguments as for Variable. For one that exists, dim, dtypes, and (where they are given) initializer, optimizer and policy class
    must agree. Raises SchemaMismatch (a ValueError) naming the field when they do not.
    """
    store = default_store() if store is None else _checked(store, Store, "store", "kvemb.open(path)")
    _check_name(name)
    with store._lock:
        store.health.check_open()
        known = store._opened.get(name)
        if known is None:
            return Variable(
                key_dtype, value_dtype, dim, devices, partitioner, shared_name, name, initializer, trainable, checkpoint,
                init_size, kv_creator, restrict_policy, bp_v2, store=store, optimizer=optimizer, hot_rows=hot_rows,
            )  # fmt: skip
        values = as_value_dtype(value_dtype)
        asked = None if initializer is None else as_initializer(initializer, _at_least(dim, 1, "dim"), values)
        _check_stored(
            name, known._entry(), as_key_dtype(key_dtype), values, _at_least(dim, 1, "dim"), asked,
            as_optimizer(optimizer), as_policy(restrict_policy),
        )  # fmt: skip
        return known


def open_stored(store: Store, name: str, entry: VariableEntry) -> Variable:
    """Open a stored variable as it is stored."""
    return Variable(
        entry.key_dtype, entry.value_dtype, entry.dim, name=name, trainable=entry.trainable, checkpoint=entry.checkpoint,
        bp_v2=entry.bp_v2, store=store,
    )  # fmt: skip


def _check_stored(
    name: str,
    stored: VariableEntry,
    keys: np.dtype[Any],
    values: np.dtype[Any],
    dim: int,
    initializer: Initializer | None,
    optimizer: Optimizer | None,
    policy: RestrictPolicy | None,
) -> None:
    """Raise SchemaMismatch where what is asked for is not what is stored; None asks for nothing."""
    if stored.dim != dim:
        raise SchemaMismatch(name, "dim", stored.dim, dim)
    if stored.key_dtype != keys.name:
        raise SchemaMismatch(name, "key_dtype", stored.key_dtype, keys.name)
    if stored.value_dtype != values.name:
        raise SchemaMismatch(name, "value_dtype", stored.value_dtype, values.name)
    if initializer is not None:
        kept = initializer_from_json(stored.initializer)
        if not kept.agrees_with(initializer, dim, values):
            raise SchemaMismatch(name, "initializer", kept, initializer)
    kept_optimizer = _stored_optimizer(stored)
    if optimizer is not None and (kept_optimizer is None or kept_optimizer.name != optimizer.name):
        raise SchemaMismatch(name, "optimizer", kept_optimizer, optimizer)
    if policy is not None and policy_class_name(stored.policy) != policy_class_name(policy):
        raise SchemaMismatch(name, "restrict_policy", policy_class_name(stored.policy), policy_class_name(policy))


def _stored_optimizer(stored: VariableEntry) -> Optimizer | None:
    return None if stored.optimizer is None else optimizer_from_json(stored.optimizer)


def _creator(asked: Any, stored: VariableEntry | None) -> Creator:
    if asked is None:
        return RocksDBCreator() if stored is None else RocksDBCreator.from_json(stored.creator)
    if not isinstance(asked, (RocksDBCreator, MemoryCreator)):
        raise TypeError(f"kv_creator must be a RocksDBCreator or a MemoryCreator, got {asked!r}")
    if stored is not None and isinstance(asked, MemoryCreator):
        raise ValueError("kv_creator must be a RocksDBCreator for a variable that is stored in RocksDB, got MemoryCreator")
    return asked


def _devices(spec: Any) -> tuple[str, ...]:
    given = ["cpu"] if spec is None else [spec] if isinstance(spec, str) else list(spec)
    if not given:
        raise ValueError("devices must name at least one device, got an empty list; use None for the CPU")
    return tuple(registry.parse_device(device) for device in given)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    parts = name.split("/")
    if not name or name == "default" or not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"name must be printable text without empty, '.' or '..' parts between slashes, and not 'default', got {name!r}"
        )


def _checked(value: Any, kind: type[Any], what: str, advice: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, got {value!r}; use {advice}")
    return value


def _at_least(value: Any, least: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an int, got {value!r}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, got {value}")
    return int(value)


def _halved(limit: int, wanted: int) -> int:
    while limit >= 2 * wanted:
        limit //= 2
    return max(1, limit)


def _joined(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], dict):
        return {name: np.concatenate([part[name] for part in column]) for name in column[0]}
    return np.concatenate(column)
