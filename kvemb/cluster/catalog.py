"""A client's variables by name: they are open here, or the coordinator knows them, or they are made on all shards."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import cast

from kvemb.catalog import VariableMap, variable_of
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.storage import ClusterStorage
from kvemb.cluster.variable import Variable, arguments_of, check_bounds
from kvemb.defaults import DefaultStore
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.agreement import agreed_optimizer, completed
from kvemb.engine.arguments import Arguments, GraphKeys
from kvemb.engine.specification import check_name, specify, wanted_bounds
from kvemb.engine.table import Table
from kvemb.errors import Closed
from kvemb.handle import inside
from kvemb.options import format_count
from kvemb.stats import Stats
from kvemb.variable import Variable as OneStoresVariable

_logger = logging.getLogger("kvemb")


def get_or_make(store: DefaultStore[Cluster], arguments: Arguments) -> Variable:
    """Return the variable of this full name: open, stored, or new. REQUIRES: the client's lock. See get_variable."""
    client = inside(store)
    session = client.begin_call()
    token, entry, mine = session.ask("described", check_name(arguments.name))
    known = client.tables.get(arguments.name)
    if known is not None and session.is_opened(known, token):
        if (optimizer := agreed_optimizer(known, arguments)) is not None:
            known.set_optimizer(optimizer, writable=False)
        if (bounds := wanted_bounds(arguments, known.operations.bounds)) != known.operations.bounds:
            check_bounds(bounds)
            known.set_bounds(bounds)
        return cast(Variable, variable_of(known))
    if known is not None:  # another client has dropped it
        storage_of(known).keep_stats()
        client.forget(known)
    specification = specify(completed(arguments, mine), entry)
    check_bounds(specification.bounds)
    if token is None and (changed := specification.new_policy):
        _logger.warning("%s", changed)
    variable = Variable(store, specification)
    client.add(inside(variable), session.ask_once("open_variable", arguments.name, arguments_of(specification)))
    for collection in specification.collections:
        client.collect(collection, variable)
    if arguments.regularizer is not None and (loss := arguments.regularizer(variable)) is not None:
        client.collect(GraphKeys.REGULARIZATION_LOSSES, loss)
    return variable


def open_variable(store: DefaultStore[Cluster], name: str) -> OneStoresVariable:
    """Return a variable of the cluster; if it is not open here, open it as it is stored. Raises KeyError, Closed."""
    client = inside(store)
    client.state.check_here()
    with client.lock:
        if (known := client.tables.get(name)) is not None and client.session.has(known):
            return variable_of(known)
        if client.begin_call().ask("described", name)[1] is None:
            raise KeyError(f"there is no variable {name!r}: it was dropped")
        return get_or_make(store, Arguments(name))


class OpenVariables(VariableMap):
    """A client's variables, by name: those that this client has open are found without asking the coordinator.

    If another client has dropped it since, the call raises Closed, because its token is unknown (coordination.opened).
    The next call finds the variable that was made again under that name.
    """

    def __init__(self, store: DefaultStore[Cluster]) -> None:
        self._cluster = inside(store)
        super().__init__(self._cluster.names, lambda name: open_variable(store, name))

    def __getitem__(self, name: str) -> OneStoresVariable:
        known = self._cluster.tables.get(name)
        if known is None or not self._cluster.begin_call().has(known):
            return super().__getitem__(name)
        return variable_of(known)


def counts_of(cluster: Cluster) -> Iterator[list[Stats]]:
    """Yield the counts of each variable of a client, by shard; not of one that another client has dropped."""
    for table in list(cluster.tables.values()):
        try:
            yield storage_of(table).stats_by_shard()
        except Closed:
            cluster.state.check_open()


def lines_of(cluster: Cluster) -> Iterator[str]:
    """Yield a line for each variable of a cluster, for its repr."""
    catalog: dict[str, VariableEntry | None] = cluster.begin_call().ask("catalog")
    for name, entry in sorted(catalog.items()):
        if name in cluster.tables:
            yield f"  {cluster.tables[name].variable!r}"
        elif entry is None:
            yield f"  {name}: open in another client"
        else:
            yield f"  {name}: {format_count(entry.rows, 'row')} of dim {entry.dim} {entry.value_dtype}, not opened yet"


def storage_of(table: Table) -> ClusterStorage:
    """Return the storage of a cluster's table."""
    return cast(ClusterStorage, table.storage)
