"""Variable, the user's object for one table: it checks arguments and passes them to kvemb.operations.

Longer than 300 lines: every call on a variable is defined here, with its docstring.

Arguments have the names, the order and the defaults of TensorFlow Recommenders-Addons' dynamic_embedding.Variable and
get_variable. Thread-safe: each call is atomic per key.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MAX_ROWS
from kvemb.contracts import HotTable
from kvemb.defaults import store_or_default
from kvemb.engine import on_device
from kvemb.engine.arguments import GraphKeys, ReferenceArguments
from kvemb.engine.assembly import open_table
from kvemb.engine.engine import Engine
from kvemb.engine.slot_variable import SlotVariable
from kvemb.engine.table import Table
from kvemb.handle import Handle, inside
from kvemb.initializers import Initializer
from kvemb.optimizers import Optimizer, as_optimizer
from kvemb.options import format_bytes, format_count
from kvemb.restrict import RestrictPolicy
from kvemb.rows.block import RowBlock
from kvemb.rows.device_arrays import device_of
from kvemb.rows.host_arrays import as_values, public_keys, rows_to_fill
from kvemb.rows.tensors import plain
from kvemb.signatures import method_of
from kvemb.stats import Stats
from kvemb.tiers.hot_tables import Partitioner

if TYPE_CHECKING:
    from kvemb.store import Store

EXPORT_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class InStore:
    """The store of a variable. None: the innermost default store."""

    _: KW_ONLY
    store: Store | None = None


@dataclass(frozen=True, eq=False)
class VariableArguments(ReferenceArguments, InStore):
    """The arguments of Variable."""


class Variable(Handle[Table]):
    """An embedding table: rows of `dim` values by key, with their optimizer's slots and a score.

    Get one with Store.get_variable or kvemb.get_variable, which explain the arguments; the class itself raises
    ValueError if the variable is open already. A call with more distinct keys than Limits.call_rows is processed in
    parts of that size. Each part is atomic; if one fails, the parts before it have been applied.

    A variable on one GPU also accepts arrays in that GPU's memory: CuPy arrays, PyTorch tensors, and objects with
    __cuda_array_interface__ or __dlpack__. They must have the variable's dtypes and be C-contiguous; results are arrays
    of the same library, on the same stream. Rows that are hot on the GPU are then processed first, as a part of their
    own, and stay there. With a constraint, or with durability="write", a call that changes rows copies all of them
    through the host's memory.
    """

    @method_of(VariableArguments)
    def __init__(self, arguments: VariableArguments) -> None:
        if arguments.custom_getter is not None:
            raise ValueError("custom_getter wraps get_variable, not Variable; leave it out, or use get_variable")
        self._store = store_or_default(arguments.store)
        engine = inside(self._store)
        if not isinstance(engine, Engine):
            raise TypeError(f"Variable makes one in a Store; use get_variable of {brief(self._store)}")
        super().__init__(open_table(engine, arguments, self))
        if arguments.regularizer is not None and (loss := arguments.regularizer(self)) is not None:
            engine.collect(GraphKeys.REGULARIZATION_LOSSES, loss)

    # Properties.

    @property
    def name(self) -> str:
        """The variable's name in its store."""
        return self._inside.name

    @property
    def dim(self) -> int:
        """The number of values in a row."""
        return self._inside.schema.dim

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of keys."""
        return self._inside.schema.key_dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of values."""
        return self._inside.schema.value_dtype

    @property
    def devices(self) -> tuple[str, ...]:
        """One device for each hot table."""
        return self._inside.specification.devices

    @property
    def partitioner(self) -> Partitioner:
        """The function that gives each key its hot table."""
        return self._inside.specification.partitioner

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """The policy, bound to this variable, or None; a MissingPolicy if a user-defined one was not given."""
        return self._inside.policy

    @property
    def tables(self) -> tuple[HotTable, ...]:
        """The hot tables, one per device. Do not modify them."""
        return tuple(self._inside.hot_tables.of_devices)

    @property
    def trainable(self) -> bool:
        """Whether apply_gradients is allowed."""
        return self._inside.specification.trainable

    @property
    def initializer(self) -> Initializer:
        """The initializer, which gives the rows of missing keys."""
        return self._inside.specification.initializer

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of apply_gradients. To change its learning rate, for example, set another of the same class.

        The next apply_gradients uses it, and the next durable point records it. Raises TypeError; SchemaMismatch for
        another class, whose slots the rows do not have; Closed, ReadOnly, Poisoned.
        """
        return self._inside.operations.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        self._inside.set_optimizer(cast(Optimizer, as_optimizer(optimizer, required=True)))

    @property
    def bp_v2(self) -> bool:
        """Whether training adds deltas (accum) instead of setting values."""
        return self._inside.specification.bp_v2

    @property
    def persistent(self) -> bool:
        """Whether the rows are still there after the store is closed and opened again."""
        return self._inside.persistent

    @property
    def resource_handle(self) -> tuple[Store, str]:
        """The store (or cluster) and the name, which together identify this variable."""
        return cast("Store", self._store), self.name

    @property
    def stats(self) -> Stats:
        """A copy of the counts since the variable was opened; after the store is closed, the counts at its close."""
        return self._inside.stats()

    def __repr__(self) -> str:
        kind = f"{self.key_dtype.name} -> {self.dim} x {self.value_dtype.name}"
        if inside(self._store).state.gone or self._inside.ended:
            return f"<kvemb.Variable {self.name!r} {kind}, closed>"
        stats = self.stats
        return (
            f"<kvemb.Variable {self.name!r} {kind}, {format_count(stats.rows, 'row')}, {stats.hot}, "
            f"{format_bytes(stats.bytes_cold)} cold, {stats.hit_rate_in_words}>"
        )

    # Calls.

    def lookup(
        self,
        keys: npt.ArrayLike,
        return_exists: bool = False,
        *,
        touch: bool = True,
        out: npt.NDArray[Any] | None = None,
    ) -> Any:
        """Return the rows of keys as a new array, keys.shape + (dim,); missing keys give the initializer's row.

        With return_exists, also returns which keys exist, a bool array of keys.shape. Inserts nothing. Each occurrence
        of a key counts as a use for the policy unless touch=False. out: an array to fill and return instead of a new
        one: of that shape and the value dtype, C-contiguous, writable, and not overlapping keys. Its content is
        undefined if the lookup raises.
        Raises TypeError if a conversion of keys would lose information, if they are bool or masked, or if out has
        another dtype; ValueError for any other fault of out; Closed, Corruption.
        """
        table, schema = self._inside, self._inside.schema
        if device_of(keys) is not None:
            return on_device.lookup(table, keys, out, return_exists=bool(return_exists), touch=bool(touch))
        wanted, flat = table.flat(keys)
        filled = rows_to_fill(out, schema.value_dtype, (*wanted, schema.dim), flat)
        exists = np.empty(len(flat), np.bool_) if return_exists else None
        table.operations.lookup(flat, filled, exists, touch=bool(touch))
        rows = filled.reshape(*wanted, schema.dim) if out is None else out
        return rows if exists is None else (rows, exists.reshape(wanted))

    def upsert(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Insert rows. A row that exists gets the new embedding and keeps its slots and score.

        values: keys.shape + (dim,), of the value dtype, or lists. For duplicate keys the last value wins. If a cold
        read fails, rows that were hot may already have been replaced. Raises TypeError, ValueError; Closed, ReadOnly,
        Poisoned.
        """
        if device_of(keys) is not None:
            on_device.upsert(self._inside, keys, values)
            return
        shape, flat = self._inside.flat_and_owned(keys)
        given = as_values(values, self._inside.schema.value_dtype, (*shape, self.dim))
        self._inside.operations.upsert(flat, given)

    def accum(
        self, keys: npt.ArrayLike, old_values: npt.ArrayLike, new_values: npt.ArrayLike, exists: npt.ArrayLike
    ) -> None:
        """Add new - old to rows that exist, insert new for keys that do not; ignore keys whose `exists` is wrong.

        old_values, new_values: keys.shape + (dim,); exists: bool of keys.shape, as lookup returned it. Duplicates are
        applied in order, so their deltas add up. This is TFRA's update with bp_v2: concurrent updates are not lost.
        Raises TypeError, ValueError; Closed, ReadOnly, Poisoned.
        """
        if device_of(keys) is not None:
            on_device.accum(self._inside, keys, old_values, new_values, exists)
            return
        shape, flat = self._inside.flat_and_owned(keys)
        old = as_values(old_values, self._inside.schema.value_dtype, (*shape, self.dim), "old_values")
        new = as_values(new_values, self._inside.schema.value_dtype, (*shape, self.dim), "new_values")
        given = plain(exists, np.dtype(np.bool_), "exists")
        believed = np.asarray(given, None if np.size(given) else np.bool_)
        if believed.dtype != np.bool_:
            raise TypeError(f"exists must be bool, got {believed.dtype.name}")
        if believed.shape != shape:
            raise ValueError(f"exists must have the shape of keys, {shape}, got {believed.shape}")
        self._inside.operations.accum(flat, old, new, believed.reshape(-1))

    def apply_gradients(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> None:
        """Take one optimizer step on the rows of keys; the initializer first creates missing rows.

        grads: keys.shape + (dim,), float32, or float64 for float64 values. Lists and dtypes that float32 represents
        exactly, such as float16, are converted; float64 is refused: use grads.astype("float32"). Gradients of duplicate
        keys are summed first. Raises TypeError; ValueError, also if the variable is not trainable or has no optimizer;
        Closed, ReadOnly, Poisoned.
        """
        if device_of(keys) is not None:
            on_device.apply_gradients(self._inside, keys, grads)
            return
        _, flat, given = self._inside.gradients(keys, grads)
        self._inside.operations.apply_gradients(flat, given)

    def get_slot_variables(self) -> tuple[SlotVariable, ...]:
        """Return the optimizer's slots in their order in a row; an empty tuple without an optimizer."""
        return tuple(SlotVariable(self._inside, slot.name, slot.width) for slot in self._inside.schema.slots)

    def lookup_slot(self, name: str, keys: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return one optimizer slot of the rows of keys, a copy of shape keys.shape + (width,).

        Missing keys give the values of a new row. Records no use. Raises ValueError for an unknown name; TypeError;
        Closed, Corruption.
        """
        return self._inside.slot(name, keys)

    def remove(self, keys: npt.ArrayLike) -> None:
        """Drop rows with their slots and scores; missing keys are ignored.

        The keys are then as new: an Admission counts their sightings from 0 again. Raises TypeError; Closed, ReadOnly,
        Poisoned.
        """
        there = device_of(keys) is not None
        _, flat = on_device.copied_keys(self._inside, keys) if there else self._inside.flat_and_owned(keys)
        self._inside.operations.remove(flat)

    def clear(self) -> None:
        """Drop every row, and all sightings of an Admission. Waits for a checkpoint in progress.

        Raises Closed, ReadOnly, Poisoned.
        """
        self._inside.operations.clear()

    def restrict(self, num_reserved: int, **kwargs: Any) -> int | None:
        """Keep the num_reserved rows with the highest scores, hot or cold; of equal scores, the larger keys.

        kwargs are passed to restrict_policy.apply_restriction: with trigger=n nothing is removed unless size() exceeds
        n. Returns the number of rows removed. Without a policy it removes nothing, warns and returns None.
        Rows are removed in batches. If it fails between two of them, for example because a GPU lacks memory, the
        earlier batches stay removed; another call removes the rest.
        Raises TypeError, ValueError; MemoryError; Closed, ReadOnly, Poisoned.
        """
        reserved = as_int(num_reserved, "num_reserved", 0, MAX_ROWS)
        if self.restrict_policy is None:
            warnings.warn(
                f"variable {self.name!r} has no restrict_policy, so restrict removes nothing; give get_variable one "
                "when it makes the variable, such as kvemb.FrequencyRestrictPolicy(), or copy it to a new store with "
                "kvemb migrate --policy",
                stacklevel=2,
            )
            return None
        return self.restrict_policy.apply_restriction(reserved, **kwargs)

    def size(self, index: int | None = None) -> int:
        """Return the number of rows, hot and cold, exactly.

        index: count only the keys that belong to that device; with several devices this reads every key. Raises
        IndexError.
        """
        if index is None:
            self._inside.storage.state.check_open()
            return self._inside.storage.size
        number, count = as_int(index, "index"), len(self.devices)
        if not 0 <= number < count:
            raise IndexError(f"index must be from 0 to {count - 1}, got {brief(number)}")
        if count == 1:
            return self.size()
        devices, scan = self._inside.hot_tables.devices_of, self._inside.storage.scan(EXPORT_ROWS)
        return sum(int(np.sum(devices(rows.keys) == number)) for rows in scan)

    def export(self, *, with_slots: bool = False, with_scores: bool = False) -> tuple[npt.NDArray[Any], ...]:
        """Return copies of (keys, values) of all rows in key order, as large as the table. See export_batches.

        with_slots adds a dict from slot name to (n, width); with_scores adds scores (n,), last.
        """
        batches = list(self.export_batches(EXPORT_ROWS, with_slots=with_slots, with_scores=with_scores))
        batches = batches or [self._batch(RowBlock(self._inside.schema, 0), with_slots, with_scores)]
        return tuple(_joined(column) for column in zip(*batches, strict=True))

    def export_batches(
        self, n: int = EXPORT_ROWS, *, with_slots: bool = False, with_scores: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Yield all rows as they are at this call, in key order, n at a time, in the form of export.

        Dirty rows are written to the cold store first, so a poisoned store raises Poisoned. Records no use. Raises
        Closed, also from a later batch.
        """
        scan = self._inside.storage.scan(as_int(n, "n", 1, MAX_ROWS))
        return (self._batch(rows, with_slots, with_scores) for rows in scan)

    def _batch(self, rows: RowBlock, with_slots: bool, with_scores: bool) -> tuple[Any, ...]:
        self._inside.storage.state.check_open()
        batch: tuple[Any, ...] = (public_keys(rows.keys, self.key_dtype), rows.embeddings())
        if with_slots:
            batch += (rows.slots_by_name(),)
        return (*batch, rows.scores) if with_scores else batch

    def prefetch(self, keys: npt.ArrayLike, *, after_lookup: bool = False) -> None:
        """Start reading the cold rows of keys in the background, for the call that follows. Changes no result.

        On a GPU, all rows of keys are also made hot before that call, as far as time permits. after_lookup: start when
        the next lookup, that of the previous batch, has ended, so as not to slow it down. Nothing is read if the rows
        need more memory than is unused, unless other reads ahead leave them room in a sixteenth of the budget.
        Raises TypeError; Closed.
        """
        if device_of(keys) is not None:
            on_device.prefetch(self._inside, keys, after_lookup=bool(after_lookup))
            return
        self._inside.operations.prefetch(self._inside.flat(keys)[1], bool(after_lookup))


def _joined(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], dict):
        return {name: np.concatenate([part[name] for part in column]) for name in column[0]}
    return np.concatenate(column)
