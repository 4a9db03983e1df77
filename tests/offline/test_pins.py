"""Checkpoints of a series that stay."""

from __future__ import annotations

import time

import pytest
from deltas import fill

import kvemb
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.offline.pins import read_pins, write_pins


def test_pins_are_read_as_they_were_written(tmp_path):
    assert read_pins(tmp_path) == {}
    write_pins(tmp_path, {7: None, 2: "best"})
    assert read_pins(tmp_path) == {2: "best", 7: None}
    assert [path.name for path in tmp_path.iterdir()] == ["PINNED"]


@pytest.mark.parametrize("damage", ["", "[]", '{"format": 1}', "cut", "other"])
def test_damage_is_told_and_nothing_is_deleted(store, tmp_path, damage):
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as series:
        series.save(store, keep="best")
        path = tmp_path / "series" / "PINNED"
        sound = path.read_text()
        path.write_text({"cut": sound[:-4], "other": sound.replace("best", "bust")}.get(damage, damage))
        with pytest.raises(Corruption, match=r"PINNED is damaged: .* no checkpoint is deleted"):
            series.save(store)
        assert series.numbers() == [1]
        path.write_text(sound.replace('"format": 1', '"format": 2'))
        with pytest.raises(UnsupportedFormat):
            _ = series.pinned


def test_what_is_pinned_stays_beside_the_newest(store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=2) as series:
        for number in range(1, 6):
            fill(store, [1], number)
            series.save(store, block=number % 2 == 0, keep="best" if number in (1, 3) else None)
        store.flush()
        series.save(store)
        assert (series.numbers(), series.pinned) == ([3, 5, 6], {3: "best"})
        series.pin(5)
        series.pin(6, "best")
        series.save(store)
        series.save(store)
        assert (series.numbers(), series.pinned) == ([5, 6, 7, 8], {5: None, 6: "best"})
        series.unpin(5)
        series.unpin(5)
        series.save(store)
        assert series.numbers() == [6, 8, 9]
        with pytest.raises(CheckpointNotFound, match="there is no checkpoint 5"):
            series.pin(5)
        with pytest.raises(ValueError, match="name must have 1 to 200"):
            series.pin(6, "")
        with pytest.raises(TypeError, match="keep must be a str"):
            series.save(store, keep=3)
    assert kvemb.CheckpointManager(tmp_path / "series").pinned == {6: "best"}


def test_a_push_keeps_what_is_pinned(store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series") as series:
        for number in range(1, 5):
            fill(store, [1], number)
            series.save(store, keep="best" if number == 2 else None)
            series.push(tmp_path / "url", keep=1)
        assert series.remote_numbers(tmp_path / "url") == [2, 4]


def test_a_series_goes_back_to_any_checkpoint(store, open_store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", every=600) as series:
        for number in range(1, 4):
            fill(store, [1], number)
            series.save(store)
        store.close()
        resumed, chosen = series.resume(tmp_path / "store", number=1, memory_budget="8MiB")
        with resumed:
            assert chosen.path.name == "00000001"
            assert resumed.variables["table"].lookup([1], touch=False)[0, 0] == 1
            assert series.save_if_due(resumed) is None
            fill(resumed, [2], 4)
            made = series.save(resumed)
            assert made.path.name == "00000004"
            assert [change.keys.tolist() for change in made.changes(chosen)] == [[2]]
            with pytest.raises(CheckpointNotFound):
                list(made.changes(series.path(3)))
        with pytest.raises(CheckpointNotFound, match="there is no checkpoint 9"):
            series.resume(tmp_path / "store", number=9)


def test_none_is_due_right_after_a_resume(store, tmp_path):
    """Although the checkpoint itself is old."""
    with kvemb.CheckpointManager(tmp_path / "series") as series:
        series.save(store)
        store.close()
    with kvemb.CheckpointManager(tmp_path / "series", every=3600) as series:
        time_of = time.time
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kvemb.offline.series.time.time", lambda: time_of() + 7200)
            resumed, _ = series.resume(tmp_path / "store", memory_budget="8MiB")
            with resumed:
                assert series.save_if_due(resumed) is None
