"""Variable, the user's object for one table: it checks arguments and passes them to kvemb.operations.

Every call on a variable is defined here, with its docstring.

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
from kvemb.checks.numeric import as_bool, as_int
from kvemb.checks.ranges import MAX_ROWS
from kvemb.contracts import HotTable
from kvemb.defaults import store_or_default
from kvemb.engine.arguments import GraphKeys, ReferenceArguments
from kvemb.engine.assembly import open_table
from kvemb.engine.dropping import discard
from kvemb.engine.engine import Engine
from kvemb.engine.given_keys import given_keys, gradients, owned_keys
from kvemb.engine.keeping_bounds import set_bounds
from kvemb.engine.slot_variable import SlotVariable
from kvemb.engine.table import Table
from kvemb.handle import Handle, inside
from kvemb.initializers import Initializer
from kvemb.optimizers import Optimizer, as_optimizer
from kvemb.options import format_bytes, format_count
from kvemb.restrict import RestrictPolicy
from kvemb.restrict.bounds import Bounds
from kvemb.rows.block import RowBlock
from kvemb.rows.names import keys_of
from kvemb.signatures import method_of
from kvemb.stats import Stats
from kvemb.tiers.partition import Partitioner

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
    """Hold an embedding table: rows of ``dim`` values by key, with their optimizer's slots and a score.

    Get one with ``Store.get_variable`` or ``kvemb.get_variable``. The class itself takes its arguments in the order of
    ``tfra.dynamic_embedding.Variable``, whose methods it also follows. Thread-safe: each call is atomic per key.

    A call with more distinct keys than ``Limits.call_rows`` is processed in parts of that size. Each part is atomic. If
    one fails, the parts before it have been applied.

    Once the store is closed, or the variable is dropped, calls raise ``Closed``. Properties that describe the variable,
    such as ``name``, ``dim`` and ``stats``, can still be read; ``optimizer``, ``max_rows``, ``ttl`` and ``tables`` of a
    dropped variable raise ``Closed``, too. Calls that change rows raise ``ReadOnly`` if the store is read-only, and
    ``Poisoned`` if a write to disk failed, in this call or earlier.

    A variable on one GPU also accepts arrays in that GPU's memory: CuPy arrays, PyTorch tensors, and objects with
    ``__cuda_array_interface__`` or ``__dlpack__``. They must have the variable's dtypes and be C-contiguous. Results
    are arrays of the same library, on the same stream. Rows that are hot on the GPU are then processed first, as a part
    of their own, and stay there. With a constraint, or with ``durability="write"``, a call that changes rows copies all
    of them through the host's memory.

    Args:
        store: The store in which the variable lives. None: the innermost default store.
        custom_getter: Must be None, because it wraps ``get_variable``.

    Raises:
        ValueError: The variable is open already; or an argument is not valid.
        SchemaMismatch: A stored variable has another dim, dtype, initializer, policy or optimizer class.
        TypeError: An argument has the wrong type, or ``store`` is a cluster.
        BackendUnavailable: A device, or a package that it needs, is missing.
        ReadOnly, Poisoned: The variable is new, and the store refuses writes.
    """

    @method_of(VariableArguments)
    def __init__(self, arguments: VariableArguments) -> None:
        if arguments.custom_getter is not None:
            raise ValueError("custom_getter wraps get_variable, not Variable; leave it out, or use get_variable")
        self._store = store_or_default(arguments.store)
        engine = inside(self._store)
        if not isinstance(engine, Engine):
            raise TypeError(f"store must be a Store, got {brief(self._store)}; call its get_variable instead")
        super().__init__(open_table(engine, arguments, self))
        if arguments.regularizer is None:
            return
        try:
            loss = arguments.regularizer(self)
        except BaseException:
            discard(engine, self._inside)
            raise
        if loss is not None:
            engine.collect(GraphKeys.REGULARIZATION_LOSSES, loss)

    # Properties.

    @property
    def name(self) -> str:
        """The variable's full name in its store."""
        return self._inside.name

    @property
    def dim(self) -> int:
        """The number of values in a row."""
        return self._inside.schema.dim

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """The dtype of keys; of string keys ``object``, that of arrays of ``str``."""
        return self._inside.schema.public_key_dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """The dtype of values."""
        return self._inside.schema.value_dtype

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the hot rows, one for each hot table."""
        return self._inside.specification.devices

    @property
    def partitioner(self) -> Partitioner:
        """The function that gives each key its hot table."""
        return self._inside.specification.partitioner

    @property
    def restrict_policy(self) -> RestrictPolicy | None:
        """The policy, bound to this variable, or None.

        It is a ``MissingPolicy`` if the variable has a user-defined policy that was not passed when it was opened.
        """
        return self._inside.policy

    @property
    def tables(self) -> tuple[HotTable, ...]:
        """The hot tables, one per device. Do not modify them."""
        return tuple(self._inside.hot_tables.of_devices)

    @property
    def trainable(self) -> bool:
        """Whether ``apply_gradients`` is allowed."""
        return self._inside.specification.trainable

    @property
    def initializer(self) -> Initializer:
        """The initializer, which gives the rows of missing keys."""
        return self._inside.specification.initializer

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of ``apply_gradients``, or None. You may set another one of the same class.

        So you can change its learning rate, for example. The next ``apply_gradients`` uses the new optimizer, and the
        next durable point records it.

        Raises:
            TypeError: What you set is not an optimizer of kvemb.
            SchemaMismatch: It has another class, whose slots the rows do not have.

        Example:
            >>> users.optimizer = kvemb.optimizers.SGD(0.1)
            >>> users.apply_gradients([1], [[1, 1]])
            >>> users.lookup([1]).tolist()
            [[0.8999999761581421, 0.8999999761581421]]
        """
        return self._inside.operations.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        self._inside.set_optimizer(cast(Optimizer, as_optimizer(optimizer, required=True)))

    @property
    def max_rows(self) -> int | None:
        """The number of rows to which the table is restricted in the background; None: any number. You may set it.

        Raises:
            TypeError, ValueError: What you set is neither None nor an int of at least 1.

        Example:
            >>> users.max_rows = 1000
            >>> users.max_rows
            1000
        """
        return self._inside.operations.bounds.max_rows

    @max_rows.setter
    def max_rows(self, max_rows: int | None) -> None:
        self._set_bounds(Bounds.given(max_rows, self.ttl))

    @property
    def ttl(self) -> float | None:
        """The seconds after which a row that did not change is removed; None: rows stay. You may set it.

        Raises:
            TypeError, ValueError: What you set is neither None nor a finite number above 0.

        Example:
            >>> users.ttl = 30 * 86_400
            >>> users.ttl
            2592000.0
        """
        return self._inside.operations.bounds.ttl

    @ttl.setter
    def ttl(self, ttl: float | None) -> None:
        self._set_bounds(Bounds.given(self.max_rows, ttl))

    def _set_bounds(self, bounds: Bounds) -> None:
        engine = inside(self._store)
        engine.state.check_here()
        with engine.lock:
            engine.state.check_open()
            set_bounds(engine, self._inside, bounds)

    @property
    def bp_v2(self) -> bool:
        """Whether training adds deltas (``accum``) instead of setting values."""
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
        """A copy of the counts since the variable was opened; of a closed or dropped one, those at its end."""
        return self._inside.stats()

    def __repr__(self) -> str:
        kind = f"{self._inside.schema.key_kind} -> {self.dim} x {self.value_dtype.name}"
        if inside(self._store).state.gone or self._inside.ended:
            return f"<kvemb.Variable {self.name!r} {kind}, closed>"
        stats = self.stats
        return (
            f"<kvemb.Variable {self.name!r} {kind}, {format_count(stats.rows, 'row')}, {stats.hot}, "
            f"{format_bytes(stats.bytes_cold)} cold, {stats.hit_rate_in_words}>"
        )

    def _check_open(self) -> None:
        """Raise Closed if the store is closed, or the variable was dropped. Other calls ask their tiers."""
        self._inside.storage.state.check_open()

    # Calls.

    def lookup(
        self,
        keys: npt.ArrayLike,
        return_exists: bool = False,
        *,
        touch: bool = True,
        out: npt.NDArray[Any] | None = None,
    ) -> Any:
        """Look up the rows of keys. Missing keys have the initializer's row, and are not inserted.

        As in ``tfra.dynamic_embedding.Variable.lookup``.

        Args:
            keys: Keys of any shape: an array, a list or a number. Integers of other dtypes are converted if no
                information is lost. Duplicates are allowed.
            return_exists: Whether to also return which keys have a row.
            touch: Whether each occurrence of a key counts as a use for the policy.
            out: An array to fill and return instead of a new one. It must have the result's shape and dtype, be
                C-contiguous and writable, and share no memory with keys. Its content is undefined if the lookup raises.

        Returns:
            The rows, ``keys.shape + (dim,)`` in the value dtype: a new array, or ``out``. With ``return_exists`` a
            pair: the rows, and a bool array of ``keys.shape``.

        Raises:
            TypeError: A conversion of keys would lose information; keys are bool, or masked; or ``out`` is not an array
                of the value dtype.
            ValueError: Keys are a ragged list; or ``out`` is not as described.
            Corruption: Bytes on disk differ from what was written.

        Example:
            >>> users.lookup([[1, 2], [3, 1]]).shape
            (2, 2, 2)
            >>> rows, exists = users.lookup([1, 99], return_exists=True)
            >>> rows.tolist(), exists.tolist()
            ([[1.0, 1.0], [0.0, 0.0]], [True, False])
        """
        given = given_keys(self._inside, keys)
        filled, exists = given.rows(out), given.flags() if as_bool(return_exists, "return_exists") else None
        given.lookup(filled, exists, touch=as_bool(touch, "touch"))
        rows = given.result(filled)
        rows = rows if out is None else out
        return rows if exists is None else (rows, given.result(exists))

    def upsert(self, keys: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Insert rows, or replace the embeddings of rows that exist.

        A row that exists keeps its slots and score. If a cold read fails, rows that were hot may already have been
        replaced. As in ``tfra.dynamic_embedding.Variable.upsert``.

        Args:
            keys: Keys of any shape. The last of duplicate keys wins.
            values: ``keys.shape + (dim,)``, cast to the value dtype as NumPy's assignment does: integers and floats to
                floats, and integers to integers. Lists are accepted.

        Raises:
            TypeError: A conversion of keys would lose information; values have another kind, such as complex numbers
                or, for an integer dtype, floats; or integers are outside of the dtype's range.
            ValueError: ``values`` has the wrong shape, or a finite number that would become an infinity.

        Example:
            >>> users.upsert([4, 4], [[0, 0], [5, 6]])
            >>> users.lookup(4).tolist()
            [5.0, 6.0]
        """
        given = owned_keys(self._inside, keys)
        given.upsert(given.per_key(values, self.value_dtype, "values", self.dim))

    def accum(
        self, keys: npt.ArrayLike, old_values: npt.ArrayLike, new_values: npt.ArrayLike, exists: npt.ArrayLike
    ) -> None:
        """Add ``new_values - old_values`` to rows that exist, and insert ``new_values`` for keys that do not.

        Keys whose ``exists`` flag no longer matches the table are skipped. So concurrent updates of several writers are
        not lost. This is the update of TensorFlow Recommenders-Addons with ``bp_v2=True``.

        Args:
            keys: Keys of any shape. Duplicates are applied in order, so their deltas add up.
            old_values: ``keys.shape + (dim,)``: the rows that ``lookup`` returned. Cast as by ``upsert``.
            new_values: ``keys.shape + (dim,)``: what the rows should become. Cast as by ``upsert``.
            exists: bool of ``keys.shape``: which keys existed, as ``lookup`` returned it.

        Raises:
            TypeError: As ``upsert``, or ``exists`` is not bool.
            ValueError: As ``upsert``.

        Example:
            >>> rows, exists = users.lookup([1, 9], return_exists=True)
            >>> users.accum([1, 9], rows, rows + 0.5, exists)
            >>> users.lookup([1, 9]).tolist()
            [[1.5, 1.5], [0.5, 0.5]]
        """
        given = owned_keys(self._inside, keys)
        old = given.per_key(old_values, self.value_dtype, "old_values", self.dim)
        new = given.per_key(new_values, self.value_dtype, "new_values", self.dim)
        given.accum(old, new, given.flags_per_key(exists, "exists"))

    def apply_gradients(self, keys: npt.ArrayLike, grads: npt.ArrayLike) -> None:
        """Take one optimizer step on the rows of keys.

        Missing rows are first created by the initializer. Gradients of duplicate keys are summed before the step.

        Args:
            keys: Keys of any shape.
            grads: ``keys.shape + (dim,)``, cast to float32, or to float64 for float64 values, as ``upsert`` casts.

        Raises:
            TypeError: A conversion of keys would lose information, or gradients are not real numbers.
            ValueError: ``grads`` has the wrong shape, or a finite number that would become an infinity; or the variable
                is not trainable, or has no optimizer.

        Example:
            >>> users.apply_gradients([1, 1], [[1, 1], [1, 1]])  # SGD with a learning rate of 0.5
            >>> users.lookup(1).tolist()
            [0.0, 0.0]
        """
        given, checked = gradients(self._inside, keys, grads)
        given.apply_gradients(checked)

    def get_slot_variables(self) -> tuple[SlotVariable, ...]:
        """Return the optimizer's slots, each as a read-only table of the same keys.

        Returns:
            A tuple of ``SlotVariable``, in their order in a row; empty without an optimizer.
        """
        self._check_open()
        return tuple(SlotVariable(self._inside, slot.name, slot.width) for slot in self._inside.schema.slots)

    def lookup_slot(self, name: str, keys: npt.ArrayLike) -> npt.NDArray[Any]:
        """Look up one optimizer slot of the rows of keys. It counts as no use.

        Args:
            name: The slot's name, such as ``"accumulator"`` of Adagrad.
            keys: Keys of any shape. Missing keys have the slots of a new row.

        Returns:
            A copy, ``keys.shape + (width,)`` in float32, or float64 for float64 values.

        Raises:
            ValueError: The optimizer has no slot of this name.
            TypeError: A conversion of keys would lose information.
            Corruption: Bytes on disk differ from what was written.

        Example:
            >>> items = store.get_variable("items", dim=2, optimizer=kvemb.optimizers.Adagrad())
            >>> [slot.name for slot in items.get_slot_variables()], items.lookup_slot("accumulator", [7]).shape
            (['accumulator'], (1, 2))
        """
        return self._inside.slot(name, keys)

    def remove(self, keys: npt.ArrayLike) -> None:
        """Remove rows, with their slots and scores.

        The keys are then as new: an ``Admission`` counts their sightings from 0 again. As in
        ``tfra.dynamic_embedding.Variable.remove``.

        Args:
            keys: Keys of any shape. Missing keys are ignored.

        Raises:
            TypeError: A conversion of keys would lose information.
        """
        self._inside.operations.remove(owned_keys(self._inside, keys).checked())

    def clear(self) -> None:
        """Remove all rows, and all sightings of an ``Admission``. Waits for a checkpoint in progress."""
        self._inside.operations.clear()

    def restrict(self, num_reserved: int, **kwargs: Any) -> int | None:
        """Keep the rows with the highest scores, hot or cold, and remove the others.

        Of equal scores, the larger keys are kept. Rows are removed in batches. If the call fails between two of them,
        for example because a GPU lacks memory, the earlier batches stay removed; another call removes the rest. As in
        ``tfra.dynamic_embedding.Variable.restrict``.

        Args:
            num_reserved: How many rows to keep.
            **kwargs: Passed to ``restrict_policy.apply_restriction``. With ``trigger=n`` nothing is removed unless
                ``size()`` exceeds n.

        Returns:
            The number of rows removed. None, with a warning, if the variable has no policy: nothing is removed then.

        Raises:
            TypeError: An argument is not an int, or is unknown to the policy.
            ValueError: An argument is negative; or a user-defined policy was not passed when the variable was opened.
            MemoryError: A GPU, or this machine, has too little memory.

        Example:
            >>> _ = users.lookup([2, 3])  # now these have been used twice
            >>> users.restrict(2), users.export()[0].tolist()
            (1, [2, 3])
        """
        self._check_open()
        reserved = as_int(num_reserved, "num_reserved", 0, MAX_ROWS)
        if self.restrict_policy is None:
            warnings.warn(
                f"variable {self.name!r} has no restrict_policy, so restrict removes nothing; give get_variable one "
                "when it makes the variable, such as kvemb.FrequencyRestrictPolicy(), or give it one with kvemb "
                "migrate --policy",
                stacklevel=2,
            )
            return None
        return self.restrict_policy.apply_restriction(reserved, **kwargs)

    def size(self, index: int | None = None) -> int:
        """Count the rows, hot and cold, exactly.

        Args:
            index: Count only the keys that belong to the device of this number. With several devices this reads every
                key. None: all rows.

        Returns:
            The number of rows.

        Raises:
            IndexError: There is no device of this number.
            TypeError: ``index`` is not an int.
        """
        self._check_open()
        if index is None:
            return self._inside.storage.size
        number, count = as_int(index, "index"), len(self.devices)
        if not 0 <= number < count:
            raise IndexError(f"index must be from 0 to {count - 1}, got {brief(number)}")
        if count == 1:
            return self.size()
        devices, scan = self._inside.hot_tables.partition.devices_of, self._inside.storage.scan(EXPORT_ROWS)
        return sum(int(np.sum(devices(rows.keys) == number)) for rows in scan)

    def export(self, *, with_slots: bool = False, with_scores: bool = False) -> tuple[npt.NDArray[Any], ...]:
        """Copy all rows into arrays, in key order.

        The arrays are as large as the table. ``export_batches`` needs less memory.

        Args:
            with_slots: Whether to add a dict from slot name to an array (n, width).
            with_scores: Whether to add the scores, float64 (n,), as the last element.

        Returns:
            A tuple of copies: keys (n,) in the key dtype, values (n, dim) in the value dtype, then what was asked for.

        Raises:
            Poisoned: A write to disk failed, in this call or earlier: dirty rows are written first.

        Example:
            >>> keys, values = users.export()
            >>> keys.tolist(), values.tolist()
            ([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        """
        batches = list(self.export_batches(EXPORT_ROWS, with_slots=with_slots, with_scores=with_scores))
        batches = batches or [self._batch(RowBlock(self._inside.schema, 0), with_slots, with_scores)]
        return tuple(_joined(column) for column in zip(*batches, strict=True))

    def export_batches(
        self, n: int = EXPORT_ROWS, *, with_slots: bool = False, with_scores: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Iterate over all rows as they are at this call, in key order.

        Dirty rows are written to the cold store first. Exporting counts as no use.

        Args:
            n: Rows in a batch; the last one may have fewer.
            with_slots: Whether each batch has a dict from slot name to an array (n, width).
            with_scores: Whether each batch has the scores, float64 (n,), as its last element.

        Yields:
            Batches as ``export`` returns them: ``(keys, values)``, then what was asked for.

        Raises:
            TypeError: ``n`` is not an int.
            ValueError: ``n`` is less than 1.
            Closed: The store is closed, also if this happens before a later batch.

        Example:
            >>> for keys, values in users.export_batches(2):
            ...     print(keys, values.shape)
            [1 2] (2, 2)
            [3] (1, 2)
        """
        scan = self._inside.storage.scan(as_int(n, "n", 1, MAX_ROWS))
        return (self._batch(rows, with_slots, with_scores) for rows in scan)

    def _batch(self, rows: RowBlock, with_slots: bool, with_scores: bool) -> tuple[Any, ...]:
        self._check_open()
        batch: tuple[Any, ...] = (keys_of(rows), rows.embeddings())
        if with_slots:
            batch += (rows.slots_by_name(),)
        return (*batch, rows.scores) if with_scores else batch

    def prefetch(self, keys: npt.ArrayLike, *, after_lookup: bool = False) -> None:
        """Start reading the cold rows of keys in the background, for the call that follows.

        It changes no result. On a GPU, all rows of keys are also made hot before that call, as far as time permits.
        Prefetched rows take memory of staging, an eighth of the budget at most, as rows do that wait for their update.
        If there is not enough, nothing is read.

        Args:
            keys: Keys of any shape.
            after_lookup: Whether to wait for the next lookup, which is that of the previous batch, to finish first, so
                that the two do not compete.

        Raises:
            TypeError: A conversion of keys would lose information.

        Example:
            >>> users.prefetch([1, 2])
            >>> rows = users.lookup([1, 2])
        """
        given_keys(self._inside, keys).prefetch(after_lookup=bool(after_lookup))


def _joined(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], dict):
        return {name: np.concatenate([part[name] for part in column]) for name in column[0]}
    return np.concatenate(column)
