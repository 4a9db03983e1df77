"""A plain model of pooling (kvemb.rows.bags) in NumPy: one row after the other, with the specified bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.rows.bags import Bags


def pooled(rows: Any, bags: Bags) -> Any:
    """Return the pooled rows (b, dim) of rows (n, dim), one for each key of the bags."""
    kind = np.dtype(np.float32) if rows.dtype.itemsize == 2 else rows.dtype
    out = np.zeros((bags.bag_count, rows.shape[1]), rows.dtype)
    for bag in range(bags.bag_count):
        total = np.zeros(rows.shape[1], kind)
        for at in range(bags.offsets[bag], bags.offsets[bag + 1]):
            row = rows[at].astype(kind)
            weight = bags.weights[at] if len(bags.weights) else kind.type(1)
            norm = np.sqrt(np.add.accumulate(row.astype(np.float64) ** 2)[-1])
            if norm > bags.most_norm:
                scale = bags.most_norm / norm * np.float64(weight)
                total = (total + scale * row.astype(np.float64)).astype(kind)
            else:
                total = total + weight * row
        if len(bags.divisors):
            total = total / bags.divisors[bag] if bags.divisors[bag] else np.zeros_like(total)
        out[bag] = total.astype(rows.dtype)
    return out
