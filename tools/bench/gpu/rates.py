"""The required rates of a full table in a GPU's memory: keys found with their rows, and rows inserted.

The bars apply to the GPU's own time and to uniformly drawn keys. Also reported: the bytes moved, as a share of the
GPU's memory bandwidth; keys by a Zipf law; and the method of HierarchicalKV's benchmark: the better of two calls,
including the host's wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp

from kvemb.tools.bench.gpu.cells import HIERARCHICAL, UNIFORM, ZIPF, FullTable
from kvemb.tools.bench.results import Comparison, compare

# The required rates, in billions of keys per second, found and inserted, with rows of 64 numbers.
BARS = {"H200": (4.0, 1.0), "H100": (2.8, 0.7)}
BAR_DIM = 64
SECTOR = 32
# Bytes moved to find one key, besides its row, which is read and written: the given key, its bucket's digests, the
# sector with the cell's key, the cell's number.
FOUND_BYTES = 8 + 128 + SECTOR + 8
# Bytes moved to insert one row, besides its words. Radix sort of a number in 8 passes, and the key: 152. The row:
# sectors of its key, score, step and flags read, and of the first three written. The evicted row: sectors of its key
# and step read, 33 bytes written.
INSERTED_BYTES = 152 + 7 * SECTOR + 2 * SECTOR + 33
# Bytes moved once for each bucket: digests, flags and scores read, digests and flags written.
BUCKET_BYTES = 1280 + 256


def find(table: FullTable, runs: int) -> Iterator[Comparison]:
    """Yield the lines about keys found. table: of float32."""
    for keys in (UNIFORM, ZIPF, HIERARCHICAL):
        table.find_seconds(keys)  # warm up
    table.on_gpu(table.start_copies)
    size, name = table.calls * table.batch, "find with rows, dim"
    moved, copied = FOUND_BYTES + 2 * table.row_bytes, 2 * table.row_bytes
    rates, copies = [], []
    for _ in range(runs):
        rates.append(size / table.on_gpu(lambda: table.start_finds(UNIFORM)))
        copies.append(size / table.on_gpu(table.start_copies))
    yield _barred(f"{name} {table.row_bytes // 4}, {UNIFORM}", rates, table, 0)
    yield _moving(f"bytes moved by that find ({moved} a key)", [rate * moved for rate in rates], table)
    yield _moving(
        f"bytes moved by a copy of rows by number ({copied} a row)", [rate * copied for rate in copies], table
    )
    waited = [size / sum(table.find_seconds(UNIFORM)) for _ in range(runs)]
    yield compare("the same find, with the host's wait for each call", "keys/s", waited)
    popular = [size / table.on_gpu(lambda: table.start_finds(ZIPF)) for _ in range(runs)]
    yield compare(f"the same find, {ZIPF}", "keys/s", popular)
    theirs = [_better_of_two(table.find_seconds(HIERARCHICAL), table) for _ in range(runs)]
    yield compare(f"the same find, {HIERARCHICAL}, the better of two calls", "keys/s", theirs)


def insert(table: FullTable, runs: int) -> Iterator[Comparison]:
    """Yield the lines about rows inserted."""
    table.renew()
    table.insert_seconds()  # warm up
    size, name = table.calls * table.batch, "insert and evict, dim"
    buckets = table.buckets * (1 - exp(-table.batch / table.buckets))  # those for which a batch has rows
    moved = round(INSERTED_BYTES + 4 * table.row_bytes + BUCKET_BYTES * buckets / table.batch)
    rates, waited, theirs = [], [], []
    for _ in range(runs):
        table.renew()
        rates.append(size / table.on_gpu(table.start_inserts))
        table.renew()
        taken = table.insert_seconds()
        waited.append(size / sum(taken))
        theirs.append(_better_of_two(taken, table))
    yield _barred(f"{name} {table.row_bytes // 4}", rates, table, 1)
    yield _moving(f"bytes moved by that insert (about {moved} a key)", [rate * moved for rate in rates], table)
    yield compare("the same insert, with the host's wait for each call", "keys/s", waited)
    yield compare("the same insert, the better of two calls", "keys/s", theirs)


def _barred(name: str, rates: Sequence[float], table: FullTable, which: int) -> Comparison:
    line = compare(name, "keys/s", rates)
    if table.row_bytes == 4 * BAR_DIM:
        for model in set(table.device.name().split()) & set(BARS):
            bar = BARS[model][which]
            return replace(line, bar=f"≥ {bar:g} billion on an {model}", met=line.ours.median >= bar * 1e9)
    return line


def _moving(name: str, rates: Sequence[float], table: FullTable) -> Comparison:
    """Return a line of bytes per second, compared with the bandwidth of the GPU's memory."""
    most = table.device.bytes_per_second()
    peer = [most] * len(rates) if most else []
    return compare(name, "bytes/s", rates, "the bandwidth of the GPU's memory", peer)


def _better_of_two(taken: Sequence[float], table: FullTable) -> float:
    """Return the keys per second of the faster of the first two calls."""
    return table.batch / min(taken[:2])
