"""A store's variables by name: found, opened and made as they are asked for. Guarded by the store's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy.typing as npt

from kvemb.arguments import DIM, KEY_DTYPE, VALUE_DTYPE, asked_shape, check_name, check_stored
from kvemb.dropping import drop
from kvemb.durability.manifest import Manifest
from kvemb.handle import Handle
from kvemb.initializers import Initializer, as_initializer
from kvemb.optimizers import Optimizer, as_optimizer
from kvemb.options import Creator
from kvemb.restrict import RestrictPolicy, as_policy
from kvemb.store_state import StoreState
from kvemb.tiers.hot_tables import Partitioner, default_partitioner

if TYPE_CHECKING:
    from kvemb.store import Store
    from kvemb.variable import Variable


class VariableMap(Mapping[str, "Variable"]):
    """A view: names() are the variables there are, get(name) opens one or raises KeyError."""

    def __init__(self, names: Callable[[], list[str]], get: Callable[[str], Variable]) -> None:
        self._names, self._get = names, get

    def __getitem__(self, name: str) -> Variable:
        if name not in self._names():
            raise KeyError(f"there is no variable {name!r}; there is {', '.join(self._names()) or 'none'}")
        return self._get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"<variables {', '.join(self)}>"


class Catalog(Handle):
    """What a store knows of its variables: those that are open, and by its manifest those that are stored."""

    state: StoreState
    _manifest: Manifest

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._opened: dict[str, Variable] = {}
        self._collections: dict[str, list[Any]] = {}

    def get_variable(
        self,
        name: str,
        key_dtype: npt.DTypeLike = KEY_DTYPE,
        value_dtype: npt.DTypeLike = VALUE_DTYPE,
        dim: int = DIM,
        devices: str | list[str] | None = None,
        partitioner: Partitioner = default_partitioner,
        shared_name: str | None = "get_variable",
        initializer: Initializer | npt.ArrayLike | None = None,
        trainable: bool = True,
        checkpoint: bool = True,
        init_size: int = 0,
        kv_creator: Creator | None = None,
        restrict_policy: RestrictPolicy | type[RestrictPolicy] | None = None,
        bp_v2: bool = False,
        *,
        optimizer: Optimizer | None = None,
        hot_rows: int | None = None,
    ) -> Variable:
        """Return the variable of this name: the open one, the stored one, or a new one.

        name: printable; slashes may divide it, as in "towers/users".
        key_dtype: int64, int32 or uint64.
        value_dtype: float32, float64, float16, bfloat16, int8, int32 or int64.
        dim: values in a row, from 1 to 1,048,576. Left out: as stored; a new variable gets 1, and a warning is logged.
        devices: None or "cpu", or a list of devices, with one hot table each.
        partitioner: fn(keys, n), which gives each key its hot table, from 0 to n - 1.
        shared_name: accepted and unused, as in the reference.
        initializer: what a missing key reads as: None (zeros), a number, `dim` values, or an Initializer. Where that
        leaves its seed out, the variable's name gives it.
        trainable: whether apply_gradients is allowed; such variables join the collection TRAINABLE_VARIABLES.
        checkpoint: whether it is in checkpoints.
        init_size: rows the hot tier holds at first; 0: a default.
        kv_creator: where cold rows live: a RocksDBCreator, the default, or a MemoryCreator.
        restrict_policy: what scores rows, a RestrictPolicy or a class of one; None: uses are counted, and restrict
        does nothing.
        bp_v2: writers use accum, which adds, in place of upsert.
        optimizer: what apply_gradients uses, one of kvemb.optimizers.
        hot_rows: cells of the hot tier, all reserved at once; None: a share of the store's budget, grown into under
        pressure.

        Of a variable that exists dim, dtypes, initializer, class of optimizer and restrict_policy must be the stored
        ones, where they are given. An optimizer's numbers may be others, and are used from now on.
        Raises SchemaMismatch (a ValueError) naming the field; ValueError, TypeError for an argument; Closed; for a new
        variable ReadOnly, Poisoned.
        """
        from kvemb.variable import Variable

        check_name(name)
        self.state.check_here()
        with self._lock:
            self.state.check_open()
            known = self._opened.get(name)
            if known is None:
                return Variable(
                    key_dtype, value_dtype, dim, devices, partitioner, shared_name, name, initializer, trainable,
                    checkpoint, init_size, kv_creator, restrict_policy, bp_v2,
                    store=cast("Store", self), optimizer=optimizer, hot_rows=hot_rows,
                )  # fmt: skip
            stored = known._entry()
            keys, values, width = asked_shape(stored, key_dtype, value_dtype, dim)
            asked = None if initializer is None else as_initializer(initializer, width, values)
            chosen, policy = as_optimizer(optimizer), as_policy(restrict_policy)
            check_stored(name, stored, keys, values, width, asked, chosen, policy)
            if chosen is not None:
                known._operations.train_with(chosen, writable=False)  # as one that is not open yet takes it
            return known

    def drop_variable(self, name: str) -> None:
        """Drop a variable with all its rows, durably; its memory goes back to the budget, its room on disk is given up.

        The Variable raises Closed from then on. A delta tells that it went (Checkpoint.changes, Store.apply_delta);
        checkpoints that were made before keep it. Waits for a checkpoint under way. A crash leaves it as it was, or
        none. Raises KeyError; Poisoned when the disk does not take it; Closed, ReadOnly.
        """
        self.state.check_here()
        with self._lock:
            self.state.check_writable()
            if name not in self._names():
                raise KeyError(f"there is no variable {name!r}; there is {', '.join(self._names()) or 'none'}")
            drop(cast("Store", self), [name])

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The store's variables by name. Getting one that is not open yet opens it, as it is stored. Raises Closed."""
        return VariableMap(self._names, self._opened_variable)

    def _opened_variable(self, name: str) -> Variable:
        from kvemb.variable import open_stored

        self.state.check_here()
        with self._lock:
            self.state.check_open()
            return self._opened.get(name) or open_stored(cast("Store", self), name, self._manifest.variables[name])

    def _names(self) -> list[str]:
        self.state.check_open()
        return sorted({*self._manifest.variables, *self._opened})

    def get_collection(self, name: str) -> list[Any]:
        """Return what was added under a GraphKeys name, in order, a copy."""
        return list(self._collections.get(name, []))

    def _add_to_collection(self, name: str, value: Any) -> None:
        self._collections.setdefault(name, []).append(value)
