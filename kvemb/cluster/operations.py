"""The calls of kvemb.operations for one variable of a cluster, sent to its shards.

Arguments are checked (kvemb.variable): keys int64 (n,), values contiguous (n, dim). Thread-safe.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvemb import registry
from kvemb.cluster.cluster import Cluster, LookupPart, StepPart
from kvemb.contracts import Mask, Values
from kvemb.engine.table import Table
from kvemb.optimizers import Optimizer
from kvemb.restrict.bounds import Bounds
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.hashing import Keys, Unique


class ClusterOperations:
    """The calls on one variable's rows. table: the variable's table, set once it is made."""

    table: Table
    bounds: Bounds = Bounds()

    def __init__(self, cluster: Cluster, optimizer: Optimizer | None) -> None:
        self._cluster, self.optimizer = cluster, optimizer

    # Reading.

    def lookup(self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool) -> None:
        """Fill out (n, dim) with the rows of keys, the initializer's for missing keys, and exists (n,) if given."""
        self._cluster.lookup([LookupPart(self.table, keys, out, exists)], touch=touch)

    def pool(self, keys: Keys, bags: Bags, out: Values, *, touch: bool) -> None:
        """Fill out (b, dim) with the pooled rows of bags, which are pooled here, as rows come from several shards."""
        schema = self.table.schema
        distinct = Unique(keys)
        rows = np.empty((len(keys), schema.width), schema.value_dtype)
        self.lookup(keys, rows, None, touch=touch)
        first = distinct.sums.first
        pooling = registry.hot_table("cpu")(schema, 16, 16)  # empty: every row is passed beside it
        pooling.pool(keys, bags, RowsBeside(distinct.inverse, rows[first]), out, None, 0.0)

    def scores(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score, NaN where it is absent. Does not count as a use."""
        scores = np.empty(len(keys))
        self._ask("scores", keys, scores)
        return scores

    def slot(self, keys: Keys, number: int) -> Values:
        """Return a slot of each key (n, width); for a missing key, that of a new row."""
        schema = self.table.schema
        values = np.empty((len(keys), schema.slots[number].width), schema.slot_dtype)
        self._ask("slot", keys, values, number)
        return values

    def prefetch(self, keys: Keys, after_lookup: bool = False) -> None:
        """Start reading the cold rows of keys for the next call; after_lookup: only when the next lookup ends."""
        self._ask("prefetch", keys, None, after_lookup)

    def _ask(self, name: str, keys: Keys, out: Values | None, *arguments: object) -> None:
        """Call a method that reads, on the shards of the distinct keys; fills out (n, ...) with its results."""
        cluster, distinct = self._cluster, Unique(keys)
        session = cluster.begin_call()
        token, positions = (
            session.client_variable(self.table).token,
            dict(cluster.router.split(distinct.keys).positions()),
        )
        asked = {shard: (token, distinct.keys[at], *arguments) for shard, at in positions.items()}
        with session.noticing_drops([self.table]):
            found = session.calls.each(name, asked)
        if out is not None:
            each = np.empty((len(distinct.keys), *out.shape[1:]), out.dtype)
            for shard, at in positions.items():
                each[at] = found[shard]
            out[:] = each[distinct.inverse]

    # Changing.

    def upsert(self, keys: Keys, values: Values) -> None:
        """Insert rows or replace their embeddings; the last of duplicate keys wins."""
        distinct = Unique(keys)
        self._cluster.change(self.table, "upsert", distinct.keys, values[distinct.last])

    def accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        """Add new - old where a key exists and `exists` is true; insert new where neither is so; ignore other keys."""
        self._cluster.change(self.table, "accum", keys, old, new, exists)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one optimizer step on each distinct key; gradients of duplicates are summed in order first."""
        (failure,) = self._cluster.train([StepPart(self.table, keys, grads)])
        if failure is not None:
            raise failure

    def remove(self, keys: Keys) -> None:
        """Drop rows with their slots and scores; missing keys are ignored."""
        self._cluster.change(self.table, "remove", Unique(keys).keys)

    def use(self, keys: Keys) -> None:
        """Record one use of each occurrence of keys that exist."""
        self._cluster.change(self.table, "use", keys, use=True)

    def clear(self) -> None:
        """Drop every row."""
        session = self._cluster.begin_call()
        token, clock, *_ = session.client_variable(self.table)
        session.ask_once("clear", token, clock.now(self.table.policy))

    def set_optimizer(self, optimizer: Optimizer, *, writable: bool = True) -> None:
        """Replace the optimizer by one with the same slots."""
        session = self._cluster.begin_call()
        session.ask_once("set_optimizer", session.client_variable(self.table).token, optimizer, writable)
        self.optimizer = optimizer

    def set_bounds(self, bounds: Bounds) -> None:
        """Replace the bounds."""
        session = self._cluster.begin_call()
        session.ask_once("set_bounds", session.client_variable(self.table).token, bounds.max_rows)
        self.bounds = bounds

    def restrict(self, keep_rows: int, trigger_rows: int | None) -> int:
        """Keep the `keep_rows` highest scores over all shards, ties to the larger key; returns how many were removed.

        Expired rows are removed in any case. Does nothing unless there are more than trigger_rows.
        """
        session, policy = self._cluster.begin_call(), self.table.policy
        token, clock, *_ = session.client_variable(self.table)
        session.exchange()
        timestamp = clock.now(policy)
        expire = policy is not None and policy.min_score(policy.now(timestamp.step)) > -math.inf
        left: int = session.ask_once("restrict", token, timestamp, keep_rows, trigger_rows, expire)
        return left
