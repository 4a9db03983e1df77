"""A restriction of one variable, over both tiers, in memory that does not depend on the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb.meter import Meter, Progress
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.tiers.scoring import Scoring
from kvemb.tiers.selection import Spool
from kvemb.tiers.storage import TieredStorage


def keep_highest(
    storage: TieredStorage, scoring: Scoring, rows: int, scratch: Path | None, progress: Progress | None
) -> None:
    """Keep the `rows` rows that the policy ranks highest, and none that it has expire; of equal ranks the larger keys.

    Dirty rows are written first, so that one scan of the cold store sees every score. The scan spools 16 bytes a row to
    a temporary file in scratch, from which the limit is found. REQUIRES: writing(without_snapshot=True).
    """
    storage.write_dirty()
    meter = Meter(2 * storage.size - min(rows, storage.size), progress)
    with Spool(scratch) as spool:
        keep = _spooled(spool, storage, scoring, rows, storage.cold.scan(storage.limits.call_rows), meter)
        for ordered in spool.below_limit(keep):
            storage.remove(unordered_keys(ordered, storage.schema))
            meter(len(ordered))
    storage.write_dirty()


def would_leave(
    storage: TieredStorage, scoring: Scoring, rows: int, scratch: Path | None, progress: Progress | None
) -> int:
    """Return how many rows keep_highest would remove now. Takes the lock itself; changes nothing."""
    meter = Meter(storage.size, progress)
    with Spool(scratch) as spool:
        keep = _spooled(spool, storage, scoring, rows, storage.scan(storage.limits.call_rows), meter)
        return sum(len(ordered) for ordered in spool.below_limit(keep))


def _spooled(
    spool: Spool, storage: TieredStorage, scoring: Scoring, rows: int, scan: Iterator[RowBlock], meter: Meter
) -> int:
    """Spool the rank of every row; return how many of the highest stay: at most `rows`, and none that has expired."""
    least, alive = scoring.least_score(storage.step), 0
    for found in scan:
        ranks = scoring.ranking(found)
        alive += int(np.count_nonzero(ranks >= least))
        spool.append(ranks, order_keys(found.keys, storage.schema))
        meter(len(found))
    return min(rows, alive)
