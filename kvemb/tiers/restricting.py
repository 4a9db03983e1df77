"""A restriction of one variable, over both tiers, in memory that does not depend on the number of rows."""

from __future__ import annotations

from pathlib import Path

from kvemb.meter import Meter, Progress
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.tiers.selection import Spool
from kvemb.tiers.storage import TieredStorage


def keep_highest(storage: TieredStorage, rows: int, scratch: Path | None, progress: Progress | None) -> None:
    """Keep the `rows` rows of the highest scores, fewer than there are; of equal scores the larger keys.

    Dirty rows are written first, so that one scan of the cold store sees every score. The scan spools 16 bytes a row to
    a temporary file in scratch, from which the limit is found. REQUIRES: writing(without_snapshot=True).
    """
    storage.write_dirty()
    meter = Meter(2 * storage.size - rows, progress)
    with Spool(scratch) as spool:
        for found in storage.cold.scan(storage.limits.call_rows):
            spool.append(found.scores, order_keys(found.keys, storage.schema))
            meter(len(found))
        for ordered in spool.below_limit(rows):
            storage.remove(unordered_keys(ordered, storage.schema))
            meter(len(ordered))
    storage.write_dirty()
