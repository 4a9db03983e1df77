"""RocksDB's own list of a family's files, the property rocksdb.sstables, as runs: the newest first. Pure functions.

RocksDB writes it while it holds its lock, from the version that its next read would use, in the order in which that
read would search: the files of level 0 by age, and one run for each level below.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvemb.backends.table_files.table_file import Unreadable

# " 12:4096[1 .. 9]['8000000000000000' seq:1, type:1 .. '8000000000000009' seq:9, type:1](0)". Both ends are rows, whose
# keys have 8 bytes; a range that was deleted (type 15) ends in others.
_LEVEL = re.compile(r"--- level (\d+) --- version# \d+ ---")
_FILE = re.compile(
    r" (\d+):(\d+)\[\d+ \.\. \d+\]\['([0-9A-F]{16})' seq:\d+, type:[01] \.\. '([0-9A-F]{16})' seq:\d+, type:[01]\]"
    r"\(\d+\)"
)
# A file of nothing but a deletion of all keys (RocksStore.clear): both its ends are the range's, and it has only one
# sequence number. So what is listed below has no rows.
_CLEARED = re.compile(r" \d+:\d+\[(\d+) \.\. \1\]\['' seq:\1, type:15 \.\. '(?:FF){9}' seq:\d+, type:15\]\(\d+\)")


class Listed(NamedTuple):
    """One file: its number, its bytes, its first and its last key (codec.order_keys)."""

    number: int
    nbytes: int
    first: int
    last: int


def runs_of(listing: str) -> list[list[Listed]]:
    """Return the runs of a family, newest first. No two files of a run overlap; they ascend. Raises Unreadable."""
    runs: list[list[Listed]] = []
    level = 0
    for line in listing.splitlines():
        if begun := _LEVEL.fullmatch(line):
            level = int(begun[1])
            runs.append([])
        elif found := _FILE.fullmatch(line):
            file = Listed(int(found[1]), int(found[2]), int(found[3], 16), int(found[4], 16))
            if runs[-1:] == [] or file.first > file.last or (level and runs[-1] and file.first <= runs[-1][-1].last):
                raise Unreadable(f"RocksDB lists a file where none was expected: {line!r}")
            if level == 0:
                runs.append([file])
            else:
                runs[-1].append(file)
        elif _CLEARED.fullmatch(line):
            break
        elif line:
            raise Unreadable(f"RocksDB lists something else: {line!r}")
    return [run for run in runs if run]
