"""Going on after a failure that left every row whole, once its cause is gone: what failed is tried again.

Failures of the disk interrupt no change of rows (kvemb.memory.memtables, kvemb.tiers.write_logging), so all rows are in
memory or in the open database. Here RocksDB goes on, rows whose write failed wait again, and a durable point is made of
all of it. Until that is complete no call writes, because the log's new segment would not be found. After a crash
meanwhile, the store has the last point and all writes that were acknowledged before the failure.
"""

from __future__ import annotations

from kvemb.durability import cold_databases, layout
from kvemb.engine.engine import Engine


def recover(engine: Engine) -> None:
    """Try again what failed, and make a durable point. Does nothing if nothing has failed. See Store.recover."""
    engine.state.check_here()
    with engine.lock:
        engine.state.check_open()
        if engine.state.cause is None:
            return
        engine.checkpointer.wait_for_end()
        with engine.state.recovering():
            engine.in_order(engine.database.resume)
            _drop_leftovers(engine)
            for table in engine.tables.values():
                table.storage.retry_writes()
            engine.checkpointer.start(engine.parts(), None).result()
            if engine.log is not None:
                engine.log.resume()


def _drop_leftovers(engine: Engine) -> None:
    """Drop cold stores that the database has and should not have: creating or dropping them failed half-way."""
    persistent = {name for name, table in engine.tables.items() if table.persistent}
    for name in cold_databases.families(engine.points.live / layout.ROWS):
        if name not in persistent and name not in engine.opened_manifest.variables:
            engine.in_order(engine.database.drop, name)
