"""get_variable of the default store, or of a given one.

Follows tfra.dynamic_embedding.get_variable in name, order and default of its arguments.
"""

from __future__ import annotations

import inspect

import numpy.typing as npt

from kvemb.arguments import DIM, KEY_DTYPE, VALUE_DTYPE, checked
from kvemb.initializers import Initializer
from kvemb.opening import default_store
from kvemb.optimizers import Optimizer
from kvemb.options import Creator
from kvemb.restrict import RestrictPolicy
from kvemb.store import Store
from kvemb.tiers.hot_tables import Partitioner, default_partitioner
from kvemb.variable import Variable


def get_variable(
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
    store: Store | None = None,
    optimizer: Optimizer | None = None,
    hot_rows: int | None = None,
) -> Variable:
    """Return the variable of this name in a store: Store.get_variable, which explains the other arguments.

    store: the innermost default store (`with kvemb.open(path):`) unless given.
    """
    place = default_store() if store is None else checked(store, Store, "store", "kvemb.open(path)")
    return place.get_variable(
        name, key_dtype, value_dtype, dim, devices, partitioner, shared_name, initializer, trainable,
        checkpoint, init_size, kv_creator, restrict_policy, bp_v2, optimizer=optimizer, hot_rows=hot_rows,
    )  # fmt: skip


# One text explains each argument in both places.
_own, _shared = inspect.getdoc(get_variable) or "", inspect.getdoc(Store.get_variable) or ""
get_variable.__doc__ = _own + "\n" + _shared.partition("\n\n")[2]
