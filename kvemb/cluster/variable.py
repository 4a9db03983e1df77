"""A cluster's table, as users see it: kvemb.Variable's methods, and asynchronous calls. Thread-safe."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NoReturn, cast

import numpy.typing as npt

from kvemb import registry
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.operations import ClusterOperations
from kvemb.cluster.storage import ClusterStorage
from kvemb.contracts import HotTable
from kvemb.defaults import DefaultStore
from kvemb.engine.specification import Specification
from kvemb.engine.table import Table
from kvemb.errors import Closed, ShardLost
from kvemb.handle import Handle, inside
from kvemb.memory.budget import Budget
from kvemb.restrict.bounds import Bounds
from kvemb.shared_docs import described_as
from kvemb.stats import Stats
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Partition
from kvemb.variable import Variable as OneStoresVariable


class Variable(OneStoresVariable):
    """Stand for an embedding table whose rows are spread over the shards of a cluster.

    You get one from ``kvemb.cluster.Store.get_variable``. The methods and properties that ``kvemb.Variable`` has, too,
    give the same results; their docstrings are there. A call is atomic per key.

    ``hot_rows``, ``init_size`` and the memory of an ``Admission`` are for each shard. Each shard keeps its part of
    ``max_rows``, by the ranks of its own rows; there is no ``ttl``. An ``Admission`` counts on each
    shard separately, so keys that share a counter in one store may not share one here. If the number of shards changes,
    the counters of all shards that had the keys are joined: no key has fewer sightings than before.
    """

    def __init__(self, store: DefaultStore[Cluster], specification: Specification) -> None:
        self._store, self._cluster = store, inside(store)
        Handle.__init__(self, _table(self._cluster, specification, self))

    @property
    def tables(self) -> tuple[HotTable, ...]:
        """An empty tuple: hot tables are in the shards."""
        return ()

    @property
    def stats_by_shard(self) -> list[Stats]:
        """The counts of each shard since it was opened, in the order of shards. ``stats`` is their sum.

        Raises:
            Closed: The cluster is closed, or another client dropped the variable.
        """
        return cast(ClusterStorage, self._inside.storage).stats_by_shard()

    def _set_bounds(self, bounds: Bounds) -> None:
        check_bounds(bounds)
        self._inside.set_bounds(bounds)

    def __repr__(self) -> str:
        try:
            return super().__repr__()
        except (Closed, ShardLost) as error:
            why = "lost" if isinstance(error, ShardLost) else "dropped by another client"
            return f"<kvemb.Variable {self.name!r}, {why}>"

    @described_as(OneStoresVariable.lookup)
    def lookup_async(self, keys: npt.ArrayLike, return_exists: bool = False, *, touch: bool = True) -> Future[Any]:
        """Start a lookup on another thread. Calls that run at the same time are executed in any order.

        At most eight of a client's asynchronous calls run at a time; further ones wait. Do not change the keys until
        the future is done.

        Returns:
            A future. Its ``result()`` returns what ``lookup`` returns, or raises what it raises.

        Raises:
            Closed: This client is closed.
        """
        return self._cluster.start(lambda: self.lookup(keys, return_exists, touch=touch))

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"variable {self.name!r} cannot be pickled: its cluster is in this process")


def _table(cluster: Cluster, specification: Specification, variable: Variable) -> Table:
    """Return a Table that checks arguments as a store's does, and whose rows are on the shards."""
    schema = specification.schema
    # These hot tables stay empty. They call the partitioner, so that its errors are raised here, not on a shard.
    empty = [registry.hot_table("cpu")(schema, 16, 16) for _ in specification.devices]
    budgets = [Budget(0) for _ in empty]
    partition = Partition(specification.partitioner, schema.key_dtype, len(empty))
    hot_tables = HotTables(empty, partition, budgets, min_rows=None)
    policy = None if specification.policy is None else specification.policy.bind(variable)
    storage, operations = ClusterStorage(cluster), ClusterOperations(cluster, specification.optimizer)
    operations.bounds = specification.bounds
    # Both have those methods of a store's storage and operations that a Variable and its Table call.
    table = Table(specification, policy, hot_tables, cast(Any, storage), cast(Any, operations), variable)
    storage.table = operations.table = table
    return table


def check_bounds(bounds: Bounds) -> None:
    """Raise ValueError for bounds that a cluster cannot keep."""
    if bounds.ttl is not None:
        raise ValueError(
            f"a cluster has no ttl, got {bounds.ttl:g}: the steps of its rows are counted by its clients; leave it "
            "out, and call restrict with a kvemb.TimeToLiveRestrictPolicy"
        )


def arguments_of(specification: Specification) -> dict[str, Any]:
    """Return the arguments with which each shard makes its variable: all of them, so that all shards make the same."""
    return {
        "key_dtype": specification.schema.key_kind,
        "name_bytes": specification.schema.name_bytes or None,
        "value_dtype": specification.schema.value_dtype.name,
        "dim": specification.schema.dim,
        "devices": list(specification.devices),
        "partitioner": specification.partitioner,
        "initializer": specification.initializer,
        "trainable": specification.trainable,
        "checkpoint": specification.checkpointed,
        "init_size": specification.first_rows,
        "kv_creator": specification.creator,
        "restrict_policy": specification.policy,
        "bp_v2": specification.bp_v2,
        "optimizer": specification.optimizer,
        "hot_rows": specification.hot_rows,
        "admission": specification.admission,
        "max_rows": specification.bounds.max_rows,
        "constraint": specification.constraint,
    }
