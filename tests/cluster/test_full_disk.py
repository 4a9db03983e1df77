"""A full disk: opening reports it; later its shard is lost, and the cluster continues once there is room again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults import HERE, compiled

# Run by a process with the library of tests/faults.c.
SCRIPT = """
import sys
from pathlib import Path
import numpy as np, pytest
import kvemb.cluster
from faults import Disk
from kvemb.errors import ColdStoreError, ShardLost

place, disk = Path(sys.argv[1]), Disk()
disk.begin(place / "scratch", place / "shadow")
how = {"scratch": place / "scratch", "transport": "local", "memory_budget": "4MiB"}

disk.fill_up(0)
with pytest.raises(ColdStoreError, match="scratch.*No space left on device"):
    kvemb.cluster.open(place / "series", shards=2, **how)
disk.fill_up(30_000)
with pytest.raises(ColdStoreError, match="No space left on device"):
    kvemb.cluster.open(place / "series", shards=2, **how)
disk.fill_up(-1)
assert list((place / "scratch").iterdir()) == []
cluster = kvemb.cluster.open(place / "series", shards=2, **how)
table = cluster.get_variable("table", dim=64)
rows = np.ones((5000, 64), np.float32)
table.upsert(np.arange(5000), rows)
cluster.checkpoint()

disk.fill_up(200_000)
with pytest.raises(ShardLost, match=r"shard \\d is lost: its store failed: .*No space left on device.*; recover"):
    for number in range(1, 200):
        table.upsert(np.arange(number * 5000, number * 5000 + 5000), rows)
for call in (lambda: table.lookup([1]), lambda: table.upsert([1], rows[:1]), cluster.checkpoint):
    with pytest.raises(ShardLost, match="No space left on device"):
        call()
disk.fill_up(0)
with pytest.raises(ColdStoreError, match="No space left on device"):
    cluster.recover()
with pytest.raises(ShardLost):
    table.lookup([1])
disk.fill_up(-1)
assert cluster.recover().number == 1
assert table.size() == 5000
table.upsert([-1], rows[:1])
assert cluster.checkpoint().number == 2
cluster.close()
assert list((place / "scratch").iterdir()) == []
print("done")
"""


@pytest.mark.slow
def test_a_full_disk_is_named_and_with_room_the_cluster_goes_on(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(compiled(tmp_path)), "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n", done.stderr
