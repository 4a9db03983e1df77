"""Key files of past epochs: they are joined, so that they stay few, and no reader misses a key."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from deltas import fill, open_store_from, told
from quick import quick

import kvemb
from kvemb.durability.changes import ChangeLog, recorded
from kvemb.durability.epochs import dropped_variables, join_files, since, take_over
from kvemb.durability.keyfile import write_keys
from kvemb.durability.manifest import Epoch, EpochChanges
from kvemb.handle import inside
from kvemb.limits import Limits


def files_said(epochs: list[Epoch], name: str) -> tuple[bool, list[str]]:
    """What kvemb.durability.changes.recorded reads of a variable, without the files."""
    cleared, files = False, list[str]()
    for epoch in epochs:
        changed = epoch.variables.get(name, EpochChanges())
        cleared, files = cleared or changed.cleared, ([] if changed.cleared else files) + changed.files
    return cleared, files


@pytest.mark.parametrize("seed", quick(range(30), 5))
def test_whoever_asks_since_an_epoch_is_told_every_key_and_none_from_before_a_clear(seed):
    chance, content = np.random.default_rng(seed), {}
    epochs = [Epoch(str(number)) for number in range(12)]
    for number, epoch in enumerate(epochs):
        for name in ("a", "b"):
            if chance.random() < 0.8:
                files = [f"{number}{name}{at}" for at in range(int(chance.integers(1, 4)))]
                content |= {file: {file} for file in files}
                gone, cleared = chance.random(2) < 0.1
                epoch.variables[name] = EpochChanges(bool(gone | cleared), files, bool(gone))
    before = deepcopy(epochs)

    def join(files: list[str]) -> str:
        content[name := f"joined {len(content)}"] = set().union(*(content[file] for file in files))
        return name

    old = epochs[:-2]
    unused = join_files(old, 6, lambda file: len(content[file]), join)
    assert [epoch.variables for epoch in epochs[-2:]] == [epoch.variables for epoch in before[-2:]]
    for name in ("a", "b"):
        listed = [epoch.variables[name] for epoch in old if name in epoch.variables]
        files = [file for changed in listed for file in changed.files]
        assert not unused & {*files}
        # Only what a clear begins, and what follows the last one, is kept apart.
        assert len(files) <= max(3, sum(changed.cleared for changed in listed) + 3)
        entries = [(at, epoch.variables.get(name, EpochChanges())) for at, epoch in enumerate(before[:-2])]
        last = max((at for at, changed in entries if changed.cleared), default=0)
        for start in range(len(epochs)):
            (cleared, told_now), (was, wanted) = files_said(epochs[start:], name), files_said(before[start:], name)
            assert cleared == was
            assert dropped_variables(epochs[start:]) == dropped_variables(before[start:])
            said = set().union(*(content[file] for file in told_now))
            assert {*wanted} <= said
            assert all(int(file.split(name)[0]) >= last for file in said), (
                "of a variable that may have had another dtype"
            )


def test_keys_that_were_recorded_before_a_clear_are_not_told(tmp_path):
    for number in (1, 2):
        write_keys(tmp_path / str(number), [np.array([number], np.uint64)])
    epochs = [
        Epoch("a", {"table": EpochChanges(files=["1"])}),
        Epoch("b", {"table": EpochChanges(cleared=True, files=["2"])}),
    ]
    cleared, keys = recorded(tmp_path, epochs, "table")
    assert (cleared, np.concatenate(list(keys)).tolist()) == (True, [2])


def test_a_store_with_many_checkpoints_behind_it_has_few_key_files(tmp_path):
    """A checkpoint links them all: one took seven times as long after 160 others as at first."""
    limits = Limits(change_exact_epochs=4, change_old_files=3)
    log, records = ChangeLog(tmp_path, [Epoch("0")], limits), []
    for turn in range(60):
        for name in ("a", "b"):
            keys = np.arange(turn, turn + 3, dtype=np.uint64)
            log.record(name, keys)
        records.append({*keys.tolist()})
        sealed = log.seal_epoch()
        assert len(list(tmp_path.glob("*.keys"))) <= 2 * (4 + 3 + 1)
        log.begin(f"{turn + 1}", sealed)
    for start in (0, 1, 30, 55, 57, 59):
        found = since(sealed, str(start))
        assert found is not None
        log.link_to(tmp_path / f"since {start}", found)
        keys = kvemb.durability.changes.recorded(tmp_path / f"since {start}", found, "a")[1]
        said, wanted = {int(key) for batch in keys for key in batch}, set().union(*records[start:])
        assert said == wanted if start > 56 else said >= wanted


def test_what_a_store_takes_over_has_no_keys_from_before_its_variable_was_made_again():
    """They may be of another dtype, and would be read as other keys."""
    epochs = [
        Epoch("0", {"a": EpochChanges(files=["wide"]), "gone": EpochChanges(files=["x"])}),
        Epoch("1", {"a": EpochChanges(True, ["narrow"], True), "gone": EpochChanges(True, [], True)}),
    ]
    own = take_over(epochs, ["1b", "2"], {"gone"}, {"a"})
    assert own == Epoch("2", {"a": EpochChanges(files=["narrow"]), "gone": EpochChanges(True, [], True)}, ["1b", "2"])
    assert dropped_variables(epochs) == {"a", "gone"}
    assert not any(changed.files for epoch in epochs for changed in epoch.variables.values())


def test_a_replica_keeps_each_changed_key_once_however_many_deltas_come(open_store, tmp_path):
    """Each delta began an epoch with all key files of those before it."""
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1, 2, 3], 1)
    replica = open_store_from(trainer.checkpoint(tmp_path / "first"), tmp_path / "replica", open_store)
    fill(replica, [7], 7)
    for turn in range(4):
        fill(trainer, [10 + turn], turn)
        replica.apply_delta(last := trainer.checkpoint(tmp_path / f"{turn}"))
        epochs = inside(replica).points.current.changes
        listed = [file for epoch in epochs for changed in epoch.variables.values() for file in changed.files]
        assert len(listed) == len({*listed}) <= 3 + 2 * turn
    mine = replica.checkpoint(tmp_path / "mine")
    assert sorted(told(mine, last, "table")[0]) == [7]
    assert sorted(told(mine, tmp_path / "1", "table")[0]) == [7, 12, 13]


def test_a_follower_of_a_replica_keeps_a_variable_that_was_made_again_once(open_store, tmp_path):
    """Every later delta told it once more that the variable was dropped: each refresh closed it."""
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1], 1)
    replica = open_store_from(trainer.checkpoint(tmp_path / "first"), tmp_path / "replica", open_store)
    trainer.drop_variable("table")
    fill(trainer, [2], 2)
    replica.apply_delta(trainer.checkpoint(tmp_path / "second"))
    follower = kvemb.open(tmp_path / "replica", follow=True, memory_budget="4MiB")
    table = follower.variables["table"]
    table.lookup([2])
    for turn in range(3):
        fill(trainer, [10 + turn], turn)
        replica.apply_delta(trainer.checkpoint(tmp_path / f"{turn}"))
        assert follower.refresh()
        assert table.lookup([2, 10 + turn])[:, 0].tolist() == [2, turn]
        assert inside(table).hot_tables.size > 0, "what changed is known"
    follower.close()
