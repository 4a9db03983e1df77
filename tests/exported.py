"""All that variables hold, as arrays by name, for tests that compare it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import kvemb


def exported(variables: Iterable[kvemb.Variable]) -> dict[str, np.ndarray[Any, Any]]:
    """The keys, values, slots and scores of each variable."""
    found = {}
    for each in variables:
        keys, values, slots, scores = each.export(with_slots=True, with_scores=True)
        columns = {"keys": keys, "values": values, "scores": scores, **slots}
        found |= {f"{each.name}.{name}": column for name, column in columns.items()}
    return found
