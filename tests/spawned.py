"""Functions and classes for processes that tests spawn, which import them from here."""

from __future__ import annotations

from typing import Any

import numpy as np

import kvemb
from kvemb.errors import ReadOnly


def looked_up(table: kvemb.Variable, keys: list[int], answers: Any) -> None:
    """Put the rows of keys into the queue `answers`, if the table refuses writes; otherwise put nothing."""
    try:
        table.upsert(keys, np.zeros((len(keys), 2), np.float32))
    except ReadOnly:
        answers.put(table.lookup(keys).tolist())


class Clicks:
    """A data set of pairs of a user and an item, a function of the index."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"user": index * 7 % 97, "item": index * 13 % 89}
