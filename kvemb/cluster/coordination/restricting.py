"""Restriction of a table over shards. The limit is found in the sum of the shards' histograms, so it is exact."""

from __future__ import annotations

import numpy as np

from kvemb.cluster.calls import Calls
from kvemb.operations.selection import lowest_kept
from kvemb.timestamp import Timestamp


def restrict(calls: Calls, token: str, at: Timestamp, keep_rows: int, trigger_rows: int | None, expire: bool) -> int:
    """Keep the `keep_rows` highest scores over all shards, ties to the larger key; returns how many were removed.

    token: the variable's. expire: whether rows may expire; expired rows are removed in any case. Does nothing unless
    there are more than trigger_rows. Each shard ranks its rows; then each removes what is below the limit. REQUIRES: a
    cut.
    """
    rows = sum(calls.all("size", token))
    if (keep_rows >= rows and not expire) or (trigger_rows is not None and rows <= trigger_rows):
        return 0
    try:
        alive = sum(count for _, count in calls.all_once("rank", token, at))
        keep = min(keep_rows, alive)
        if keep == rows:
            return 0
        limit = None
        if keep:
            limit = lowest_kept(
                lambda prefix: np.sum(calls.all("count_ranks", prefix), axis=0),
                lambda prefix: np.concatenate(calls.all("matching_ranks", prefix)),
                keep,
            )
        return sum(calls.all_once("remove_ranked", token, limit))
    finally:
        if calls.lost is None:
            calls.all_once("forget_ranks")
