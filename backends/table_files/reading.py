"""The kernel that reads a batch of keys from the files of a version, newest run first.

Each step is done for all keys before the next one, so that their cache misses overlap: the filters' lines, the index,
the blocks with their checksums, the copies. A run is a list of files of which no two overlap. Concurrent calls are
safe. Callers keep the files mapped.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from kvemb.backends.table_files.blocks import (
    ABSENT,
    DAMAGED,
    DELETION,
    SAMPLED,
    TRAILER_BYTES,
    VALUE,
    find_block,
    find_value,
)
from kvemb.backends.table_files.filters import hashed_key, line_of, may_have
from kvemb.kernels.addresses import LINE_BYTES, advise, copy, load_8, load_32, load_64, prefetch
from kvemb.kernels.compiling import compiled, kernel
from kvemb.kernels.xxh3 import MIN_BYTES, checksum

# What is known of a key. ASK: RocksDB must be asked.
UNKNOWN, FOUND, REMOVED, ASK = 0, 1, 2, 3
# Columns of a file, all int64: addresses, bytes and numbers.
COLUMNS = 10
BASE, BYTES, FILTER, LINES, PROBES, INDEX, INDEX_BYTES, RESTARTS, RESTART_COUNT, SAMPLE = range(COLUMNS)
# What is wrong with a block: the first number of `damage`; then the file, the block's offset, and what was found.
SOUND, BAD_CHECKSUM, BAD_BLOCK, BAD_HANDLE, BAD_WIDTH = range(5)
# Rows of `scratch`, one column for each key.
SCRATCH_ROWS = 5
_TODO, _PASSED, _FILE, _AT, _SIZE = range(SCRATCH_ROWS)
# How many keys ahead index entries and blocks are prefetched; the most bytes of entries, and of a block.
_INDEX_AHEAD, _BLOCKS_AHEAD, _MOST_ENTRIES, _MOST_BLOCK = 16, 6, 2048, 8192
_PAGE_BYTES, _WILL_NEED = mmap.PAGESIZE, 3
# Bytes of a record before its row: score, step and flags (kvemb.rows.codec).
_HEAD_BYTES = 17
_U = np.uint64


@compiled
def _first_not_below(bounds: Any, column: int, low: int, end: int, key: Any) -> int:
    """Return the first row of bounds, from low on, whose key is not below a key; keys ascend, so the search gallops."""
    high, step = low, 1
    while high < end and bounds[high, column] < key:
        low, high, step = high + 1, high + step, step << 1
    high = min(high, end)
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle, column] < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _segment_of(sample: int, low: int, end: int, key: Any) -> int:
    """Do the same in the sample at an address."""
    high, step = low, 1
    while high < end and load_64(sample + 8 * high) < key:
        low, high, step = high + 1, high + step, step << 1
    high = min(high, end)
    while low < high:
        middle = (low + high) >> 1
        if load_64(sample + 8 * middle) < key:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _prefetch_all(start: int, nbytes: int, most: int) -> None:
    for at in range(0, min(nbytes, most), LINE_BYTES):
        prefetch(start + at)


@compiled
def _pass_filters(keys: Any, hashes: Any, files: Any, bounds: Any, run: int, end: int, scratch: Any, left: int) -> int:
    """Put the keys that a run may have into scratch, with their files; return how many."""
    file, passed = run, 0
    for t in range(left):
        i = scratch[_TODO, t]
        file = _first_not_below(bounds, 1, file, end, keys[i])
        if file == end:
            break
        if keys[i] >= bounds[file, 0]:
            scratch[_PASSED, passed], scratch[_FILE, passed] = i, file
            passed += 1
            if files[file, PROBES]:
                prefetch(line_of(hashes[i], files[file, FILTER], files[file, LINES]))
    some = 0
    for t in range(passed):
        i, file = scratch[_PASSED, t], scratch[_FILE, t]
        probes = files[file, PROBES]
        if not probes or may_have(hashes[i], line_of(hashes[i], files[file, FILTER], files[file, LINES]), probes):
            scratch[_PASSED, some], scratch[_FILE, some] = i, file
            some += 1
    return some


@compiled
def _find_blocks(keys: Any, files: Any, scratch: Any, count: int) -> int:
    """Find offset and size of each key's block; return the first key whose entry in the index is damaged, or count."""
    file, segment = -1, 0
    for t in range(count):
        if scratch[_FILE, t] != file:
            file, segment = scratch[_FILE, t], 0
        segments = (files[file, RESTART_COUNT] + SAMPLED - 1) // SAMPLED
        segment = min(_segment_of(files[file, SAMPLE], segment, segments, keys[scratch[_PASSED, t]]), segments - 1)
        scratch[_AT, t] = segment
        _prefetch_all(files[file, RESTARTS] + 4 * SAMPLED * segment, 4 * SAMPLED, 4 * SAMPLED)
    for t in range(count + _INDEX_AHEAD):
        if t < count:
            file, segment = scratch[_FILE, t], scratch[_AT, t]
            first = load_32(files[file, RESTARTS] + 4 * SAMPLED * segment)
            after, end = SAMPLED * (segment + 1), files[file, INDEX_BYTES]
            if after < files[file, RESTART_COUNT]:
                end = load_32(files[file, RESTARTS] + 4 * after)
            _prefetch_all(files[file, INDEX] + first, end - first, _MOST_ENTRIES)
        if t >= _INDEX_AHEAD:
            d = t - _INDEX_AHEAD
            file, segment = scratch[_FILE, d], scratch[_AT, d]
            offset, size = find_block(
                files[file, INDEX], files[file, INDEX_BYTES], files[file, RESTARTS], files[file, RESTART_COUNT],
                segment, keys[scratch[_PASSED, d]],
            )  # fmt: skip
            if size != 0 and (offset < 0 or size < MIN_BYTES or offset + size + TRAILER_BYTES > files[file, BYTES]):
                return d
            scratch[_AT, d], scratch[_SIZE, d] = files[file, BASE] + offset, size
    return count


@compiled
def _ask_for_pages(scratch: Any, count: int) -> None:
    """Have the disk read the blocks' pages, all at once: one call for each run of pages that follow each other."""
    done = 0
    for t in range(count):
        at = scratch[_AT, t]
        if scratch[_SIZE, t] == 0:
            continue
        start = at & -_PAGE_BYTES
        end = (at + scratch[_SIZE, t] + TRAILER_BYTES + _PAGE_BYTES - 1) & -_PAGE_BYTES
        if start < done <= end:  # blocks that are neighbours share a page
            start = done
        if end > start:
            advise(start, end - start, _WILL_NEED)
            done = end


@compiled
def _take_rows(
    keys: Any, files: Any, scratch: Any, count: int, record_bytes: int, secret: int, sums: Any,
    states: Any, to: Any, scores: Any, steps: Any, flags: Any, words: Any, damage: Any,
) -> bool:  # fmt: skip
    """Check the keys' blocks, and copy their rows; return whether all blocks were sound."""
    row_bytes, checked = record_bytes - _HEAD_BYTES, 0
    for t in range(count + _BLOCKS_AHEAD):
        if t < count:
            _prefetch_all(scratch[_AT, t], scratch[_SIZE, t] + TRAILER_BYTES, _MOST_BLOCK)
        if t < _BLOCKS_AHEAD:
            continue
        d = t - _BLOCKS_AHEAD
        i, at, size = scratch[_PASSED, d], scratch[_AT, d], scratch[_SIZE, d]
        if size == 0:
            continue
        wrong, found = SOUND, 0
        if at != checked:
            if load_8(at + size) != 0 or checksum(at, size, secret, sums) != load_32(at + size + 1):
                wrong = BAD_CHECKSUM
            checked = at
        if wrong == SOUND:
            kind, value, nbytes = find_value(at, size, keys[i])
            if kind == VALUE:
                if nbytes == record_bytes:
                    p = to[i]
                    copy(scores.ctypes.data + 8 * p, value, 8)
                    copy(steps.ctypes.data + 8 * p, value + 8, 8)
                    flags[p] = load_8(value + 16)
                    copy(words.ctypes.data + row_bytes * p, value + _HEAD_BYTES, row_bytes)
                    states[i] = FOUND
                else:
                    wrong, found = BAD_WIDTH, nbytes
            elif kind == DELETION:
                states[i] = REMOVED
            elif kind == DAMAGED:
                wrong = BAD_BLOCK
            elif kind != ABSENT:
                states[i] = ASK
        if wrong != SOUND:
            damage[0], damage[1], damage[3] = wrong, scratch[_FILE, d], found
            damage[2] = at - files[damage[1], BASE]
            return False
    return True


@kernel
def read_rows(
    keys: Any, files: Any, bounds: Any, runs: Any, ask: bool, record_bytes: int, secret: int,
    hashes: Any, sums: Any, scratch: Any, states: Any, to: Any,
    scores: Any, steps: Any, flags: Any, words: Any, damage: Any,
) -> None:  # fmt: skip
    """Read rows of ordered keys, ascending, each to row `to` of the columns, unless its state is not UNKNOWN.

    files: int64 (f, COLUMNS). bounds: uint64 (f, 2), their first and last keys. runs: the first file of each run, and
    the end. ask: ask for the pages of all blocks first. hashes, sums, scratch: memory to work in. damage: int64 (4,).
    """
    for i in range(len(keys)):
        if states[i] == UNKNOWN:
            hashes[i] = hashed_key(keys[i])
    for asking in range(1 if ask else 0, -1, -1):
        left = 0
        for i in range(len(keys)):
            if states[i] == UNKNOWN:
                scratch[_TODO, left] = i
                left += 1
        for run in range(len(runs) - 1):
            if left == 0:
                break
            count = _pass_filters(keys, hashes, files, bounds, runs[run], runs[run + 1], scratch, left)
            sound = _find_blocks(keys, files, scratch, count)
            if sound < count:
                damage[0], damage[1], damage[2], damage[3] = BAD_HANDLE, scratch[_FILE, sound], 0, 0
                return
            if asking:
                _ask_for_pages(scratch, count)
            elif not _take_rows(
                keys, files, scratch, count, record_bytes, secret, sums,
                states, to, scores, steps, flags, words, damage,
            ):  # fmt: skip
                return
            # A key whose filter says yes is expected to be there, when pages are asked for.
            some, passed = 0, 0
            for t in range(left):
                i = scratch[_TODO, t]
                if asking and passed < count and scratch[_PASSED, passed] == i:
                    passed += 1
                elif states[i] == UNKNOWN:
                    scratch[_TODO, some] = i
                    some += 1
            left = some
