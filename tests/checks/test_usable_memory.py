"""The memory of the machine, and of a control group on it."""

from __future__ import annotations

import os

import pytest

from kvemb.checks import usable_memory

WHOLE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("0::/", "memory.max"),
        ("0::/batch/job7", "batch/job7/memory.max"),
        ("0::/batch/job7", "batch/memory.max"),
        ("0::/not/shown/here", "memory.max"),
        ("4:memory:/job7", "memory/job7/memory.limit_in_bytes"),
        ("4:cpu,memory:/not/shown", "memory/memory.limit_in_bytes"),
    ],
)
def test_a_limit_of_a_group_counts_where_it_is_less(tmp_path, line, place):
    own, limit = tmp_path / "own", tmp_path / "groups" / place
    own.write_text(f"9:pids:/\n{line}\n")
    assert usable_memory.memory_bytes(tmp_path / "groups", own) == WHOLE
    limit.parent.mkdir(parents=True)
    for text, expected in (("max\n", WHOLE), (f"{1 << 20}\n", 1 << 20), (f"{WHOLE * 2}\n", WHOLE)):
        limit.write_text(text)
        assert usable_memory.memory_bytes(tmp_path / "groups", own) == expected


def test_where_there_are_no_groups_the_machines_memory_counts(tmp_path):
    assert usable_memory.memory_bytes(tmp_path, tmp_path / "own") == WHOLE
