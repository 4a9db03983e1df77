"""Makes a variable's parts from its specification and registers them in its store.

A failure half-way is undone: no memory stays reserved, and the cold database, the open tables and the collections are
as before.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial

from kvemb import registry
from kvemb.contracts import ColdStore
from kvemb.durability import cold_databases, layout
from kvemb.engine.admitting import admission_counters_of, memory_bytes
from kvemb.engine.arguments import AnyArguments
from kvemb.engine.engine import Engine
from kvemb.engine.keeping_bounds import check_may_change, keep_bounds
from kvemb.engine.specification import Specification, check_name, specify
from kvemb.engine.table import Table
from kvemb.engine.warming import warm
from kvemb.errors import ColdStoreError, ReadOnly
from kvemb.handle import Handle
from kvemb.memory.memtables import row_bytes
from kvemb.operations.row_factory import RowFactory
from kvemb.operations.scoring import Scorer
from kvemb.operations.table_operations import TableOperations
from kvemb.options import RocksDBCreator
from kvemb.rows.codec import order_keys
from kvemb.tiers.gpu_storage import storage_class
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.sizing import make_tables

_logger = logging.getLogger("kvemb")


def open_table(engine: Engine, arguments: AnyArguments, variable: Handle[Table]) -> Table:
    """Make the table of a variable, new or stored, which must not be open.

    Raises SchemaMismatch, ValueError, TypeError; Closed; for a new variable ReadOnly, Poisoned; ColdStoreError; for one
    that joins checkpoints also Corruption, and the error of a checkpoint with block=False that failed.
    """
    name = check_name(arguments.name)
    engine.state.check_here()
    with engine.lock:
        engine.state.check_open()
        if name in engine.tables:
            raise ValueError(f"variable {name!r} is open already; use get_variable({name!r}, ...) to get it")
        specification = specify(arguments, stored := engine.opened_manifest.variables.get(name))
        if stored is not None and (specification.bounds != stored.bounds or specification.new_policy):
            check_may_change(engine, name)
        if specification.is_new:
            if engine.state.read_only:
                known = ", ".join(sorted(engine.opened_manifest.variables)) or "none"
                raise ReadOnly(f"the read-only store {engine.state.name} has no variable {name!r}; it has {known}")
            engine.state.check_writable()
        with ExitStack() as undo:
            table = _make_table(engine, specification, variable, undo)
            _register(engine, table, undo)
            if specification.is_new and engine.log is not None:
                engine.flush()  # the log may name only variables of the durable point before it
            if specification.leaves_checkpoints and not engine.state.read_only:
                engine.checkpointer.wait()  # a point that is being written links the key files recorded so far
                # In deltas it is dropped. After a crash it is in checkpoints still, and the next opening does this.
                engine.changes.record_dropped(name, left=True)
            undo.pop_all()
        keep_bounds(engine, table)
        if (changed := specification.new_policy) and not engine.state.of_shard:
            _logger.warning("%s", changed)
        if specification.is_new and specification.dim_left_out:
            _logger.warning(
                "variable %r is created with one number per row, because no dim was given; if that is intended, pass "
                "dim=1",
                name,
            )
        return table


def _make_table(engine: Engine, specification: Specification, variable: Handle[Table], undo: ExitStack) -> Table:
    """Make the table's parts. undo: receives callbacks that undo this."""
    name, stored, schema, host = specification.name, specification.stored, specification.schema, engine.budgets.host
    cold = _cold_store(engine, specification, undo)
    _warn_if_mapped(engine, specification)
    if counted := memory_bytes(engine, specification):
        host.reserve(counted, f"sightings of {name!r}", below_min=True)
        undo.callback(host.give_back, counted)
    first_rows, hot_rows = specification.first_rows, specification.hot_rows
    devices, partitioner = specification.devices, specification.partitioner
    hot_tables = make_tables(name, schema, devices, partitioner, first_rows, hot_rows, engine.budgets, engine.limits)
    for table in hot_tables.tables:
        if table.device_rows is not None:
            table.device_rows.account_host(host.take, host.total)
    undo.callback(give_back, engine, hot_tables)
    recorded = specification.persistent and not engine.state.read_only
    if recorded and specification.joins_checkpoints:
        record_whole(engine, specification, cold)
    storage = storage_class(hot_tables)(
        hot_tables,
        cold,
        state=engine.state,
        executor=engine.writer,
        readers=engine.readers,
        memtable_rows=_write_buffer_bytes(specification) // row_bytes(schema),
        staging=engine.budgets.staging,
        limits=engine.limits,
        record=partial(engine.changes.record, name) if recorded else None,
        record_cleared=partial(engine.changes.record_cleared, name) if recorded else None,
        journal=engine.log if recorded else None,
        name=name,
        size=stored.rows if stored else 0,
        step=stored.step if stored else 0,
        optimizer_steps=stored.optimizer_steps if stored else 0,
    )
    undo.callback(storage.give_back_staging)
    policy = None if specification.policy is None else specification.policy.bind(variable)
    kernels = registry.row_kernels(engine.limits)
    operations = TableOperations(
        storage,
        RowFactory(schema, specification.initializer, specification.optimizer, kernels),
        Scorer(policy, hot_tables),
        scratch=None if engine.state.read_only else engine.path,
        constraint=specification.constraint,
        admission_counters=admission_counters_of(engine, specification),
        bounds=specification.bounds,
    )
    warm(engine, name, hot_tables, operations)
    return Table(specification, policy, hot_tables, storage, operations, variable, engine.limits)


def _cold_store(engine: Engine, specification: Specification, undo: ExitStack) -> ColdStore:
    name, schema = specification.name, specification.schema
    if not specification.persistent:
        return cold_databases.in_memory(schema)
    # Run in order after any queued checkpoint of the database, which must not contain later column families.
    if not specification.is_new:
        return engine.in_order(engine.database.attach, name, schema)
    try:
        cold = engine.in_order(engine.database.create, name, schema, specification.creator)
        engine.budgets.opened(cached=engine.database.read_mode != "mmap")  # an empty one may have been opened again
    except ColdStoreError as error:
        poison_if_there(engine, name, error)
        engine.state.check_writable()
        raise
    undo.callback(_drop, engine, name)
    return cold


def _write_buffer_bytes(specification: Specification) -> int:
    creator = specification.creator
    return (creator if isinstance(creator, RocksDBCreator) else RocksDBCreator).write_buffer_bytes


def _warn_if_mapped(engine: Engine, specification: Specification) -> None:
    """Warn of files that stay mapped although the variable asks for another way of reading them."""
    creator = specification.creator
    if isinstance(creator, RocksDBCreator) and creator.read_mode != "mmap" == engine.database.read_mode:
        _logger.warning(
            "variable %r has read_mode=%r, but the store's files are mapped until it is opened again, because it was "
            "opened without such a variable; close the store after a flush, and open it again",
            specification.name,
            creator.read_mode,
        )


def _drop(engine: Engine, name: str) -> None:
    """Delete a new cold store. If that also fails, it stays in live/, which the next opening makes again."""
    try:
        engine.in_order(engine.database.drop, name)
    except ColdStoreError as error:
        poison_if_there(engine, name, error)


def poison_if_there(engine: Engine, name: str, cause: ColdStoreError) -> None:
    """Poison the store if its database has a cold store that should not be there.

    RocksDB may have failed after creating it, or while deleting it. The next durable point's manifest would not name
    it, so that point could not be opened. kvemb.engine.recovering drops it.
    """
    try:
        there = name in cold_databases.families(engine.points.live / layout.ROWS)
    except ColdStoreError:
        there = True
    if there:
        engine.state.poison(cause, intact=True)


def record_whole(engine: Engine, specification: Specification, cold: ColdStore) -> None:
    """Record that every row of a stored variable changed, because checkpoints before this opening do not contain it.

    After a crash the durable point still says that the variable is in no checkpoint, so the next opening does this
    again.
    """
    engine.checkpointer.wait()  # a point that is being written links the key files recorded so far
    with layout.as_cold_store_error(f"record the keys of {specification.name!r}"):
        engine.changes.record_cleared(specification.name)
        for rows in cold.scan(engine.limits.scan_rows):
            engine.changes.record(specification.name, order_keys(rows.keys, specification.schema))


def give_back(engine: Engine, hot_tables: HotTables) -> None:
    """Return the memory of a table's rows to the budgets. REQUIRES: the table is not used afterwards."""
    hot_tables.memory.end()
    engine.budgets.host.give_back(engine.budgets.staging.reserve_bytes(hot_tables.schema, engine.limits))


def _register(engine: Engine, table: Table, undo: ExitStack) -> None:
    undo.callback(engine.discard, table)
    engine.tables[table.name] = table
    for collection in table.specification.collections:
        engine.collect(collection, table.variable)
