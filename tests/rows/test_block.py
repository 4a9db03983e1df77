"""Rows as columns: views share memory, copies do not, and what is large costs nothing until it is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blocks import SCHEMA, rows_of

from kvemb.rows.block import ReservedBlock, RowBlock


def test_a_new_block_is_zero_and_of_the_size_it_says():
    block = RowBlock(SCHEMA, 5)
    columns = (block.keys, block.scores, block.steps, block.flags, block.words)
    assert len(block) == 5
    assert sum(column.nbytes for column in columns) == 5 * RowBlock.bytes_per_row(SCHEMA)
    assert not any(column.any() for column in columns)


def test_a_part_is_a_view_and_a_selection_a_copy():
    block = rows_of(range(6), 1.0)
    block.part(2, 4).values[:] = 9
    assert block.values[:, 0].tolist() == [1, 1, 9, 9, 1, 1]
    chosen = block.select(np.array([5, 2]))
    chosen.values[:] = 0
    assert chosen.keys.tolist() == [5, 2]
    assert block.values[:, 0].tolist() == [1, 1, 9, 9, 1, 1]
    assert len(block.select(np.zeros(6, bool))) == 0


def test_put_replaces_whole_rows():
    block, given = rows_of(range(4), 1.0), rows_of([7, 8], 2.0, flags=3, score=5.0)
    given.steps[:] = 6
    block.put(np.array([3, 0]), given)
    assert block.keys.tolist() == [8, 1, 2, 7]
    assert block.values[:, 1].tolist() == [2, 1, 1, 2]
    assert (block.scores[0], block.steps[0], block.flags[0]) == (5.0, 6, 3)


def test_joined_blocks_keep_their_order():
    first, second = rows_of([5, 3], 1.0, score=2.0), rows_of([4], 3.0, flags=1)
    joined = RowBlock.joined([first, second], SCHEMA)
    assert joined.keys.tolist() == [5, 3, 4]
    assert joined.values[:, 0].tolist() == [1, 1, 3]
    assert (joined.scores.tolist(), joined.flags.tolist()) == ([2, 2, 0], [0, 0, 1])
    assert len(RowBlock.joined([], SCHEMA)) == 0


def test_embeddings_are_a_copy_in_the_dtype_of_values():
    block = rows_of([1], 2.0)
    seen = block.embeddings()
    assert (seen.dtype, seen.shape) == (SCHEMA.value_dtype, (1, SCHEMA.dim))
    seen[:] = 0
    assert (block.values[:, : SCHEMA.dim] == 2.0).all()


def test_a_block_of_more_than_memory_is_only_address_space():
    block = RowBlock(SCHEMA, 1 << 28)  # 8 GiB
    block.keys[-1] = 7
    assert block.part((1 << 28) - 1, 1 << 28).keys.tolist() == [7]


def committed():
    """The bytes of memory of this process that are no file's."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        pytest.skip("there is no /proc/self/smaps_rollup here")
    return int(rollup.read_text().split("Anonymous:")[1].split()[0]) << 10


def test_a_table_of_few_rows_takes_no_huge_pages_though_it_may_grow_large():
    before = committed()
    block = ReservedBlock(SCHEMA, 1 << 23, huge_pages=True)
    block.use(100)
    block.put(slice(0, 100), rows_of(np.arange(100), 1.0))
    assert committed() - before < 1 << 20
    block.use(1 << 20)
    block.put(slice(100, 200), rows_of(np.arange(100), 2.0))
    assert block.values[:200, 0].tolist() == [1.0] * 100 + [2.0] * 100


def test_more_address_space_than_there_is_is_told_as_such():
    with pytest.raises(MemoryError, match=r"no address space for [\d,]+ bytes.*smaller memory_budget"):
        ReservedBlock(SCHEMA, 2**58)
