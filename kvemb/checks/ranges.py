"""What numbers may be, on disk and as arguments (FORMAT.md, "Manifest"). Imports nothing."""

from __future__ import annotations

# A row of the widest dtype with a slot is 16 MiB then. A few such rows are what a call can still work with.
MOST_DIM = 1 << 20
# So that neither counting on nor an int64 ever overflows.
MOST_STEPS = MOST_POINTS = 1 << 62
MOST_ROWS = MOST_FILE_BYTES = 2**63 - 1
# An entry of the log has two bytes for the length of the name in UTF-8.
MOST_NAME_BYTES = 65_535
# The first second of the year 10000, which dates are written up to.
END_OF_TIME = 253_402_300_800
# As much as an address space of 48 bits can still reserve.
MOST_BUDGET_BYTES = 1 << 46
# Threads that move files.
MOST_JOBS = 256
