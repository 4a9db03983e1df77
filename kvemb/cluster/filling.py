"""Puts the rows that shards return into the order of a batch. A pure function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvemb.cluster.router import GroupedKeys
from kvemb.contracts import Mask, Values


def fill(out: Values, exists: Mask | None, grouped: GroupedKeys, answers: Mapping[int, tuple[Values, Any]]) -> None:
    """Fill out (n, dim) with the rows of a batch, and exists (n,) if given. answers: by shard, of its distinct keys."""
    if not grouped.parts:
        return
    rows, there = zip(*(answers[shard] for shard, _ in grouped.parts), strict=True)
    if grouped.repeated:
        np.take(np.concatenate(rows), grouped.inverse, axis=0, out=out, mode="clip")
    else:  # each row goes to its one place
        whole = _whole_rows(out)
        for (_, where), of_shard in zip(grouped.parts, rows, strict=True):
            whole[grouped.sums.first[where]] = _whole_rows(of_shard)
    if exists is not None:
        exists[:] = np.concatenate(there)[grouped.inverse]


def _whole_rows(rows: Values) -> Any:
    """Return rows (n, dim) as n items, which NumPy copies faster."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
