"""A series of checkpoints while a table trains: seconds and bytes of each, compared with RocksDB's checkpoints.

Between two checkpoints each side takes the same steps. New bytes are those of files that the previous checkpoint lacks;
written bytes are all bytes written to the disk since then, merges included.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np

from kvemb.tools.bench.measure import new_bytes, scratch, until_idle
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.counters import usage
from kvemb.tools.bench.tier.records import Record
from kvemb.tools.bench.tier.sides import Side, both, draw
from kvemb.tools.bench.tier.tables import TableOnDisk
from kvemb.tools.bench.trained import record_bytes
from kvemb.tools.stopping import check


def measure(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Record:
    """Return, for each side, lists of seconds, new_bytes and written_bytes, and the changed bytes."""
    work = draw(case, settings, settings.checkpoints + 1, 6)
    changed = [record_bytes(settings.dim) * len(np.unique(np.concatenate(batches))) for batches in work[1:]]
    found: Record = {"changed_bytes": changed}
    with both(table, case, settings, folder) as (ours, theirs), scratch(folder) as place:
        sides: list[tuple[str, Side]] = [("kvemb", ours), ("by_hand", theirs)]
        for name, side in sides:
            (place / name).mkdir()
            side.train(work[0], 10 * settings.seconds)
            side.save(place / name / "0")
            found[name] = {"seconds": [], "new_bytes": [], "written_bytes": []}
        for number, batches in enumerate(work[1:], start=1):
            for name, side in sides:
                until_idle()
                check()
                written = usage().written
                side.train(batches, 10 * settings.seconds)
                began = time.perf_counter()
                after, before = place / name / f"{number}", place / name / f"{number - 1}"
                side.save(after)
                found[name]["seconds"].append(time.perf_counter() - began)
                until_idle()
                found[name]["written_bytes"].append(usage().written - written)
                found[name]["new_bytes"].append(new_bytes(after, before))
                shutil.rmtree(before)
    return found
