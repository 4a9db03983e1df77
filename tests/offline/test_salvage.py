"""Rows that repair() saves from damaged checkpoints and stores: none is wrong or older, and every loss is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damage import BUDGET, KEYS, damages, values_of
from deltas import fill

import kvemb
from kvemb.durability import manifest
from kvemb.errors import Corruption, StoreNotFound


def models(checkpoint: Path) -> dict[str, dict[int, tuple[bytes, float]]]:
    with kvemb.open(checkpoint, read_only=True, memory_budget=BUDGET) as store:
        return {
            name: {
                int(key): (row.tobytes(), score)
                for key, row, score in zip(*variable.export(with_scores=True), strict=True)
            }
            for name, variable in store.variables.items()
        }


@pytest.mark.slow
def test_repair_saves_rows_outside_the_gaps_and_none_that_is_older(places, tmp_path):
    """Whatever table file is damaged, and how: what is saved is right, and what is not is in a gap and counted."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    shutil.copytree(places / "checkpoint", checkpoint)
    truth = models(checkpoint)
    saved_some = 0
    for path in sorted(checkpoint.glob("rows/*.sst")):
        for damage in damages(path):
            shutil.rmtree(out, ignore_errors=True)
            done = kvemb.repair(checkpoint, out)
            assert any(str(path) in line for line in done.damages), damage
            found = models(out)
            for name, model in truth.items():
                saved = done.variables[name]
                assert found[name].items() <= model.items(), (path, damage)
                missing = model.keys() - found[name].keys()
                assert all(any(first <= key <= last for first, last in saved.gaps) for key in missing)
                assert (saved.rows, saved.lost) == (len(found[name]), len(missing))
                saved_some += 0 < saved.lost < len(model) // 2
            assert kvemb.verify(out, deep=True)
    assert saved_some


@pytest.fixture
def marked(open_store, tmp_path):
    """A store that is closed: rows of 1 in a mark, rows of 2 in another, and after a rollback rows of 3 in the log."""
    with open_store(tmp_path / "marked", durability="write") as store:
        fill(store, range(100), 1)
        first = store.mark("first", block=True)
        fill(store, range(50), 2)
        second = store.mark("second", block=True)
        store.rollback(first)
        fill(store, range(10), 3)
        store.close(flush=False)
    return first, second


def values_in(path: Path) -> list[float]:
    with kvemb.open(path, memory_budget=BUDGET) as store:
        assert store.marks == []
        return store.variables["table"].lookup(range(100))[:, 0].tolist()


def test_a_store_with_marks_is_repaired_as_it_is_and_each_mark_like_a_checkpoint(marked, tmp_path, open_store):
    first, second = marked
    done = kvemb.repair(tmp_path / "marked", tmp_path / "out")
    assert (done.damages, done.logged) == ([], 10)
    assert values_in(tmp_path / "out") == [3] * 10 + [1] * 90
    for mark, values in ((first, [1] * 100), (second, [2] * 50 + [1] * 50)):
        assert kvemb.repair(mark.path, tmp_path / mark.name).damages == []
        assert values_in(tmp_path / mark.name) == values
    with open_store(tmp_path / "marked", durability="write") as store:
        assert store.marks == [first, second]
        store.rollback(second)
        assert store.variables["table"].lookup([5])[0, 0] == 2


def test_what_is_damaged_of_marks_does_not_concern_the_store(marked, tmp_path):
    """Of several points, the newest is that of the last rollback, also without CURRENT."""
    _, second = marked
    store = tmp_path / "marked"
    for file in (store / "marks").iterdir():
        file.write_bytes(b"{")
    (store / "CURRENT").unlink()
    (own,) = [file for file in second.path.glob("rows/*.sst") if file.stat().st_nlink == 1]
    own.write_bytes(own.read_bytes()[:-1])
    with pytest.raises(Corruption, match="CURRENT is missing"):
        kvemb.open(store, memory_budget=BUDGET)
    done = kvemb.repair(store, tmp_path / "out")
    assert done.damages == [f"{store / 'CURRENT'} is missing"]
    assert values_in(tmp_path / "out") == [3] * 10 + [1] * 90
    done = kvemb.repair(second.path, tmp_path / "second")
    assert len(done.damages) == 1
    assert str(own) in done.damages[0]


def test_repair_does_without_what_can_be_made_again(places, tmp_path):
    shutil.copytree(places / "closed", tmp_path / "store")
    truth = models(places / "checkpoint")
    for pattern in ("CURRENT", "points/*/rows/CURRENT", "points/*/rows/OPTIONS*", "points/*/rows/rocksdict*"):
        for path in (tmp_path / "store").glob(pattern):
            path.unlink()
    done = kvemb.repair(tmp_path / "store", tmp_path / "out")
    assert any("CURRENT" in line for line in done.damages)
    assert models(tmp_path / "out") == truth
    assert {saved.lost for saved in done.variables.values()} == {0}


def test_repair_adds_the_log_as_far_as_it_can_be_read(places, tmp_path):
    shutil.copytree(places / "crashed", tmp_path / "store")
    (segment,) = (tmp_path / "store").glob("log/*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    assert not kvemb.verify(tmp_path / "store")
    with pytest.raises(Corruption, match=segment.name):
        kvemb.open(tmp_path / "store")
    done = kvemb.repair(tmp_path / "store", tmp_path / "out")
    assert [segment.name in line for line in done.damages] == [True]
    assert 0 < done.logged < 200
    with kvemb.open(tmp_path / "out", memory_budget=BUDGET) as store:
        found = store.variables["table"].lookup(KEYS[:200], touch=False)
        assert (found[: done.logged] == values_of(KEYS[: done.logged], 3)).all()
        assert (found[done.logged :] == values_of(KEYS[done.logged : 200], 2)).all()
        store.check(deep=True)


def test_repair_refuses_what_it_cannot_do_and_leaves_nothing(places, tmp_path):
    shutil.copytree(places / "checkpoint", tmp_path / "checkpoint")
    with pytest.raises(StoreNotFound, match="neither"):
        kvemb.repair(tmp_path, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="name a new directory"):
        kvemb.repair(tmp_path / "checkpoint", tmp_path / "full")
    (log,) = (tmp_path / "checkpoint").glob("rows/MANIFEST*")
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(Corruption, match=log.name):
        kvemb.repair(tmp_path / "checkpoint", tmp_path / "out")
    (tmp_path / "checkpoint" / manifest.NAME).write_text("{}")
    with pytest.raises(Corruption, match=manifest.NAME):
        kvemb.repair(tmp_path / "checkpoint", tmp_path / "out")
    assert not (tmp_path / "out").exists()
