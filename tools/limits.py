"""Upper bounds of the numbers on the command line. A larger number is a mistake: the command would not end."""

from __future__ import annotations

import math

import typer

# The library's own bounds.
MAX_DIM = 1 << 20
MAX_STORED_ROWS = 2**63 - 1
MAX_SERIES = 10**18 - 1
MAX_PARTS = 1 << 16
MAX_JOBS = 256
# Limits of a generated table, and of drawn keys.
MAX_ROWS = 10**10
MAX_KEYS_DRAWN = 10**15
MAX_BATCH = 1 << 24
MAX_RUNS = 10**6
MAX_SEED = 2**63 - 1
MAX_MIB = 1 << 26
MAX_ZIPF = 10.0
MAX_PAUSE_S = 3600.0


def no_nan(value: float | None) -> float | None:
    """Return an option's value. Refuses NaN, which passes every check of a range."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number")
    return value
