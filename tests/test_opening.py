"""Opening and restoring: what is refused before anything is made, and what a failure leaves."""

from __future__ import annotations

import gc
import logging

import numpy as np
import pytest
from quick import quick

import kvemb
from kvemb.errors import CheckpointNotFound, Corruption
from kvemb.handle import inside
from kvemb.limits import Limits


def series_of(store, root):
    """A series of two checkpoints, with one row and with two."""
    table = store.get_variable("table", dim=1)
    with kvemb.CheckpointManager(root) as manager:
        for key in (1, 2):
            table.upsert([key], np.ones((1, 1), np.float32))
            manager.save(store)
        return manager.list()


OF_SECONDS = "flush_every must be a number of seconds, "
WRONG = [
    ({"durability": "always"}, ValueError, "durability must be 'checkpoint' or 'write', got 'always'"),
    ({"durability": None}, ValueError, "durability must be 'checkpoint' or 'write', got None"),
    ({"memory_budget": "much"}, ValueError, "much"),
    ({"flush_every": 0}, ValueError, f"{OF_SECONDS}above 0, at most .*, got 0"),
    ({"flush_every": "30s"}, TypeError, f"{OF_SECONDS}such as .* got str '30s'"),
    ({"flush_every": float("nan")}, ValueError, OF_SECONDS),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_arguments_are_checked_before_anything_is_made_or_looked_for(store, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        kvemb.open(tmp_path / "new", **arguments)
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    for place in (checkpoint, *([] if "durability" in arguments else [tmp_path / "none"])):
        with pytest.raises(error, match=message):
            kvemb.restore(place, tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def told_of(path, caplog):
    """What was logged of stores below path: a store of an earlier test may be collected, and told, at any time."""
    return [message for message in caplog.messages if str(path) in message]


def test_a_budget_above_the_memory_of_the_machine_is_told(tmp_path, caplog):
    kvemb.open(tmp_path / "fits", memory_budget="8MiB").close()
    assert told_of(tmp_path, caplog) == []
    kvemb.open(tmp_path / "large", memory_budget="15TiB").close()
    (told,) = told_of(tmp_path, caplog)
    assert f"the memory_budget of {tmp_path / 'large'} is 15.0 TiB, but this machine or container has only" in told


@pytest.mark.parametrize("reading", ["read_only", "follow"])
def test_what_only_a_writer_has_is_refused_for_a_reader(store, reading):
    """durability="write" was ignored."""
    for given, named in (({"durability": "write"}, "durability='write'"), ({"flush_every": 1}, "flush_every")):
        with pytest.raises(ValueError, match=f"{named} needs a writable store; leave it out"):
            kvemb.open(store.path, **given, **{reading: True})


def test_a_checkpoint_is_not_followed(store, tmp_path):
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="is a checkpoint, which never changes; follow the store, or use read_only"):
        kvemb.open(checkpoint, follow=True)


def test_following_is_reading(open_store, store):
    reader = open_store(store.path, follow=True)
    assert (reader.follows, reader.state.read_only) == (True, True)


def test_limits_are_the_stores(open_store, tmp_path):
    limits = Limits(scan_rows=7)
    first = open_store(tmp_path / "first", limits=limits)
    assert inside(first).limits is first.limits is limits
    taken = first.checkpoint(tmp_path / "checkpoint")
    with kvemb.restore(taken, tmp_path / "second", memory_budget="8MiB", limits=limits) as second:
        assert second.limits is limits


def test_the_newest_checkpoint_of_a_series_is_restored_and_named(store, tmp_path, caplog):
    caplog.set_level(logging.INFO, "kvemb")
    first, newest = series_of(store, tmp_path / "series")
    with kvemb.restore(tmp_path / "series", tmp_path / "new", memory_budget="8MiB") as restored:
        assert restored.variables["table"].size() == 2
    assert f"restoring {newest.path}, the newest checkpoint of {tmp_path / 'series'}" in caplog.text
    caplog.clear()
    with kvemb.restore(first, tmp_path / "older", memory_budget="8MiB") as restored:
        assert restored.variables["table"].size() == 1
    assert "newest" not in caplog.text
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFound):
        kvemb.restore(tmp_path / "empty", tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_a_restored_store_that_cannot_be_opened_is_removed(store, tmp_path):
    newest = series_of(store, tmp_path / "series")[-1]
    table = max(newest.path.glob("rows/*.sst"))
    data = table.read_bytes()
    table.unlink()  # the store has links of its own
    table.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    with pytest.raises(Corruption, match=table.name):
        kvemb.restore(newest, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.filterwarnings("ignore:unclosed file.*LOCK:ResourceWarning")
@pytest.mark.parametrize(
    ("arguments", "told"),
    quick([({}, True), ({"durability": "write"}, False), ({"read_only": True}, False)], several=True),
)
def test_a_store_that_is_dropped_open_is_told(tmp_path, caplog, arguments, told):
    kvemb.open(tmp_path / "store", memory_budget="8MiB").close()
    left = kvemb.open(tmp_path / "store", memory_budget="8MiB", **arguments)
    assert told_of(tmp_path, caplog) == []
    del left
    gc.collect()
    said = f"the store {tmp_path / 'store'} was not closed: what changed after its last flush or checkpoint is lost"
    assert [each.partition(";")[0] for each in told_of(tmp_path, caplog)] == [said] * told
