"""Regression tests: counterexamples that were found once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from blocks import SCHEMA, rows_of

import kvemb
from kvemb.backends.memory_store import MemoryStore
from kvemb.errors import Closed
from kvemb.rows import hash_kernels

Opener = Callable[..., kvemb.Store]


@numba.njit
def _same_low_byte(key: int) -> Any:
    return hash_kernels.mix(key) >> np.uint64(32) & np.uint64(0xFE) == 0


def test_a_removed_key_stays_path_of_removed_one_of_equal_digest(store: kvemb.Store) -> None:
    # One bucket, and keys whose digest was the neighbour of the mark of an empty cell.
    variable = store.get_variable("table", dim=1, hot_rows=16)
    first, second, third = [key for key in range(5000) if _same_low_byte(key)][:3]
    for removed in (first, second, third):
        variable.upsert([first, second, third], np.ones((3, 1), np.float32))
        variable.remove([removed])
        assert variable.lookup([removed], return_exists=True)[1].tolist() == [False]
        assert variable.size() == 2


@pytest.mark.parametrize("cold", [kvemb.RocksDBCreator, kvemb.MemoryCreator])
def test_a_store_opens_again_while_an_export_of_its_past_is_half_read(
    open_store: Opener, tmp_path: Path, cold: Any
) -> None:
    store = open_store(tmp_path / "store")
    variable = store.get_variable("table", dim=1, kv_creator=cold())
    variable.upsert(np.arange(10), np.ones((10, 1), np.float32))
    half_read, ended = variable.export_batches(4), variable.export_batches(20)
    assert len(next(half_read)[0]) == 4
    assert len(list(ended)) == 1
    store.close()
    open_store(tmp_path / "store")
    with pytest.raises(Closed):
        next(half_read)
    assert list(ended) == []


def test_a_gradient_of_minus_zero_does_the_same_in_every_batch(store: kvemb.Store) -> None:
    variable = store.get_variable("table", dim=1, optimizer=kvemb.optimizers.SGD(1.0))
    minus_zero = np.full((3, 1), -0.0, np.float32)
    variable.upsert([1, 2], minus_zero[:2])
    variable.apply_gradients([1], minus_zero[:1])
    variable.apply_gradients([2, 3, 3], minus_zero)
    alone, among_repeated = variable.lookup([1, 2])
    assert alone.tobytes() == among_repeated.tobytes()


def test_the_bytes_of_rows_in_memory_are_counted_while_a_spill_writes() -> None:
    """Raised "dictionary changed size during iteration"."""
    rows = MemoryStore(SCHEMA)

    class Written(bytes):
        """A record during whose counting another thread writes."""

        def __len__(self) -> int:
            rows.write(rows_of(range(10)))
            return super().__len__()

    rows._records.update({b"1": Written(b"one"), b"2": Written(b"two")})
    assert rows.disk_bytes() == 6
    assert rows.disk_bytes() > 6
