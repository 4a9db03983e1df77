"""Results of `kvemb bench tier`, made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvemb.tools.bench.tier.cases import Settings, plan
from kvemb.tools.bench.tier.records import Records

TINY = Settings(dim=8, batch=256, steps=3, runs=1, seconds=1.0, checkpoints=2)
MACHINE: dict[str, Any] = {
    **{"date": "2026-01-02", "cpu": "a CPU", "cores": 2, "memory_bytes": 8 << 30, "disk_free_bytes": 1 << 40},
    **{"system": "Linux 6", "python": "3.12.0", "versions": {"kvemb": "0.1.0", "rocksdict": "0.3"}},
}


def results(folder: Path, *, in_page_cache: bool = True) -> Records:
    """Results of two sizes, made up: kvemb is twice as fast as the loop by hand."""
    records = Records.opened(folder, TINY, MACHINE)
    for case in plan([1000, 4000], [0.1, 0.2, 0.5], [0.8, 1.2]):
        if case.kind == "steps":
            sides = {
                name: {
                    "rows_per_s": [speed * case.hot * 1000, speed * case.hot * 3000, speed * case.hot * 2000],
                    "cpu_us": [5.0 / speed] * 3,
                    "read_bytes": [0.0, 300.0, 0.0],
                    "written_bytes": [0.0, 0.0, 600.0],
                }
                for name, speed in (("kvemb", 20.0), ("by_hand", 10.0))
            }
            fits = in_page_cache or case.rows == 1000
            found: dict[str, Any] = {"memory": 1 << 26, "table_bytes": case.rows * 1000, "hit_rate": 0.75}
            found |= {"warm": sides if fits else None, "cold": sides}
        elif case.kind == "series":
            each = {"seconds": [0.1, 0.2], "new_bytes": [2000, 4000], "written_bytes": [3000, 5000]}
            found = {"changed_bytes": [1000, 1000], "kvemb": each, "by_hand": each}
        else:
            side = {"before_s": 0.01, "close_s": 0.5, "open_s": 0.25, "steps": [0.02] * 8 + [0.01] * 8}
            found = {"warm": {**side, "full_speed_s": 0.46}, "not_warm": {**side, "full_speed_s": None}}
            found["by_hand"] = {**side, "full_speed_s": 1.5}
        records.add(case, found)
    return records
