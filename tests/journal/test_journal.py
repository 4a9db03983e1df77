"""Stores in which every acknowledged write survives a crash: the log, and its replay."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from crashes import copy_of_open
from histories import SMALL_PILES
from quick import quick
from stress.lockstep import LockstepChecker
from stress.model import Model
from waiting import wait_until

import kvemb
from kvemb.durability import inventory
from kvemb.errors import ColdStoreError, Corruption, Poisoned
from kvemb.handle import inside
from kvemb.journal import journal
from kvemb.journal.segment_files import ENTRY, MARK
from tests.histories import DIM, change, checker_of

BUDGET = "4MiB"
HEAD_BYTES = 32


def check(path: Path, models: dict[str, Model]) -> kvemb.durability.recovery.Recovery:
    with kvemb.open(path, memory_budget=BUDGET) as store:
        assert sorted(store.variables) == sorted(models)
        for name, model in models.items():
            twin = LockstepChecker(store.variables[name], model)
            twin.check_size()
            twin.check_export()
            assert inside(store.variables[name]).storage.step == model.step
        assert store.recovery is not None
        return store.recovery


def halted(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make the next point stop when all but its manifest is written; returns events: it has stopped, it may go on."""
    reached, go, real = threading.Event(), threading.Event(), inventory.Inventory.take

    def halting(*args: Any, **named: Any) -> Any:
        if not reached.is_set():
            reached.set()
            go.wait()
        return real(*args, **named)

    monkeypatch.setattr(inventory.Inventory, "take", halting)
    return reached, go


@pytest.mark.slow
@pytest.mark.parametrize("seed", quick(range(int(os.environ.get("KVEMB_SEEDS", "2")))))
@pytest.mark.limits(**SMALL_PILES)
def test_every_acknowledged_write_outlives_a_crash(monkeypatch, open_store, tmp_path, seed):
    chance = np.random.default_rng(seed)
    store = open_store(tmp_path / "store", memory_budget=BUDGET, durability="write")
    twins = {"table": checker_of(store, 48), "other": checker_of(store, 640, ["cpu", "cpu"], "other")}
    (tmp_path / "file").touch()
    for turn in range(10):
        for _ in range(int(chance.integers(0, 9))):
            change(twins[chance.choice(list(twins))], chance, touching=False)
        what = chance.choice(["crash", "flush", "checkpoint", "fail", "use", "late", "behind"])
        if what == "flush":
            store.flush()
        elif what == "checkpoint":
            store.checkpoint(tmp_path / f"checkpoint-{turn}")
        elif what == "fail":
            with pytest.raises(ColdStoreError):
                store.checkpoint(tmp_path / "file" / "x")
        elif what == "use":
            keys = chance.choice(twins["table"].model.universe, 30)
            twins["table"].variable.restrict_policy.apply_update(keys)
            twins["table"].model.use(keys)
        elif what == "late" and "late" not in twins:
            twins["late"] = checker_of(store, 32, name="late")
        elif what == "behind":
            reached, go = halted(monkeypatch)
            pending = store.checkpoint(tmp_path / f"behind-{turn}", block=False)
            try:
                keys = chance.choice(twins["table"].model.universe, 90)
                twins["table"].upsert(keys, chance.standard_normal((90, DIM)).astype(np.float32))
                twins["table"].remove(keys[:9])
                reached.wait()
                crash = copy_of_open(tmp_path / "store", tmp_path / f"behind-crash-{turn}")
                check(crash, {name: twin.model for name, twin in twins.items()})
            finally:
                go.set()
            pending.result()
        crash = copy_of_open(tmp_path / "store", tmp_path / f"crash-{turn}")
        check(crash, {name: twin.model for name, twin in twins.items()})
        if chance.random() < 0.3:
            # What was recovered goes on: twice recovered is once recovered.
            store.close()
            store = open_store(crash, memory_budget=BUDGET, durability="write")
            shutil.rmtree(tmp_path / "store")
            store.close()
            crash.rename(tmp_path / "store")
            store = open_store(tmp_path / "store", memory_budget=BUDGET, durability="write")
            twins = {name: LockstepChecker(store.variables[name], twin.model) for name, twin in twins.items()}


def filled(open_store: Any, tmp_path: Path) -> kvemb.Store:
    store: kvemb.Store = open_store(tmp_path / "store", durability="write")
    store.get_variable("table", dim=DIM)
    return store


def put(store: kvemb.Store, key: int) -> None:
    store.variables["table"].upsert([key], np.full((1, DIM), key, np.float32))


def keys_in(path: Path) -> list[int]:
    with kvemb.open(path, memory_budget=BUDGET) as store:
        keys, values = store.variables["table"].export()
        assert (values[:, 0] == keys).all()
        assert store.variables["table"].size() == len(keys)
        return list(keys.tolist())


def only_log(path: Path) -> Path:
    (log,) = (path / "log").iterdir()
    return log


def flipped(path: Path, byte: int) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[byte] ^= 16
    path.write_bytes(damaged)


@pytest.mark.parametrize("damage", ["missing", "empty", "head"])
def test_a_log_that_must_be_there_is_missed(open_store, tmp_path, damage):
    store = filled(open_store, tmp_path)
    for written in (False, True):
        if written:
            put(store, 1)
        crash = copy_of_open(store.path, tmp_path / f"{written}")
        log = only_log(crash)
        if damage == "missing":
            log.unlink()
        elif damage == "empty":
            log.write_bytes(b"")
        else:
            flipped(log, 17)
        for deep in (False, True):
            (line,) = kvemb.verify(crash, deep=deep).findings
            assert str(log) in line
        with pytest.raises(Corruption, match=f"{log} is (missing|damaged)"):
            kvemb.open(crash)
    store.close()
    assert "log" not in (store.path / "CURRENT").read_text()
    assert keys_in(store.path) == [1]


def test_a_store_left_without_a_flush_knows_its_whole_log(open_store, tmp_path):
    store = filled(open_store, tmp_path)
    put(store, 1)
    store.close(flush=False)
    assert kvemb.verify(store.path, deep=True)
    log = only_log(store.path)
    os.truncate(log, log.stat().st_size - 1)
    assert not kvemb.verify(store.path, deep=True)


def test_a_log_is_replayed_whatever_mode_the_store_is_opened_in_and_once(open_store, tmp_path, caplog):
    store = filled(open_store, tmp_path)
    put(store, 1)
    crash = copy_of_open(store.path, tmp_path / "crash")
    reopened = kvemb.open(crash, memory_budget=BUDGET)
    assert str(reopened.recovery) in caplog.text
    assert "and 1 row written later, from the log" in caplog.text
    assert list((crash / "log").iterdir()) == []
    put(reopened, 2)
    again = copy_of_open(crash, tmp_path / "again")
    assert keys_in(again) == [1]
    reopened.close()
    assert keys_in(crash) == [1, 2]
    with kvemb.open(crash) as closed_well:
        assert closed_well.recovery is None


def test_a_log_is_as_long_as_what_the_durable_point_lacks(open_store, tmp_path):
    store = filled(open_store, tmp_path)
    for key in range(20):
        put(store, key)
    long = only_log(store.path).stat().st_size
    store.flush()
    assert only_log(store.path).stat().st_size == HEAD_BYTES < 40 < long
    store.close()
    assert list((tmp_path / "store/log").iterdir()) == []


def test_flushes_without_writes_leave_no_file_open(open_store, tmp_path):
    """Nothing waited for a sync, which closed the ended segments: a thousand flushes left a thousand files open."""
    store = open_store(tmp_path / "store", durability="write")
    table = store.get_variable("table", dim=DIM)
    for _ in range(3):
        table.upsert([1], np.ones((1, DIM), np.float32))
        store.flush()
        before = len(os.listdir("/dev/fd"))
        for _ in range(5):
            store.flush()
        # RocksDB may have opened files meanwhile, which it closes.
        wait_until(lambda before=before: len(os.listdir("/dev/fd")) <= before)


def test_calls_that_wait_together_share_one_sync(monkeypatch, open_store, tmp_path):
    store = filled(open_store, tmp_path)
    log, syncs = inside(store).log, list[int]()
    before = log._appended

    def slow(file: int) -> None:
        syncs.append(file)
        while log._appended < before + 8:  # the others wait meanwhile
            time.sleep(0.001)

    monkeypatch.setattr(os, "fdatasync", slow)
    threads = [threading.Thread(target=put, args=(store, key)) for key in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log._appended == before + 8
    assert len(syncs) <= 2
    assert keys_in(copy_of_open(store.path, tmp_path / "crash")) == list(range(8))


def test_an_interrupted_sync_leaves_every_segment_to_the_next(monkeypatch, open_store, tmp_path):
    store = filled(open_store, tmp_path)
    log = inside(store).log
    log.prepare(99)
    log.rotate()  # what a cut does, between a call's append and its sync
    put(store, 1)
    log.prepare(100)
    log.rotate()
    synced: list[int] = []
    interrupt = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fdatasync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            put(store, 2)
        patch.setattr(journal.os, "fdatasync", lambda file: synced.append(os.fstat(file).st_ino))
        put(store, 3)
    for segment in ("000099.log", "000100.log"):
        assert (store.path / "log" / segment).stat().st_ino in synced


def test_an_interrupted_rotation_keeps_the_segment_that_an_entry_names(monkeypatch, open_store, tmp_path):
    """Nothing is appended after that entry, as it would not be read."""
    store = filled(open_store, tmp_path)
    log = inside(store).log
    put(store, 1)
    log.prepare(99)
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "pwrite", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            log.rotate()
    with pytest.raises(Poisoned, match="interrupted"):
        put(store, 2)
    log.prepare(100)
    assert keys_in(copy_of_open(store.path, tmp_path / "crash")) == [1]


def test_nothing_follows_an_entry_whose_writing_was_interrupted(monkeypatch, tmp_path):
    """The next entry, of another variable, had the same number, and was not read after a crash."""
    log, write = journal.Journal(tmp_path, 1), journal._write

    def interrupted(file: int, data: bytes) -> None:
        write(file, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.cleared("one", 1)
    with pytest.raises(ColdStoreError, match="interrupted"):
        log.cleared("other", 1)
    with pytest.raises(ColdStoreError, match="interrupted"):
        log.commit()
    log.close()


def test_an_entry_that_fails_says_why(monkeypatch, tmp_path):
    log = journal.Journal(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_write", Mock(side_effect=MemoryError("no memory")))
        with pytest.raises(MemoryError) as failed:
            log.cleared("table", 1)
    log.fail(failed.value)
    with pytest.raises(ColdStoreError, match="no memory"):
        log.commit()
    log.close()


def test_segments_that_cannot_be_made_or_begun_leave_no_file_open(monkeypatch, tmp_path):
    log, refuse = journal.Journal(tmp_path, 1), Mock(side_effect=OSError(5, "Input/output error"))
    before = len(os.listdir("/dev/fd"))
    for number in range(10, 40, 10):
        with monkeypatch.context() as patch:
            patch.setattr(journal.os, "fsync", refuse)
            with pytest.raises(ColdStoreError, match="Input/output error"):
                log.prepare(number)
        log.prepare(number + 1)
        with monkeypatch.context() as patch:
            patch.setattr(journal.os, "pwrite", refuse)
            with pytest.raises(ColdStoreError, match="Input/output error"):
                log.rotate()
        log.prepare(number + 2)  # as recover() does
        log.rotate()
        log.delete_before(number + 2)
        log.resume()
    assert len(os.listdir("/dev/fd")) == before
    log.close()


@pytest.mark.parametrize("written", [0, 5])
def test_a_segment_that_was_begun_and_never_used_hides_no_later_one(open_store, tmp_path, written):
    """Making it failed, for want of space or because of an exception from another thread."""
    store = filled(open_store, tmp_path)
    log = inside(store).log
    put(store, 1)
    (store.path / "log" / "000098.log").write_bytes(bytes(written))
    log.prepare(99)
    log.rotate()
    put(store, 2)
    assert keys_in(copy_of_open(store.path, tmp_path / "crash")) == [1, 2]


@pytest.mark.parametrize("call", ["write", "fdatasync", "open"])
def test_a_log_that_cannot_be_written_poisons_the_store(monkeypatch, open_store, tmp_path, call):
    store = filled(open_store, tmp_path)
    put(store, 1)
    refuse = Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, call, refuse)
        with pytest.raises(Poisoned, match="No space left"):
            store.flush() if call == "open" else put(store, 2)
    with pytest.raises(Poisoned):
        put(store, 3)
    with pytest.raises(Poisoned):
        store.flush()
    assert store.variables["table"].lookup([1])[0, 0] == 1
    crash = copy_of_open(store.path, tmp_path / "crash")
    assert keys_in(crash)[0] == 1
    store.close()
    assert keys_in(store.path)[0] == 1


def test_a_missing_segment_is_damage(open_store, tmp_path):
    store = filled(open_store, tmp_path)
    put(store, 1)
    (tmp_path / "file").touch()
    with pytest.raises(ColdStoreError):
        store.checkpoint(tmp_path / "file" / "x")
    put(store, 2)
    crash = copy_of_open(store.path, tmp_path / "crash")
    assert keys_in(crash) == [1, 2]
    crash = copy_of_open(store.path, tmp_path / "less")
    _, second = sorted((crash / "log").iterdir())
    second.unlink()
    assert str(second) in kvemb.verify(crash).findings[0]
    with pytest.raises(Corruption, match=f"{second} is missing"):
        kvemb.open(crash)


def test_an_entry_that_is_added_during_a_sync_says_what_was_synced_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power, entries that were promised and are gone are told from a torn tail by this number."""
    log, sync = journal.Journal(tmp_path, 1), os.fdatasync
    log.cleared("table", 1)

    def adding(file: int) -> None:
        log.cleared("table", 1)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", adding)
    log.commit()
    (segment,) = tmp_path.iterdir()
    data = segment.read_bytes()
    entries = [ENTRY.unpack_from(data, at.start()) for at in re.finditer(re.escape(MARK), data)]
    assert [(entry[5], entry[6]) for entry in entries] == [(1, 0), (2, 0)]
    log.close()
