"""get_variable: variables by name, as the reference finds or makes them.

Follows tfra.dynamic_embedding.get_variable in name, order and default of its arguments.
"""

from __future__ import annotations

from typing import Any

from kvemb.arguments import at_least, check_name, check_stored, checked
from kvemb.initializers import as_initializer
from kvemb.opening import default_store
from kvemb.optimizers import Optimizer, as_optimizer
from kvemb.options import Creator
from kvemb.restrict import as_policy
from kvemb.schema import key_dtype as as_key_dtype
from kvemb.schema import value_dtype as as_value_dtype
from kvemb.shards import Partitioner, default_partitioner
from kvemb.store import Store
from kvemb.variable import Variable


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

    Arguments as for Variable. For one that exists, dim, dtypes, and (where they are given) initializer, optimizer and
    policy class must agree. Raises SchemaMismatch (a ValueError) naming the field when they do not.
    """
    store = default_store() if store is None else checked(store, Store, "store", "kvemb.open(path)")
    check_name(name)
    with store._lock:
        store.health.check_open()
        known = store._opened.get(name)
        if known is None:
            return Variable(
                key_dtype, value_dtype, dim, devices, partitioner, shared_name, name, initializer, trainable,
                checkpoint, init_size, kv_creator, restrict_policy, bp_v2,
                store=store, optimizer=optimizer, hot_rows=hot_rows,
            )  # fmt: skip
        values = as_value_dtype(value_dtype)
        asked = None if initializer is None else as_initializer(initializer, at_least(dim, 1, "dim"), values)
        chosen = as_optimizer(optimizer)
        check_stored(
            name, known._entry(), as_key_dtype(key_dtype), values, at_least(dim, 1, "dim"), asked,
            chosen, as_policy(restrict_policy),
        )  # fmt: skip
        if chosen is not None:
            known._tiered.train_with(chosen, writable=False)  # as one that is not open yet takes it
        return known
