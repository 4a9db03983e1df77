"""The four lookups of TensorFlow's embedding_ops: single ids, distinct ids, bags, and bags with a default id.

Sources: tf.nn.embedding_lookup, embedding_lookup_sparse and safe_embedding_lookup_sparse, and
tf.contrib.layers.embedding_lookup_unique, which tfra.dynamic_embedding has under the same names. Bags are those of
torch.nn.functional.embedding_bag. Negative ids are keys like any other. Atomic per key, as lookups are. Nothing is
inserted.

Ids, offsets and weights may be on the variable's GPU. They are copied to the host; the values, and rows that are hot on
the GPU, stay there.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_bool
from kvemb.engine.given_keys import GivenStrings, owned_keys
from kvemb.engine.on_device import DeviceKeys, copied
from kvemb.engine.table import Table
from kvemb.handle import inside
from kvemb.pooling.embeddings import Embeddings
from kvemb.pooling.given_bags import (
    GivenBags,
    check_combiner,
    check_floats,
    combined,
    flat_keys,
    given_bags,
    max_norm_of,
    single_bags,
    with_default,
    without_weights_up_to_zero,
)
from kvemb.rows.device_arrays import device_of
from kvemb.rows.hashing import Unique
from kvemb.rows.names import StringKeys
from kvemb.shared_docs import described_as
from kvemb.variable import Variable

Combiner = Literal["mean", "sum", "sqrtn"]


def embedding_lookup(
    var: Variable, ids: npt.ArrayLike, max_norm: float | None = None, *, touch: bool = True
) -> Embeddings:
    """Look up the row of each id. Missing ids have the initializer's row, and nothing is inserted.

    As ``tf.nn.embedding_lookup``. The result can take the gradients of its values (``Embeddings.apply_gradients``).

    Args:
        var: The variable.
        ids: Ids of any shape, in the host's memory or on the variable's GPU. Duplicates are allowed, and negative ids
            are keys like any other.
        max_norm: Rows of a larger L2 norm are scaled down to it; the table does not change. None: no bound.
        touch: Whether each occurrence of an id counts as a use for the policy.

    Returns:
        The rows as ``values``, ``ids.shape + (dim,)`` in the value dtype, a new array.

    Raises:
        TypeError: ``var`` is not a variable, or a conversion of ids would lose information.
        ValueError: ``max_norm`` is not above 0, or the rows are integers and ``max_norm`` is given.
        Closed: The store is closed.
        Corruption: Bytes on disk differ from what was written.

    Example:
        >>> found = kvemb.embedding_lookup(users, [[1, 2], [3, 1]])
        >>> found.values.shape
        (2, 2, 2)
        >>> found.apply_gradients(np.ones((2, 2, 2), np.float32))
    """
    return _rows(var, ids, max_norm, touch, once=False)


@described_as(embedding_lookup)
def embedding_lookup_unique(
    var: Variable, ids: npt.ArrayLike, max_norm: float | None = None, *, touch: bool = True
) -> Embeddings:
    """Look up each distinct id once. The values are those of ``embedding_lookup``.

    One use is recorded for each distinct id. As ``tf.contrib.layers.embedding_lookup_unique``.

    Args:
        ids: Ids of any shape, in the host's memory. For ids on a GPU use your library's ``unique()`` and
            ``embedding_lookup``.
        touch: Whether each distinct id counts as one use for the policy.

    Returns:
        The rows as ``values``, ``ids.shape + (dim,)`` in the value dtype, a new array.

    Raises:
        TypeError: ``var`` is not a variable, ids are on a GPU, or a conversion of ids would lose information.
        ValueError: ``max_norm`` is not above 0, or the rows are integers and ``max_norm`` is given.
        Closed: The store is closed.
        Corruption: Bytes on disk differ from what was written.
    """
    return _rows(var, ids, max_norm, touch, once=True)


def embedding_lookup_sparse(
    var: Variable,
    ids: npt.ArrayLike,
    offsets: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    combiner: Combiner = "mean",
    max_norm: float | None = None,
    *,
    include_last_offset: bool = False,
    touch: bool = True,
) -> Embeddings:
    """Look up bags of ids, and pool the rows of each bag to one row.

    As ``tf.nn.embedding_lookup_sparse``, with bags given as for ``torch.nn.functional.embedding_bag``. Rows are summed
    in order, in float32 (float64 rows in float64), and rounded once. Missing ids have the initializer's row, and
    nothing is inserted.

    Ids, offsets and weights may be on the variable's GPU. They are copied to the host; the values, and rows that are
    hot on the GPU, stay there.

    Args:
        var: The variable, with rows of floats.
        ids: The ids of all bags (n,), one bag after the other.
        offsets: Where each bag begins (bags,): integers from 0, ascending. With ``include_last_offset`` (bags + 1,).
        weights: The weight of each id (n,), float32, or float64 for float64 rows. None: 1.
        combiner: ``"sum"``: the sum of weight * row. ``"mean"``: that sum divided by the sum of the weights.
            ``"sqrtn"``: that sum divided by the square root of the sum of the squared weights. A bag whose divisor is 0
            gives zeros.
        max_norm: Rows of a larger L2 norm are first scaled down to it; the table does not change. None: no bound.
        include_last_offset: Whether ``offsets`` has n as an additional last element, as FBGEMM's has.
        touch: Whether each occurrence of an id counts as a use for the policy.

    Returns:
        The pooled rows as ``values``, (bags, dim) in the value dtype, a new array. An empty bag gives zeros.

    Raises:
        TypeError: ``var`` is not a variable, ``offsets`` are not integers, or a conversion would lose information.
        ValueError: The rows are integers; ``combiner`` is unknown; or an array has the wrong shape or order.
        Closed: The store is closed.
        Corruption: Bytes on disk differ from what was written.

    Example:
        >>> bags = kvemb.embedding_lookup_sparse(users, ids=[1, 2, 3], offsets=[0, 2], combiner="sum")
        >>> bags.values.tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    table, how = _table(var), check_combiner(combiner)
    given = given_bags(
        table.schema,
        *_copied(table, ids, offsets, weights),
        last_included=as_bool(include_last_offset, "include_last_offset"),
    )
    return _pooled(var, table, given, how, max_norm, touch, ids)


@described_as(embedding_lookup_sparse)
def safe_embedding_lookup_sparse(
    var: Variable,
    ids: npt.ArrayLike,
    offsets: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    combiner: Combiner = "mean",
    max_norm: float | None = None,
    default_id: int | str | None = None,
    *,
    include_last_offset: bool = False,
    touch: bool = True,
) -> Embeddings:
    """Look up and pool bags of ids, without ids of weights that are not above 0.

    As ``tf.nn.safe_embedding_lookup_sparse``. With the combiner ``"sum"``, ids of all weights are kept. Otherwise this
    is ``embedding_lookup_sparse``.

    Args:
        default_id: A bag that is empty, also after ids were left out, gives this id's row. None: zeros.

    Returns:
        The pooled rows as ``values``, (bags, dim) in the value dtype, a new array.

    Raises:
        TypeError: ``var`` is not a variable, ``offsets`` are not integers, or a conversion would lose information.
        ValueError: The rows are integers; ``combiner`` is unknown; ``default_id`` is not one id; or an array has the
            wrong shape or order.
        Closed: The store is closed.
        Corruption: Bytes on disk differ from what was written.

    Example:
        >>> bags = kvemb.safe_embedding_lookup_sparse(users, [1, 2], offsets=[0, 2], weights=[1, 0], default_id=3)
        >>> bags.values.tolist()
        [[1.0, 1.0], [3.0, 3.0]]
    """
    table, how = _table(var), check_combiner(combiner)
    given = given_bags(
        table.schema,
        *_copied(table, ids, offsets, weights),
        last_included=as_bool(include_last_offset, "include_last_offset"),
    )
    if how != "sum":
        given = without_weights_up_to_zero(given)
    if default_id is not None:
        key, name = flat_keys(table.schema, default_id)
        if key.shape != ():
            raise ValueError(f"default_id must be one id, got {brief(default_id)}")
        given = with_default(given, key, name)
    return _pooled(var, table, given, how, max_norm, touch, ids)


def bag_gradients(
    var: Variable, ids: npt.NDArray[Any], offsets: npt.NDArray[Any], combiner: str, grads: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return ``row_gradients(grads)`` of ``embedding_lookup_sparse`` with these arguments, without the lookup."""
    table = _table(var)
    given = given_bags(table.schema, ids, offsets, None, last_included=False)
    bags = combined(given, check_combiner(combiner), math.inf, table.schema.slot_dtype)
    return Embeddings(var, given.keys, bags, grads, None, _names=given.names).row_gradients(grads)


def _rows(var: Variable, ids: npt.ArrayLike, max_norm: float | None, touch: bool, *, once: bool) -> Embeddings:
    """Look up single ids. once: read each distinct id once, and record one use for it."""
    table, most = _table(var), max_norm_of(max_norm)
    given = owned_keys(table, ids)
    if isinstance(given, DeviceKeys):
        return _rows_on_device(var, given, ids, most, touch, once=once)
    keys = given.checked()
    distinct = Unique(keys) if once else None
    wanted = keys if distinct is None else distinct.keys
    values, exists = np.empty((len(wanted), table.schema.dim), table.schema.value_dtype), None
    if max_norm is None:
        exists = np.empty(len(wanted), np.bool_)
        table.operations.lookup(wanted, values, exists, touch=as_bool(touch, "touch"))
    else:
        check_floats(table, "max_norm")
        table.operations.pool(
            wanted, single_bags(len(wanted), most, table.schema.slot_dtype), values, touch=as_bool(touch, "touch")
        )
    if distinct is not None:
        values = values[distinct.inverse]
        exists = None if exists is None else exists[distinct.inverse]
    bags = single_bags(len(keys), most, table.schema.slot_dtype)
    names = given.named.names if isinstance(given, GivenStrings) else None
    return Embeddings(var, keys, bags, values.reshape(*given.shape, table.schema.dim), exists, _names=names)


def _rows_on_device(var: Variable, given: DeviceKeys, ids: Any, most: float, touch: bool, *, once: bool) -> Embeddings:
    """As _rows(), for ids on a GPU."""
    if once:
        raise TypeError(
            "embedding_lookup_unique takes ids in the host's memory; on a GPU use your library's unique() and "
            "embedding_lookup"
        )
    bags = single_bags(given.flat.size, most, given.table.schema.slot_dtype)
    if most == math.inf:
        kept = given.copy()
        rows = kept.rows(None)
        kept.lookup(rows, None, touch=as_bool(touch, "touch"))
        return Embeddings(var, kept, bags, kept.result(rows), None, ids)
    keys = given.in_host()
    check_floats(given.table, "max_norm")
    return Embeddings(var, keys, bags, given.pool(keys, bags, given.shape, touch=as_bool(touch, "touch")), None, ids)


def _copied(table: Table, *arrays: Any) -> list[Any]:
    """Return ids, offsets and weights; if ids are on a GPU, copies of those that are there."""
    if device_of(arrays[0]) is None:
        return list(arrays)
    names = "ids", "offsets", "weights"
    return [
        array if device_of(array) is None else copied(table, array, name)
        for array, name in zip(arrays, names, strict=True)
    ]


def _pooled(
    var: Variable, table: Table, given: GivenBags, combiner: str, max_norm: float | None, touch: bool, ids: Any
) -> Embeddings:
    check_floats(table, "a pooled lookup")
    bags = combined(given, combiner, max_norm_of(max_norm), table.schema.slot_dtype)
    if device_of(ids) is not None:
        pooled = DeviceKeys(table, ids).pool(given.keys, bags, (bags.bag_count,), touch=as_bool(touch, "touch"))
        return Embeddings(var, given.keys, bags, pooled, None, ids)
    if given.names is not None:
        table.check_names(StringKeys(given.keys, given.names, given.keys.shape))
    table.hot_tables.owners(given.keys)  # so that a partitioner's error is raised now
    values = np.empty((bags.bag_count, table.schema.dim), table.schema.value_dtype)
    table.operations.pool(given.keys, bags, values, touch=as_bool(touch, "touch"))
    return Embeddings(var, given.keys, bags, values, None, _names=given.names)


def _table(var: Variable) -> Table:
    if not isinstance(var, Variable):
        raise TypeError(f"var must be a Variable, got {brief(var)}; use kvemb.get_variable")
    return inside(var)
