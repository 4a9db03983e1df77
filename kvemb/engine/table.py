"""An open variable inside its store: its rows in both tiers, and the methods that the store calls.

Thread-safe, as its tiers are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.durability.point_writer import VariablePart
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.specification import Specification, check_optimizer, stored_optimizer
from kvemb.errors import Closed
from kvemb.limits import DEFAULT, Limits
from kvemb.operations.table_operations import TableOperations
from kvemb.optimizers import Optimizer
from kvemb.restrict import RestrictPolicy, Scores, policy_from_json
from kvemb.restrict.bounds import Bounds
from kvemb.rows.hashing import Keys
from kvemb.rows.host_arrays import as_keys, public_keys
from kvemb.rows.names import StringKeys, check_names, distinct_names, named_keys, names_behind
from kvemb.rows.schema import Schema
from kvemb.stats import Stats
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.storage import TieredStorage


class Table:
    """An open variable. specification: as of its opening. policy: bound to the variable.

    variable: the kvemb.Variable that users hold. limits: the store's. ages: see kvemb.restrict.bounds; the thread that
    keeps the bounds sets them.
    """

    def __init__(
        self,
        specification: Specification,
        policy: RestrictPolicy | None,
        hot_tables: HotTables,
        storage: TieredStorage,
        operations: TableOperations,
        variable: Any,
        limits: Limits = DEFAULT,
    ) -> None:
        self.specification, self.policy, self.variable = specification, policy, variable
        self.hot_tables, self.storage, self.operations = hot_tables, storage, operations
        self.limits, self.ages = limits, specification.ages
        self._bytes_cold: int | None = None
        self._last_stats: Stats | None = None

    @property
    def name(self) -> str:
        """The variable's name."""
        return self.specification.name

    @property
    def schema(self) -> Schema:
        """The schema of its rows."""
        return self.specification.schema

    @property
    def persistent(self) -> bool:
        """Whether the rows are still there after the store is closed and opened again."""
        return self.specification.persistent

    def entry(self) -> VariableEntry:
        """Return the variable's entry in the manifest of a durable point made now."""
        storage = self.storage
        return self.specification.entry(
            self.operations.optimizer,
            self.policy,
            self.operations.bounds,
            rows=storage.size,
            step=storage.step,
            optimizer_steps=storage.optimizer_steps,
            ages=self.ages,
        )

    def part(self) -> VariablePart:
        """Return what a checkpoint needs to write the variable."""
        creator, counters = self.specification.creator, self.operations.admission_counters
        return VariablePart(self.name, self.schema, creator, self.storage, self.entry, counters)

    def set_optimizer(self, optimizer: Optimizer, *, writable: bool = True) -> None:
        """Use this optimizer from now on. writable: whether to raise if rows may not change.

        Raises SchemaMismatch if the rows do not have its slots; Closed, ReadOnly, Poisoned.
        """
        check_optimizer(self.name, self.operations.optimizer, optimizer)
        self.operations.set_optimizer(optimizer, writable=writable)

    def set_bounds(self, bounds: Bounds) -> None:
        """Restrict the table to these bounds from now on. Raises Closed, ReadOnly, Poisoned."""
        self.operations.set_bounds(bounds)

    def take(self, entry: VariableEntry) -> None:
        """Take on what may have changed in a later entry of this variable. REQUIRES: its rows are that entry's."""
        self.operations.optimizer, self.operations.bounds = stored_optimizer(entry), entry.bounds
        if self.policy is not None and self.policy.to_json() != entry.policy:
            policy = policy_from_json(entry.policy)
            self.policy = None if policy is None else policy.bind(self.variable)
            self.operations.set_policy(self.policy)

    # Keys and rows as users give them.

    def flat(self, keys: npt.ArrayLike) -> tuple[tuple[int, ...], Keys]:
        """Return the shape of keys, and the keys as int64 (n,). Raises TypeError, HashCollision."""
        if self.schema.name_bytes:
            named = named_keys(keys, self.schema.name_bytes)
            self.check_names(named)
            return named.shape, named.keys
        array = as_keys(keys, self.schema.key_dtype)
        return array.shape, array.reshape(-1)

    def check_names(self, named: StringKeys) -> None:
        """Raise HashCollision if the row of a string key has another name."""
        distinct_names(named)
        rows = np.empty((len(named.keys), self.schema.width), self.schema.value_dtype)
        self.operations.lookup(named.keys, rows, None, touch=False)
        check_names(named.keys, named.names, names_behind(rows, self.schema.dim))

    def public(self, keys: Keys) -> npt.NDArray[Any]:
        """Return keys (n,), as flat() gave them, in the key dtype."""
        return public_keys(keys, self.schema.key_dtype)

    def slot(self, name: str, keys: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return a slot of the rows of keys, keys.shape + (width,). Raises ValueError, TypeError."""
        names = [slot.name for slot in self.schema.slots]
        if name not in names:
            raise ValueError(
                f"slot must be one of {names}, the slots of {self.operations.optimizer!r}, got {brief(name)}"
            )
        shape, flat = self.flat(keys)
        found = self.operations.slot(flat, names.index(name))
        return found.reshape(*shape, found.shape[1])

    def check_trainable(self) -> None:
        """Raise ValueError if the variable cannot be trained."""
        if not self.specification.trainable:
            raise ValueError(f"variable {self.name!r} is not trainable; create it with trainable=True to train it")
        if self.specification.optimizer is None:  # a variable without one never gets one
            raise ValueError(
                f"variable {self.name!r} has no optimizer; create it with optimizer=kvemb.optimizers.Adagrad(); "
                "kvemb migrate --optimizer adds one to a stored variable"
            )

    # For the policy: the methods of restrict.ScoredRows.

    def record_uses(self, keys: npt.ArrayLike) -> None:
        """Record one use for each occurrence of keys; missing keys are ignored."""
        self.operations.use(self.flat(keys)[1])

    def restrict(self, num_reserved: int, trigger: int | None) -> int:
        """Keep the rows with the highest scores; return how many were removed."""
        return self.operations.restrict(num_reserved, trigger)

    def scores(self, keys: npt.ArrayLike) -> Scores:
        """Return the scores of keys, of keys.shape, NaN for missing keys."""
        shape, flat = self.flat(keys)
        scores: npt.NDArray[np.float64] = self.operations.scores(flat)
        return scores.reshape(shape)

    # Counts, and the end of the variable.

    @property
    def ended(self) -> bool:
        """Whether forget() was called."""
        return self._last_stats is not None

    def stats(self) -> Stats:
        """Return a copy of the counts since the variable was opened."""
        if self._last_stats is not None:
            return self._last_stats
        stats = self.storage.stats()
        return stats if self._bytes_cold is None else replace(stats, bytes_cold=self._bytes_cold)

    def keep_bytes_cold(self) -> None:
        """Keep the figures that stats() cannot read once the store is closed."""
        if self._bytes_cold is None:
            self._bytes_cold = self.storage.cold.disk_bytes()

    def forget(self, why: str) -> None:
        """Drop the tiers; any later use of them raises Closed with this reason. REQUIRES: the storage has ended."""
        self._last_stats = self.stats()
        gone: Any = _Gone(why)
        self.storage = self.operations = self.hot_tables = gone


class _Gone:
    """Replaces the parts of a table that its store no longer has; any use raises Closed."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise Closed(self._why)
