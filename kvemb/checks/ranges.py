"""Limits of numbers on disk and in arguments (FORMAT.md, "Manifest"). Imports nothing."""

from __future__ import annotations

# Then a row of the widest dtype with a slot has 16 MiB, and one call can still process a few rows.
MAX_DIM = 1 << 20
# Far enough below the int64 maximum that incrementing never overflows.
MAX_STEPS = MAX_POINTS = 1 << 62
# The limit for rows and variables from outside the store: counting on from it never reaches MAX_STEPS.
MAX_GIVEN_STEPS = 1 << 61
MAX_ROWS = MAX_FILE_BYTES = 2**63 - 1
# An entry of the log has two bytes for the length of the name in UTF-8.
MAX_NAME_BYTES = 65_535
# Of a string key, which takes so many bytes in every row.
MAX_STRING_BYTES = 4096
# The first second of the year 10000: dates are written with four-digit years.
END_OF_TIME = 253_402_300_800
# The most that an address space of 48 bits can reserve.
MAX_BUDGET_BYTES = 1 << 46
# A numbered directory has a name of 8 to 18 digits.
MAX_SERIES = 10**18 - 1
# The longest timeout: no thread can wait much longer.
MAX_SECONDS = 10**9
# Ranges of keys, or files of an export.
MAX_PARTS = 1 << 16
# Threads that transfer files.
MAX_JOBS = 256
