"""Where the bytes of a budget are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import kvemb

Opener = Callable[..., kvemb.Store]
TOTAL = 4 << 20


def test_every_byte_of_the_budget_is_in_one_part(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", memory_budget=TOTAL)
    before = store.memory
    assert sum(before.values()) == TOTAL
    assert before == {**dict.fromkeys(before, 0), "free": TOTAL * 13 // 16, "staging_free": TOTAL * 3 // 16}
    admission = kvemb.Admission(2, memory_bytes=8192)
    rows = store.get_variable("rows", dim=16, optimizer=kvemb.optimizers.SGD(1.0))
    other = store.get_variable("other", dim=16, admission=admission)
    keys = np.arange(60_000)
    for part in np.split(keys, 60):
        rows.upsert(part, np.ones((1000, 16), np.float32))
    rows.lookup(np.arange(100))
    seen = store.memory
    assert sum(seen.values()) == TOTAL
    assert seen["cells"] == rows.stats.bytes_hot + other.stats.bytes_hot > TOTAL * 0.6
    assert min(seen["copies"], seen["memtables"], seen["read"]) > 0
    assert (seen["sightings"], seen["cache"], seen["other"]) == (2 * 8192, 0, 0)
    store.drop_variable("rows")
    store.drop_variable("other")
    assert store.memory == before
    store.close()
    assert store.memory == {}


def test_what_rocksdb_may_cache_is_a_part_once_files_are_not_mapped(open_store: Opener, tmp_path: Path) -> None:
    creator = kvemb.RocksDBCreator(read_mode="pread")
    with open_store(tmp_path / "store", memory_budget=TOTAL) as store:
        store.get_variable("rows", dim=16, kv_creator=creator)
        seen = store.memory
        assert (seen["cache"], sum(seen.values())) == (TOTAL // 8, TOTAL)
    assert open_store(tmp_path / "store", memory_budget=TOTAL).memory["cache"] == TOTAL // 8
