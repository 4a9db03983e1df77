"""The CPU time of a cold row: kernels against RocksDB's MultiGet, on the same files, as they lie.

    python tests/cold_cost.py FOLDER --rows 1000000 --rows 4000000

Makes a table of each size in FOLDER, unless it is there, with a third of its rows rewritten, and lets nothing merge it.
Prints the least CPU time of several turns: of a read by kernels, of the same read by RocksDB (rows in arrays, as well),
and of db.get(list) alone, whose records are only joined. Rows and absent keys are compared first.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from schemas import schema_of
from table_readers import opened, read_by_rocksdb, rows_at

from kvemb.durability.buffered_store import BufferedStore
from kvemb.memory.memtables import MemtableMemory
from kvemb.options import RocksDBCreator
from kvemb.rows.codec import encode_keys

SCHEMA, BATCH, TURNS = schema_of(dim=63, widths=()), 16_384, 8
SPREAD = np.uint64(0x9E3779B97F4A7C15)
SIZES, MEMTABLE_BYTES = {"cache_bytes": 128 << 20}, 64 << 20


def make(path: Path, rows: int) -> None:
    """Write all rows in random order, and a third of them again."""
    database, random = opened(path, **SIZES), np.random.default_rng(1)
    cold = database.create("rows", SCHEMA, RocksDBCreator())
    store = BufferedStore(cold, SCHEMA, MemtableMemory(MEMTABLE_BYTES))
    keys = random.permutation(rows).astype(np.uint64) * SPREAD
    again = [random.choice(keys, BATCH, replace=False) for _ in range(rows // 3 // BATCH)]
    for moment, part in enumerate([*np.array_split(keys, max(1, rows // BATCH)), *again]):
        store.write(rows_at(np.sort(part.view(np.int64)), moment, SCHEMA))
    store.flush()
    database.close()


def measure(path: Path, rows: int) -> None:
    """Compare, and print the costs."""
    database, random = opened(path, {"rows": RocksDBCreator()}, compacting=False, **SIZES), np.random.default_rng()
    store = database.attach("rows", SCHEMA)
    store._threads = 1

    def keys() -> Any:
        return np.sort((random.integers(0, rows, BATCH).astype(np.uint64) * SPREAD).view(np.int64))

    for wanted in (keys(), keys(), keys() + 1):
        (ours, found), (theirs, also) = store.read(wanted), read_by_rocksdb(store, wanted)
        np.testing.assert_array_equal(found, also)
        for column in ("keys", "scores", "steps", "words"):
            np.testing.assert_array_equal(getattr(ours, column), getattr(theirs, column))
    sides = (
        store.read,
        partial(read_by_rocksdb, store),
        lambda keys: b"".join(store.family.get(encode_keys(keys, SCHEMA))),
    )
    least = [float("inf")] * len(sides)
    for _ in range(TURNS):
        for at, read in enumerate(sides):
            given = [keys() for _ in range(4)]
            began = time.process_time()
            for each in given:
                read(each)
            least[at] = min(least[at], (time.process_time() - began) / BATCH / len(given) * 1e6)
    runs = len(store._tables._version.runs) - 1
    print(
        f"{rows:,} rows in {runs} runs: kernels {least[0]:.2f} us a row, RocksDB {least[1]:.2f}, "
        f"db.get(list) {least[2]:.2f}; ratio {least[0] / least[2]:.2f}"
    )
    database.close()


def main() -> None:
    """Run as the text at the top says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, action="append")
    given = parser.parse_args()
    for rows in given.rows or [1_000_000, 4_000_000]:
        path = given.folder / f"{rows}"
        if not path.exists():
            make(path, rows)
        measure(path, rows)


if __name__ == "__main__":
    main()
