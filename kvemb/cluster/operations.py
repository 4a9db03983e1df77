"""What each call does to the rows of one variable of a cluster: the calls of kvemb.tiers.operations, on its shards.

Arguments are checked (kvemb.variable): keys int64 (n,), values contiguous (n, dim). Thread-safe.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from kvemb import registry
from kvemb.cluster.cluster import Cluster, Step, Wanted
from kvemb.cluster.messages import Change
from kvemb.contracts import Mask, Values
from kvemb.engine.table import Table
from kvemb.optimizers import Optimizer
from kvemb.rows.bags import Bags, Beside
from kvemb.rows.hashing import Keys, Unique
from kvemb.tiers.selection import lowest_kept


class ClusterOperations:
    """The calls on one variable's rows. table: the variable's, set once it is made."""

    table: Table

    def __init__(self, cluster: Cluster, optimizer: Optimizer | None) -> None:
        self._cluster, self.optimizer = cluster, optimizer

    # Reading.

    def lookup(self, keys: Keys, out: Values, exists: Mask | None, *, touch: bool) -> None:
        """Fill out (n, dim) with the rows of keys, the initializer's for missing ones, and exists (n,) if given."""
        self._cluster.lookup([Wanted(self.table, keys, out, exists)], touch=touch)

    def pool(self, keys: Keys, bags: Bags, out: Values, *, touch: bool) -> None:
        """Fill out (b, dim) with the pooled rows of bags. They are pooled here: their rows come from several shards."""
        schema = self.table.schema
        distinct = Unique(keys)
        rows = np.empty((len(keys), schema.dim), schema.value_dtype)
        self.lookup(keys, rows, None, touch=touch)
        first = distinct.sums.first
        pooling = registry.hot_table("cpu")(schema, 16, 16)  # empty: every row is beside it
        pooling.pool(keys, bags, Beside(distinct.inverse, rows[first]), out, None, 0.0)

    def scores(self, keys: Keys) -> npt.NDArray[np.float64]:
        """Return each key's score, NaN where it is absent. Does not count as a use."""
        scores = np.empty(len(keys))
        self._ask("scores", keys, scores)
        return scores

    def slot(self, keys: Keys, number: int) -> Values:
        """Return a slot of each key (n, width), as a new row has it where the key is absent."""
        schema = self.table.schema
        values = np.empty((len(keys), schema.slots[number].width), schema.slot_dtype)
        self._ask("slot", keys, values, number)
        return values

    def prefetch(self, keys: Keys) -> None:
        """Start reading the cold rows of keys, for the call that follows."""
        self._ask("prefetch", keys, None)

    def _ask(self, name: str, keys: Keys, out: Values | None, *arguments: object) -> None:
        """Call a method that reads on the shards of distinct keys; fills out (n, ...) with what it returns."""
        cluster, distinct = self._cluster, Unique(keys)
        with cluster.calling():
            self.table.storage.state.check_open()  # of a dropped variable, too
            positions = dict(cluster.router.split(distinct.keys).positions())
            found = cluster.calls.each(
                name, {shard: (self.table.name, distinct.keys[at], *arguments) for shard, at in positions.items()}
            )
        if out is not None:
            each = np.empty((len(distinct.keys), *out.shape[1:]), out.dtype)
            for shard, at in positions.items():
                each[at] = found[shard]
            out[:] = each[distinct.inverse]

    # Changing.

    def upsert(self, keys: Keys, values: Values) -> None:
        """Insert rows or replace their embeddings; of duplicate keys the last wins."""
        distinct = Unique(keys)
        self._cluster.change(self.table, "upsert", distinct.keys, values[distinct.last])

    def accum(self, keys: Keys, old: Values, new: Values, exists: Mask) -> None:
        """Add new - old to keys that exist as the caller believes; insert new where both say absent; else ignore."""
        self._cluster.change(self.table, "accum", keys, old, new, exists)

    def apply_gradients(self, keys: Keys, grads: Values) -> None:
        """Take one optimizer step on each distinct key; gradients of duplicates are summed in order first."""
        (failure,) = self._cluster.train([Step(self.table, keys, grads)])
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
        cluster, name = self._cluster, self.table.name
        with cluster.alone():
            self.table.storage.state.check_open()
            change = Change(name, "clear", (), cluster.clocks[name].now(self.table.policy))
            for (failure,) in cluster.calls.all_once("change", [change]):
                if failure is not None:
                    raise failure

    def set_optimizer(self, optimizer: Optimizer, *, writable: bool = True) -> None:
        """Go on with an optimizer of the same slots."""
        self._cluster.set_optimizer(self.table, optimizer, writable=writable)
        self.optimizer = optimizer

    def restrict(self, keep_rows: int, trigger_rows: int | None) -> int:
        """Keep the `keep_rows` highest scores over all shards, ties to the larger key; returns how many rows left.

        Rows that the policy has expire leave in any case. Does nothing unless there are more than trigger_rows. Each
        shard ranks its rows; the limit is found in their summed histograms; then each removes what is below it.
        """
        cluster, name, policy = self._cluster, self.table.name, self.table.policy
        with cluster.alone():
            self.table.storage.state.check_open()
            moment, rows = cluster.clocks[name].now(policy), sum(cluster.calls.all("size", name))
            expire = policy is not None and policy.least_score(policy.now(moment.step)) > -math.inf
            if (keep_rows >= rows and not expire) or (trigger_rows is not None and rows <= trigger_rows):
                return 0
            try:
                alive = sum(count for _, count in cluster.calls.all_once("rank", name, moment))
                keep = min(keep_rows, alive)
                if keep == rows:
                    return 0
                limit = None
                if keep:
                    limit = lowest_kept(
                        lambda prefix: np.sum(cluster.calls.all("count_ranks", name, prefix), axis=0),
                        lambda prefix: np.concatenate(cluster.calls.all("matching_ranks", name, prefix)),
                        keep,
                    )
                return sum(cluster.calls.all_once("remove_ranked", name, limit))
            finally:
                if cluster.calls.lost is None:
                    cluster.calls.all_once("forget_ranks", name)
