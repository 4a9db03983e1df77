"""What check() finds wrong with the tiers of a variable: each kind of harm, one line."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, hot_tables_of, rows_of

from kvemb.backends.memory_store import MemoryStore
from kvemb.rows.block import PENDING
from kvemb.tiers.checking import order_findings, tier_findings


@pytest.fixture
def tiers():
    """Rows 0 to 4 in the cold store, of which 0 to 2 are hot too."""
    hot, cold = hot_tables_of(tables=2), MemoryStore(SCHEMA)
    cold.write(rows_of(range(5), 1.0))
    list(hot.insert(rows_of(range(3), 1.0), hot.owners(np.arange(3))))
    return hot, cold


def findings(tiers, size=5):
    return list(tier_findings(*tiers, size))


def test_nothing_is_wrong_with_sound_tiers(tiers):
    assert findings(tiers) == []


def test_a_wrong_count_is_told(tiers):
    assert findings(tiers, 6) == ["the cold store has 5 rows, but 6 are counted"]
    tiers[0].tables[0].size += 1
    assert any("hot table 0 counts 3 rows, but 2 of" in line for line in findings(tiers))


def test_a_clean_row_that_the_cold_store_lacks_is_told(tiers):
    tiers[1]._records.pop(next(iter(tiers[1]._records)))
    assert findings(tiers, 4) == ["hot table 0: key 0 is marked clean, but is not in the cold store"]


@pytest.mark.parametrize("part", ["values", "scores", "steps"])
def test_a_clean_row_that_differs_is_told(tiers, part):
    other = rows_of([1], 1.0)
    getattr(other, part)[:] = 2
    tiers[1].write(other)
    assert findings(tiers) == ["hot table 1: key 1 is marked clean, but differs from the cold store"]


def test_a_mark_of_no_snapshot_is_told(tiers):
    tiers[0].tables[0]._rows.flags[tiers[0].tables[0].find(np.array([2]))] |= PENDING
    assert findings(tiers) == ["hot table 0: a cell is marked for a snapshot, but none is in progress"]


def test_a_key_of_another_table_is_told(tiers):
    tiers[0].tables[0].insert(rows_of([3], 1.0))
    assert findings(tiers) == ["hot table 0: key 3 belongs to another hot table"]


def test_rows_of_a_scan_are_held_against_order_scores_and_flags():
    rows = rows_of([1, 3, 2])
    assert list(order_findings(rows, -1)) == ["keys are not in ascending order near key 1"]
    sound = rows_of([1, 2, 3])
    assert list(order_findings(sound, -1)) == []
    assert list(order_findings(sound, 2**64 - 1)) == ["keys are not in ascending order near key 1"]
    sound.scores[1], sound.flags[2] = np.nan, 1
    assert list(order_findings(sound, -1)) == [
        "the score of key 2 is not a number",
        "the record of key 3 has unknown flags",
    ]
