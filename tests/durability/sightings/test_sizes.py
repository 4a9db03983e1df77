"""How much an Admission counted, for descriptions: what the manifest and the files of a checkpoint say."""

from __future__ import annotations

from kvemb.durability.sightings.counter_file import Counted
from kvemb.durability.sightings.sizes import SightingsSize, sizes_of


def test_sizes_are_those_of_the_manifest_and_of_the_file():
    counted = {"users": Counted("000001-000.counts", 4096, 7)}
    found = sizes_of(counted, {"sightings/000001-000.counts": 90, "rows/CURRENT": 16})
    assert found == {"users": SightingsSize(counted=7, counters=4096, bytes=90)}
    assert sizes_of({}, {}) == {}


def test_sizes_of_two_shards_are_added():
    assert SightingsSize(7, 4096, 90) + SightingsSize(2, 4096, 10) == SightingsSize(9, 8192, 100)
