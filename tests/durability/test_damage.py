"""Damage on disk, in every file and of every kind: reported with the file's name, or harmless. Never a wrong row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import ADMISSION, BUDGET, DIM, KEYS, damages, values_of
from quick import quick

import kvemb
from kvemb.durability import layout, manifest
from kvemb.errors import CheckpointNotFound, Corruption, StoreNotFound, UnsupportedFormat
from kvemb.handle import inside

Rows = dict[str, tuple[bytes, ...]]


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


def ways(checkpoint: Path, parent: Path, scratch: Path) -> dict[str, Callable[[], object]]:
    """Everything that reads a checkpoint, each giving what it read."""

    def read() -> object:
        with kvemb.open(checkpoint, read_only=True, memory_budget=BUDGET) as store:
            return rows_of(store)

    def restore(warm: bool) -> object:
        shutil.rmtree(scratch, ignore_errors=True)
        with kvemb.restore(checkpoint, scratch, memory_budget=BUDGET, warm=warm) as store:
            return rows_of(store)

    def counting() -> object:
        shutil.rmtree(scratch, ignore_errors=True)
        with kvemb.restore(checkpoint, scratch, memory_budget=BUDGET) as store:
            table = store.get_variable("table", admission=ADMISSION)
            table.apply_gradients([1], np.ones((1, DIM), np.float32))
            return table.lookup([1], return_exists=True)[1].tolist(), table.stats.refused

    def changes() -> object:
        return [
            (change.variable, change.keys.tobytes(), change.values.tobytes(), change.removed.tobytes())
            for change in kvemb.Checkpoint(checkpoint).changes(parent)
        ]

    return {
        "read": read,
        "restore": lambda: restore(False),
        "warm": lambda: restore(True),
        "changes": changes,
        "counting": counting,
    }


def attempt(way: Callable[[], Any]) -> tuple[Any, str]:
    """What a way gives, or what it refuses with."""
    try:
        return way(), ""
    except (Corruption, UnsupportedFormat, CheckpointNotFound, StoreNotFound) as error:
        return None, str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", quick(["manifest.json", "rows/*.sst", "changes/*", "hot/*", "sightings/*", "rows/[!0-9]*"])
)
def test_a_damaged_file_of_a_checkpoint_is_named_and_no_row_is_wrong(places, tmp_path, kind):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(places / "checkpoint", checkpoint)
    reading = ways(checkpoint, places / "parent", tmp_path / "scratch")
    truth = {name: way() for name, way in reading.items()}
    assert truth["counting"] == ([True], 0)
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
def test_a_damaged_file_of_a_store_is_named_and_no_row_is_wrong(places, tmp_path, which):
    store = tmp_path / "store"
    shutil.copytree(places / which, store)

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


def test_a_manifest_of_another_version_is_refused_by_name(places, tmp_path):
    shutil.copytree(places / "checkpoint", tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / manifest.NAME
    data = json.loads(path.read_text())
    data["format"] = 99
    path.write_text(json.dumps(data))
    for way in (
        *ways(path.parent, places / "parent", tmp_path / "scratch").values(),
        lambda: kvemb.verify(path.parent),
    ):
        with pytest.raises(UnsupportedFormat, match=rf"{path} has format 99, this kvemb reads formats 2, 3, 5"):
            way()
    with pytest.raises(UnsupportedFormat, match="99"):
        kvemb.repair(path.parent, tmp_path / "out")


def test_an_error_that_is_kept_does_not_keep_the_store_open(places, tmp_path):
    """Its traceback holds frames, and they what they name: an iterator there would hold RocksDB's lock."""
    store, kept = tmp_path / "store", []
    shutil.copytree(places / "closed", store)
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


def test_check_finds_a_key_in_a_cell_where_it_is_not_found(table):
    (hot,) = table.tables
    rows = hot.read(cells := hot.occupied()[:1])
    rows.keys += 1
    hot.put(cells, rows)
    with pytest.raises(Corruption, match="hot table 0"):
        table.resource_handle[0].check()


def test_a_cold_row_with_a_score_that_is_not_a_number_is_not_made_hot(table):
    """It would never be evicted, or evicted by a write to another row."""
    key = KEYS[len(KEYS) // 2]
    (hot,) = table.tables
    hot.remove(hot.find(np.array([key])))
    rows, _ = inside(table).storage.cold.read(np.array([key]))
    rows.scores[:] = np.nan
    inside(table).storage.cold.write(rows)
    for _ in range(2):
        with pytest.raises(Corruption, match=rf"the score of key {key} is not a number; run kvemb verify"):
            table.lookup(np.array([key]))
    assert table.resource_handle[0].state.cause is None


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
