"""The admission counters of a cluster's variables: each shard counts its own keys; here the counters are joined.

The result is the higher one of each counter, so no key of any shard has fewer sightings than before.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from kvemb.cluster.durability.shard_changes import ShardPart
from kvemb.durability import layout
from kvemb.durability.admission_counters.counter_file import CounterFile, read_counters
from kvemb.durability.admission_counters.point_files import Stored, write_counter_files
from kvemb.operations.admission_counters import Counters

_logger = logging.getLogger("kvemb")


def stored_by(part: ShardPart) -> Stored:
    """Return the counter files of a shard's checkpoint."""
    return {name: (part.path / layout.COUNTERS, counted) for name, counted in part.described.sightings.items()}


def join_counters(shards: Sequence[Stored], folder: Path, number: int) -> dict[str, CounterFile]:
    """Write the joined counters of shards to a folder; returns the entries of its files in a manifest.

    number: of the checkpoint, for the files' names. Raises Corruption, OSError.
    """
    counted: dict[str, Counters] = {}
    alone: Stored = {}
    for name in sorted({name for stored in shards for name in stored}):
        files = [stored[name] for stored in shards if name in stored]
        if len(files) == 1:
            alone[name] = files[0]
        elif (joined := _joined(files)) is not None:
            counted[name] = joined
        else:
            _logger.warning("the sightings of %r start again at 0: the shards have different numbers of counters", name)
    return write_counter_files(folder, number, [*alone, *counted], counted, alone, {})


def _joined(files: list[tuple[Path, CounterFile]]) -> Counters | None:
    """Return the joined counters of files, None if their numbers differ."""
    if len({entry.counters for _, entry in files}) > 1:
        return None
    joined = read_counters(*files[0])
    for folder, entry in files[1:]:
        joined = joined.joined(read_counters(folder, entry))
    return joined
