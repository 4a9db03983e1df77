"""How much the Admission of each variable of a checkpoint has counted, for descriptions. Values and a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvemb.durability import layout
from kvemb.durability.sightings.counter_file import Counted


@dataclass(frozen=True)
class SightingsSize:
    """What an Admission counted for a variable. Counters do not tell how many keys were sighted.

    counted: sightings since the counters began or were last halved. counters: of one byte each. bytes: of their files.
    """

    counted: int
    counters: int
    bytes: int

    def __add__(self, other: SightingsSize) -> SightingsSize:
        """Return the sum, as for two shards."""
        return SightingsSize(self.counted + other.counted, self.counters + other.counters, self.bytes + other.bytes)


def sizes_of(sightings: Mapping[str, Counted], files: Mapping[str, int]) -> dict[str, SightingsSize]:
    """Return the sizes by variable. sightings: as in a manifest. files: bytes of the checkpoint's files by path."""
    return {
        name: SightingsSize(entry.counted, entry.counters, files[f"{layout.SIGHTINGS}/{entry.file}"])
        for name, entry in sightings.items()
    }
