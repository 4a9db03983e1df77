"""The memory of the machine, and of a container on it."""

from __future__ import annotations

import os

from kvemb.checks import machine


def test_a_limit_of_a_container_counts_where_it_is_less(tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = tmp_path / "memory.max"
    assert machine.memory_bytes(limit) == whole
    for text, expected in (("max\n", whole), (f"{1 << 20}\n", 1 << 20), (f"{whole * 2}\n", whole)):
        limit.write_text(text)
        assert machine.memory_bytes(limit) == expected
