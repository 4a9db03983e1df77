"""Damage on disk, in every file and of every kind: told by the file's name, or harmless. Never a wrong row."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashes import copy_of_open
from quick import quick

import kvemb
from kvemb.durability import layout, manifest
from kvemb.errors import CheckpointNotFound, Corruption, Locked, StoreNotFound, UnsupportedFormat
from kvemb.handle import inside

DIM = 4
KEYS = np.random.default_rng(5).permutation(4000).astype(np.int64) * 7919 - 9_000_000
# Where each file is damaged: more with KVEMB_OFFSETS.
OFFSETS = int(os.environ.get("KVEMB_OFFSETS", "5"))
BUDGET = "4MiB"
Rows = dict[str, tuple[bytes, ...]]


def values_of(keys: Any, version: int) -> Any:
    return np.repeat(np.asarray(keys, np.float32)[:, None] + version, DIM, axis=1)


def fill(store: kvemb.Store) -> None:
    """Rows in several files, some of which hide others: older versions, removals, a table that was cleared."""
    table = store.get_variable("table", dim=DIM, hot_rows=256, optimizer=kvemb.optimizers.Adagrad())
    other = store.get_variable("other", "uint64", "float16", DIM, hot_rows=64)
    table.upsert(KEYS, values_of(KEYS, 1))
    other.upsert(KEYS.astype(np.uint64)[:900], np.ones((900, DIM), np.float16))
    store.flush()
    other.clear()
    table.upsert(KEYS[:1500], values_of(KEYS[:1500], 2))
    store.flush()
    table.remove(KEYS[1000:1700])
    other.upsert(KEYS.astype(np.uint64)[:300], np.full((300, DIM), 2, np.float16))


def rows_of(store: kvemb.Store) -> Rows:
    """Every row by every way of reading it."""
    rows: Rows = {}
    for name, variable in store.variables.items():
        keys, values, slots, scores = variable.export(with_slots=True, with_scores=True)
        sought = KEYS.astype(variable.key_dtype)
        looked, exists = variable.lookup(sought, return_exists=True, touch=False)
        arrays = (keys, values, *(slots[slot] for slot in sorted(slots)), scores, looked, exists)
        rows[name] = tuple(np.ascontiguousarray(array).tobytes() for array in arrays)
    return rows


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """parent and checkpoint: two checkpoints. closed: a store, closed. crashed: one that was not, with a log."""
    place = tmp_path_factory.mktemp("made")
    with kvemb.open(place / "closed", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=DIM, hot_rows=256, optimizer=kvemb.optimizers.Adagrad()).upsert(
            KEYS[:50], values_of(KEYS[:50], 0)
        )
        store.checkpoint(place / "parent")
        fill(store)
        store.checkpoint(place / "checkpoint")
    store = kvemb.open(place / "live", memory_budget=BUDGET, durability="write")
    fill(store)
    store.flush()
    for at in range(0, 200, 20):
        store.variables["table"].upsert(KEYS[at : at + 20], values_of(KEYS[at : at + 20], 3))
    copy_of_open(place / "live", place / "crashed")
    store.close()
    shutil.rmtree(place / "live")
    return place


def ways(checkpoint: Path, parent: Path, scratch: Path) -> dict[str, Callable[[], object]]:
    """Everything that reads a checkpoint, each giving what it read."""

    def read() -> object:
        with kvemb.open(checkpoint, read_only=True, memory_budget=BUDGET) as store:
            return rows_of(store)

    def restore(warm: bool) -> object:
        shutil.rmtree(scratch, ignore_errors=True)
        with kvemb.restore(checkpoint, scratch, memory_budget=BUDGET, warm=warm) as store:
            return rows_of(store)

    def changes() -> object:
        return [
            (change.variable, change.keys.tobytes(), change.values.tobytes(), change.removed.tobytes())
            for change in kvemb.Checkpoint(checkpoint).changes(parent)
        ]

    return {"read": read, "restore": lambda: restore(False), "warm": lambda: restore(True), "changes": changes}


def damages(path: Path) -> Iterator[str]:
    """Damage a file in one way after the other, yielding which; it is a file of its own, no link."""
    data = path.read_bytes()
    chance = np.random.default_rng(len(data))
    for at in chance.integers(0, len(data), OFFSETS) if data else []:
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(chance.integers(8))
        path.write_bytes(bytes(flipped))
        yield f"a bit flipped at {at}"
    for length in {0, len(data) // 2, len(data) - 1} if data else set():
        path.write_bytes(data[:length])
        yield f"cut to {length}"
    path.unlink()
    yield "missing"
    path.write_bytes(data)


def attempt(way: Callable[[], Any]) -> tuple[Any, str]:
    """What a way gives, or what it refuses with."""
    try:
        return way(), ""
    except (Corruption, UnsupportedFormat, CheckpointNotFound, StoreNotFound) as error:
        return None, str(error)


@pytest.mark.parametrize("kind", quick(["manifest.json", "rows/*.sst", "changes/*", "hot/*", "rows/[!0-9]*"]))
def test_a_damaged_file_of_a_checkpoint_is_named_and_no_row_is_wrong(made, tmp_path, kind):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(made / "checkpoint", checkpoint)
    reading = ways(checkpoint, made / "parent", tmp_path / "scratch")
    truth = {name: way() for name, way in reading.items()}
    files = sorted(checkpoint.glob(kind))
    assert files
    for path in files:
        for damage in damages(path):
            found = kvemb.verify(checkpoint, deep=True)
            assert any(str(path) in line for line in found.findings), (path, damage, found.findings)
            for name, way in reading.items():
                result, told = attempt(way)
                assert path.name in told if told else result == truth[name], (path, damage, name, told)
    assert kvemb.verify(checkpoint, deep=True)
    assert {name: way() for name, way in reading.items()} == truth


@pytest.mark.slow
@pytest.mark.parametrize("which", ["closed", "crashed"])
def test_a_damaged_file_of_a_store_is_named_and_no_row_is_wrong(made, tmp_path, which):
    store = tmp_path / "store"
    shutil.copytree(made / which, store)

    def read() -> Rows:
        scratch = tmp_path / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(store, scratch)
        with kvemb.open(scratch, memory_budget=BUDGET) as opened:
            return rows_of(opened)

    truth = read()
    live = store / layout.LIVE
    for path in sorted(path for path in store.rglob("*") if path.is_file() and live not in path.parents):
        if path.name == layout.LOCK:
            continue
        for damage in damages(path):
            found = kvemb.verify(store, deep=True)
            assert any(path.name in line for line in found.findings), (path, damage, found.findings)
            rows, told = attempt(read)
            if told:
                assert path.name in told, (path, damage, told)
            else:
                assert rows == truth, (path, damage)


def test_a_manifest_of_another_version_is_refused_by_name(made, tmp_path):
    shutil.copytree(made / "checkpoint", tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / manifest.NAME
    data = json.loads(path.read_text())
    data["format"] = 99
    path.write_text(json.dumps(data))
    for way in (*ways(path.parent, made / "parent", tmp_path / "scratch").values(), lambda: kvemb.verify(path.parent)):
        with pytest.raises(UnsupportedFormat, match=rf"{path} has format 99, this kvemb reads formats 2 and 3"):
            way()
    with pytest.raises(UnsupportedFormat, match="99"):
        kvemb.repair(path.parent, tmp_path / "out")


def test_verify_refuses_what_it_cannot_verify(open_store, tmp_path):
    with pytest.raises(StoreNotFound, match="neither a checkpoint nor a store"):
        kvemb.verify(tmp_path)
    store = open_store(tmp_path / "store")
    with pytest.raises(Locked, match="close it there"):
        kvemb.verify(store.path)
    with pytest.raises(Locked, match="close it there"):
        kvemb.repair(store.path, tmp_path / "out")
    store.close()
    assert kvemb.verify(store.path)


def test_nobody_opens_a_store_that_is_being_verified(made, tmp_path):
    shutil.copytree(made / "closed", tmp_path / "store")
    met = []

    def while_reading(done: int, total: int) -> None:
        with pytest.raises(Locked):
            kvemb.open(tmp_path / "store")
        met.append(done)

    assert kvemb.verify(tmp_path / "store", progress=while_reading)
    assert met
    kvemb.open(tmp_path / "store", memory_budget=BUDGET).close()


def test_a_store_that_was_not_closed_is_noted(made):
    found = kvemb.verify(made / "crashed", deep=True)
    assert found.findings == []
    assert "was not closed: opening it recovers its durable point of" in found.notes[0]
    assert found.notes[0].endswith("and 200 rows written later, from the log")


def test_an_error_that_is_kept_does_not_keep_the_store_open(made, tmp_path):
    """Its traceback holds frames, and they what they name: an iterator there would hold RocksDB's lock."""
    store, kept = tmp_path / "store", []
    shutil.copytree(made / "closed", store)
    largest = max(store.glob("points/*/rows/*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[100] ^= 1
    largest.write_bytes(data)
    for _ in range(2):
        with kvemb.open(store, memory_budget=BUDGET) as opened:
            for read in (lambda of: of.export(), lambda of: of.lookup(KEYS, touch=False)):
                try:
                    read(opened.variables["table"])
                except Corruption as error:
                    kept.append(error)
    assert len(kept) == 4


# Repair.


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
def test_repair_saves_rows_outside_the_gaps_and_none_that_is_older(made, tmp_path):
    """Whatever table file is damaged, and how: what is saved is right, and what is not is in a gap and counted."""
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    shutil.copytree(made / "checkpoint", checkpoint)
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


def test_repair_does_without_what_can_be_made_again(made, tmp_path):
    shutil.copytree(made / "closed", tmp_path / "store")
    truth = models(made / "checkpoint")
    for pattern in ("CURRENT", "points/*/rows/CURRENT", "points/*/rows/OPTIONS*", "points/*/rows/rocksdict*"):
        for path in (tmp_path / "store").glob(pattern):
            path.unlink()
    done = kvemb.repair(tmp_path / "store", tmp_path / "out")
    assert any("CURRENT" in line for line in done.damages)
    assert models(tmp_path / "out") == truth
    assert {saved.lost for saved in done.variables.values()} == {0}


def test_repair_adds_the_log_as_far_as_it_can_be_read(made, tmp_path):
    shutil.copytree(made / "crashed", tmp_path / "store")
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


def test_repair_refuses_what_it_cannot_do_and_leaves_nothing(made, tmp_path):
    shutil.copytree(made / "checkpoint", tmp_path / "checkpoint")
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


# check().


@pytest.fixture
def table(open_store, tmp_path) -> Iterator[kvemb.Variable]:
    store = open_store(tmp_path / "store")
    table = store.get_variable("table", dim=DIM, hot_rows=256)
    table.upsert(KEYS, values_of(KEYS, 1))
    store.check()
    yield table
    store.state.cause = RuntimeError("broken by hand")  # nothing is checked or written at teardown


def test_check_finds_a_hot_row_that_differs_from_the_cold_one(table):
    table.resource_handle[0].check()
    (hot,) = table.tables
    rows = hot.read(cells := hot.occupied()[7:8])
    rows.words[:] += 1
    hot.put(cells, rows)
    key = rows.keys[0]
    with pytest.raises(Corruption, match=rf"variable 'table': hot table 0: .*{key}"):
        table.resource_handle[0].check()


def test_check_finds_a_count_that_is_wrong(table):
    inside(table).storage.size += 1
    with pytest.raises(Corruption, match="there are 4,000 rows and 4,001 are counted"):
        table.resource_handle[0].check()


def test_check_finds_a_key_in_a_cell_where_it_is_not_found(table):
    (hot,) = table.tables
    rows = hot.read(cells := hot.occupied()[:1])
    rows.keys += 1
    hot.put(cells, rows)
    with pytest.raises(Corruption, match="hot table 0"):
        table.resource_handle[0].check()


def test_check_finds_a_clean_row_that_is_in_the_hot_tier_alone(table):
    (hot,) = table.tables
    rows = hot.read(hot.occupied()[:1])
    rows.flags[:] = 8
    inside(table).storage.cold.write(_removal(rows))
    with pytest.raises(Corruption, match=rf"key {rows.keys[0]} is clean and not in the cold store"):
        table.resource_handle[0].check()


def _removal(rows: Any) -> Any:
    from kvemb.rows.block import REMOVED

    rows.flags[:] = REMOVED
    return rows


def test_check_finds_a_score_that_is_not_a_number(table):
    (hot,) = table.tables
    rows = hot.read(hot.occupied()[:1])
    rows.scores[:] = np.nan
    inside(table).storage.cold.write(rows)
    with pytest.raises(Corruption, match=rf"the score of key {rows.keys[0]} is not a number"):
        table.resource_handle[0].check()


def test_check_finds_a_damaged_file_of_the_durable_point(table):
    table.resource_handle[0].flush()
    (point,) = (table.resource_handle[0].path / "points").iterdir()
    path = max(point.glob("rows/*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.unlink()
    path.write_bytes(data)
    table.resource_handle[0].check()
    with pytest.raises(Corruption, match=str(path)):
        table.resource_handle[0].check(deep=True)
