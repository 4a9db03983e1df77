"""Epochs of a cluster's checkpoint: of what its shards recorded. test_gathering.py compares them with one store's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvemb.cluster.durability.manifest import ClusterManifest, ShardEntry, id_of_part
from kvemb.cluster.durability.shard_changes import ShardPart, write_changes
from kvemb.durability.changes import recorded
from kvemb.durability.keyfile import write_keys
from kvemb.durability.manifest import Epoch, EpochChanges, Manifest
from kvemb.errors import Corruption

IDS = [digit * 32 for digit in "abc"]
SHARDS = (ShardEntry(0, 2047, "1" * 32), ShardEntry(2048, 4095, "2" * 32))


def part(folder: Path, shard: ShardEntry, *epochs: tuple[str, dict[str, EpochChanges | list[int]]]) -> ShardPart:
    """A shard's part with these epochs: since which checkpoint, None for one of the shard alone; keys by variable."""
    (folder / "changes").mkdir(parents=True)
    made = []
    for number, (since, variables) in enumerate(epochs):
        changed = {}
        for name, keys in variables.items():
            if isinstance(keys, list):
                file = f"{number:06d}.keys"
                write_keys(folder / "changes" / file, [np.array(keys, np.uint64)])
                keys = EpochChanges(files=[file])
            changed[name] = keys
        made.append(Epoch(id_of_part(since, shard.store) if since in IDS else since, changed))
    return ShardPart(
        shard, folder, Manifest(shard.store, id_of_part("d" * 32, shard.store), None, 1, 0.0, changes=made)
    )


def changes_of(folder: Path, *parts: ShardPart) -> list[tuple[str, dict[str, tuple[bool, bool, list[int]]]]]:
    described = ClusterManifest("d" * 32, "e" * 32, 0.0, {}, SHARDS, tuple(IDS))
    made = Manifest("e" * 32, "d" * 32, None, 4, 0.0)
    folder.mkdir()
    found = []
    for epoch in write_changes(list(parts), described, None, folder, made):
        variables = {}
        for name, changed in epoch.variables.items():
            keys = [key for batch in recorded(folder / "changes", [epoch], name)[1] for key in batch.tolist()]
            variables[name] = changed.cleared, changed.dropped, keys
        found.append((epoch.since, variables))
    return found


def test_keys_of_all_shards_are_put_together_from_one_checkpoint_to_the_next(tmp_path):
    one = part(
        tmp_path / "1", SHARDS[0], (IDS[0], {"t": [1, 5]}), ("f" * 32, {"t": [3]}), (IDS[1], {"u": [9]}), (IDS[2], {})
    )
    two = part(tmp_path / "2", SHARDS[1], (IDS[0], {"t": [2]}), (IDS[1], {"t": [4]}), (IDS[2], {"u": [8]}))
    assert changes_of(tmp_path / "new", one, two) == [
        (IDS[0], {"t": (False, False, [1, 2, 3, 5])}),
        (IDS[1], {"t": (False, False, [4]), "u": (False, False, [9])}),
        (IDS[2], {"u": (False, False, [8])}),
    ]


def test_what_a_shard_does_not_know_any_more_is_left_out(tmp_path):
    one = part(tmp_path / "1", SHARDS[0], (IDS[0], {"t": [1]}), (IDS[1], {"t": [3]}), (IDS[2], {}))
    two = part(tmp_path / "2", SHARDS[1], (IDS[2], {"t": [2]}))
    assert changes_of(tmp_path / "new", one, two) == [(IDS[2], {"t": (False, False, [2])})]
    three = part(tmp_path / "3", SHARDS[1])
    ((since, variables),) = changes_of(tmp_path / "none", one, three)
    assert since not in IDS
    assert variables == {}


def test_a_variable_is_cleared_or_dropped_on_all_shards_or_on_none(tmp_path):
    gone = EpochChanges(cleared=True, dropped=True)
    one = part(tmp_path / "1", SHARDS[0], (IDS[2], {"t": gone}))
    two = part(tmp_path / "2", SHARDS[1], (IDS[2], {"t": gone}))
    assert changes_of(tmp_path / "new", one, two) == [(IDS[2], {"t": (True, True, [])})]
    three = part(tmp_path / "3", SHARDS[1], (IDS[2], {"t": EpochChanges(cleared=True)}))
    with pytest.raises(Corruption, match="do not agree whether 't' was cleared"):
        changes_of(tmp_path / "other", one, three)
