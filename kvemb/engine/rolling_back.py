"""Rolling an open store back to a mark: all its variables move at once to an earlier durable point.

The point that the mark keeps is copied, by hard links, to one with a new number, and opened beside the database in use.
Then all variables are locked, and CURRENT names the copy: a crash before that leads to the last point and its log, one
after it to the mark. Rows that did not change since the mark stay hot. The store continues from the epochs of the mark,
as if nothing had come after it: a checkpoint made since is in no later one's history, so deltas are exact.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvemb import fresh_files
from kvemb.contracts import ColdDatabase, ColdStore
from kvemb.durability import inventory, layout, manifest
from kvemb.durability.epochs import files_between
from kvemb.durability.keyfile import distinct, read_keys
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.durability.marks.mark import Mark
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.admitting import counters_of
from kvemb.engine.assembly import record_whole
from kvemb.engine.dropping import forget_variable, refuse_variable
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import ColdStoreError
from kvemb.operations.admission_counters import Counters
from kvemb.rows.codec import unordered_keys
from kvemb.rows.hashing import Keys
from kvemb.store_state import Poisoning
from kvemb.threads.interrupts import uninterrupted


class _Move(NamedTuple):
    """How an open variable gets to the mark. cold, counters: its rows and its counters there.

    changed: all keys whose rows may differ there; None: unknown.
    """

    table: Table
    entry: VariableEntry
    cold: ColdStore
    counters: Counters | None
    changed: Keys | None

    def make(self) -> None:
        """Move the variable. REQUIRES: closing(), memtables.paused()."""
        storage, entry, counting = self.table.storage, self.entry, self.table.operations.admission_counters
        storage.go_back(self.cold, entry.rows, entry.step, entry.optimizer_steps, self.changed)
        self.table.ages = entry.ages
        if counting is not None:
            counting.take(self.counters, saved=True)


def rollback(engine: Engine, given: Mark | str) -> None:
    """Move to the durable point that a mark keeps. See Store.rollback."""
    engine.state.check_here()
    with engine.no_point_in_progress():
        points = engine.points
        mark = points.marks.find(given, points.current.store)
        described = manifest.read(mark.path)
        inventory.check(mark.path, described)
        present = _is_ancestor(engine, described.point)
        new, live = points.copy_back(mark.path, described)
        try:
            with inventory.naming_damaged_file(mark.path, described):
                database = engine.open_database(live / layout.ROWS, new)
            try:
                before, files = _move(engine, database, new, live, described.changes if present else None)
            except BaseException:
                if engine.database is not database:
                    database.close()
                raise
        except BaseException:
            if points.current is not new and engine.state.cause is None:
                points.discard_copy(new, live)
            raise
        points.copied = described.point
        # In the background, where it ends before the store is closed: it takes as long as opening the copy.
        engine.writer.submit(_leave, before, [*files, *points.others()])
        if engine.log is not None:
            engine.log.delete_before(new.point)


def _leave(database: ColdDatabase, folders: list[Path]) -> None:
    """Close the database that was in use, and delete folders that nothing needs any more."""
    with suppress(ColdStoreError):  # its files are deleted
        database.close()
    for folder in folders:
        fresh_files.remove(folder)


def _is_ancestor(engine: Engine, number: int) -> bool:
    """Whether the present state follows the point with that number, so that its epochs have all that changed since."""
    current = engine.points.current.point
    return layout.history(number) == layout.history(current) or engine.points.copied == number


def _move(
    engine: Engine, database: ColdDatabase, new: Manifest, live: Path, epochs: list[Epoch] | None
) -> tuple[ColdDatabase, list[Path]]:
    """Move all variables to this opened point; returns the database that was in use, and its files.

    live: the unpacked files of the point. epochs: of the mark, if the present state follows it.
    """
    tables = [table for table in engine.tables.values() if table.persistent]
    reasons = {table: _why_gone(engine, table, new.variables.get(table.name)) for table in tables}
    gone = {table: why for table, why in reasons.items() if why is not None}
    cold = {table: database.attach(table.name, table.schema) for table in tables if table not in gone}
    folder = live / layout.COUNTERS
    counters = {table: counters_of(table, folder, new.sightings.get(table.name)) for table in cold}
    if engine.log is not None:
        engine.log.prepare(new.point)
    with uninterrupted(), ExitStack() as paused:
        for table in tables:
            paused.enter_context(table.storage.closing())
        engine.state.check_writable()
        for table in tables:  # from here on its rows are in the cold store and recorded, or in memory
            paused.enter_context(table.storage.memtables.paused())
        with layout.as_cold_store_error(f"read which keys changed in {engine.path}"):
            sealed = engine.changes.seal_epoch()
            changed = {table: _changed(engine, table, epochs, sealed) for table in cold}
        moves = [_Move(each, new.variables[each.name], cold[each], counters[each], changed[each]) for each in cold]
        with Poisoning(engine.state) as poisoning:
            try:
                if engine.log is not None:
                    engine.log.rotate()
                files = engine.points.go_back(new, live, logged=engine.log is not None)
            except ColdStoreError:  # what another thread raises may come when the points have gone back already
                poisoning.intact = True
                raise
            engine.changes.go_back(live / layout.CHANGES, new.changes)
            for table, why in gone.items():
                refuse_variable(engine, table, why)
            for move in moves:
                move.make()
            before, engine.database, engine.opened_manifest = engine.database, database, new
            engine.checkpointer.write_to(database)
    for table, why in gone.items():
        forget_variable(engine, table, why)
    for move in moves:
        _record_checkpointed(engine, move)
    return before, files


def _why_gone(engine: Engine, table: Table, entry: VariableEntry | None) -> str | None:
    """Return why an open variable is not there at the mark; None: it is."""
    if entry is None:
        what = f"did not exist at the mark to which the store {engine.path} was rolled back"
    elif not _fits(table.entry(), entry):
        what = f"was another variable at the mark to which the store {engine.path} was rolled back"
    else:
        return None
    return f"variable {table.name!r} {what}; get it again with get_variable"


def _fits(mine: VariableEntry, entry: VariableEntry) -> bool:
    """Whether the rows of a stored variable can be those of an open one, whose policy may have other numbers."""
    kinds = [{part: (each.policy or {}).get(part) for part in ("kind", "class")} for each in (mine, entry)]
    return (mine.schema, mine.initializer, kinds[0]) == (entry.schema, entry.initializer, kinds[1])


def _changed(engine: Engine, table: Table, epochs: list[Epoch] | None, sealed: list[Epoch]) -> Keys | None:
    """Return all keys of a variable that changed since the mark, except in rows that are dirty or wait to be written.

    epochs: of the mark, None if that is unknown. sealed: those up to now. None: unknown, or not fewer than the hot
    rows.
    """
    files = None if epochs is None else files_between(epochs, sealed, table.name)
    if files is None:
        return None
    found, count = [np.empty(0, np.uint64)], 0
    for file in files:
        for ordered in read_keys(engine.points.live / layout.CHANGES / file):
            found.append(ordered)
            if (count := count + len(ordered)) > table.hot_tables.size:
                return None
    keys = unordered_keys(distinct(np.concatenate(found)), table.schema)
    table.hot_tables.partition.devices_of(keys)  # calls the partitioner, which may raise, before anything is done
    return keys


def _record_checkpointed(engine: Engine, move: _Move) -> None:
    """Record that a variable joins or leaves the checkpoints, if it was opened anew for that since the mark."""
    name, wanted = move.table.name, move.table.specification.checkpointed
    if wanted and not move.entry.checkpoint:
        record_whole(engine, move.table.specification, move.cold)
    elif move.entry.checkpoint and not wanted:
        engine.changes.record_dropped(name, left=True)
