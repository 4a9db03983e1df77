"""Hot memory that moves: from tables whose cells are worth little to others, while every result stays the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import KEYS, SMALL_PILES, change, checker_of, small_spill
from quick import quick

import kvemb
from kvemb.backends import cpu
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.rows.block import RowBlock

Opener = Callable[..., kvemb.Store]
ROWS = 30_000
PATIENCE = 600  # seconds


def while_patient() -> Iterator[None]:
    """Turns until PATIENCE seconds have passed."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield


def shares_of(store: kvemb.Store) -> list[Any]:
    return inside(store).budgets.host.rebalancer.shares


def ask(store: kvemb.Store, part: float) -> int:
    """Have every growing table give this part of its memory at its variable's next call."""
    asked = 0
    for share in shares_of(store):
        asked += share.ask(int(part * share.held))
        share.notify()
    return asked


def filled(store: kvemb.Store, name: str, rows: int = ROWS, dim: int = 16, **options: Any) -> kvemb.Variable:
    variable = store.get_variable(name, dim=dim, restrict_policy=kvemb.FrequencyRestrictPolicy(), **options)
    for start in range(0, rows, 4096):
        keys = np.arange(start, min(rows, start + 4096))
        variable.upsert(keys, rows_of(keys, dim))
    return variable


def rows_of(keys: Any, dim: int = 16) -> Any:
    return np.repeat(keys[:, None], dim, 1).astype(np.float32)


def popular(chance: np.random.Generator, count: int = 4096, rows: int = ROWS) -> Any:
    """Keys with a popularity of 1 / rank."""
    return np.minimum(rows - 1, rows ** chance.random(count) - 1).astype(np.int64)


def hot_bytes(*variables: kvemb.Variable) -> list[int]:
    return [variable.stats.bytes_hot for variable in variables]


@pytest.mark.slow
@pytest.mark.limits(**SMALL_PILES)
@pytest.mark.parametrize("devices", quick([["cpu"], ["cpu"] * 2]))
def test_histories_of_a_table_that_grows_and_shrinks_survive_checkpoints_under_way(
    open_store: Opener, tmp_path: Path, devices: list[str]
) -> None:
    store, chance = open_store(tmp_path / "store"), np.random.default_rng(3)
    twin, capacities = checker_of(store, None, devices), []
    for number in range(40):
        writing = store.checkpoint(tmp_path / f"{number}", block=False) if number % 6 == 0 else None
        for _ in range(4):
            ask(store, 0.6)
            change(twin, chance)
            capacities.append(sum(table.capacity_rows for table in twin.variable.tables))
        if writing is not None:
            writing.result()
    moves = np.sign(np.diff(capacities))
    assert (moves > 0).sum() > 10
    assert (moves < 0).sum() > 10
    rows = twin.variable.lookup(KEYS, touch=False)
    store.checkpoint(tmp_path / "last")
    with kvemb.restore(tmp_path / "last", tmp_path / "copy") as copy:
        np.testing.assert_array_equal(copy.variables["table"].lookup(KEYS, touch=False), rows)
    twin.check_export()


@pytest.mark.slow
def test_memory_follows_a_popularity_that_changes_half_way(open_store: Opener, tmp_path: Path) -> None:
    store, chance = open_store(tmp_path / "store", memory_budget="8MiB"), np.random.default_rng(5)
    tables = [filled(store, f"field{number}") for number in range(6)]
    fixed = filled(store, "fixed", 2000, hot_rows=512)
    for busy, idle in ((tables[:3], tables[3:]), (tables[3:], tables[:3])):
        for _ in while_patient():  # another thread takes the memory of tables that nobody calls
            for table in busy:
                table.lookup(popular(chance))
            idle[0].lookup([1])
            if min(hot_bytes(*busy)) > 3 * max(hot_bytes(*idle)):
                break
        assert min(hot_bytes(*busy)) > 3 * max(hot_bytes(*idle))
        assert fixed.tables[0].capacity_rows == 512
        with ExitStack() as still:  # so that no thread moves memory
            for table in tables:
                still.enter_context(inside(table).storage.access.held())
            held = sum(share.held for share in shares_of(store))
            assert held == sum(inside(table).hot_tables.nbytes for table in tables), "what is counted is there"
        assert held > 0.5 * (8 << 20)
    for table in tables:
        np.testing.assert_array_equal(table.lookup(np.arange(ROWS), touch=False), rows_of(np.arange(ROWS)))


@pytest.mark.slow
def test_a_variable_opened_last_in_a_full_store_gets_what_it_needs(open_store: Opener, tmp_path: Path) -> None:
    store, chance = open_store(tmp_path / "store", memory_budget="8MiB"), np.random.default_rng(5)
    first = filled(store, "first", 3 * ROWS)
    before = hot_bytes(first)[0]
    small, large = filled(store, "small", 100), filled(store, "large")
    for _ in while_patient():  # how fast memory moves depends on threads; where it goes does not
        small.lookup(np.arange(100))
        large.lookup(popular(chance))
        if hot_bytes(large)[0] > 0.4 * before and small.stats.rows_hot == 100:
            break
    assert hot_bytes(large)[0] > 0.4 * before
    assert small.stats.rows_hot == 100
    assert small.tables[0].capacity_rows < 2000
    wide = store.get_variable("wide", dim=16, hot_rows=40_000)  # all at once, from those that have it
    assert wide.stats.bytes_hot > before / 2 > hot_bytes(first)[0]


def test_a_table_without_memory_to_shrink_stays_as_it_is(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store", limits=Limits(**small_spill(64)))
    variable = filled(store, "rows", 6000)
    variable.lookup(np.arange(6000))
    ask(store, 0.9)

    kind, refused = type(variable.tables[0]), []

    def none_left(schema: Any, rows: int) -> RowBlock:
        refused.append(rows)
        if rows:
            raise MemoryError
        return RowBlock(schema, rows)

    def shrink(*arguments: Any, original: Any = kind.shrink) -> RowBlock:
        with monkeypatch.context() as patched:
            patched.setattr(cpu, "RowBlock", none_left)
            return original(*arguments)  # type: ignore[no-any-return]

    with monkeypatch.context() as patched:
        patched.setattr(kind, "shrink", shrink)
        before = variable.tables[0].capacity_rows
        np.testing.assert_array_equal(variable.lookup(np.arange(6000)), rows_of(np.arange(6000)))
        assert variable.tables[0].capacity_rows == before
        assert any(refused)
    ask(store, 0.9)
    np.testing.assert_array_equal(variable.lookup(np.arange(6000)), rows_of(np.arange(6000)))
    assert variable.tables[0].capacity_rows < before


def test_memory_that_lacks_once_rows_have_left_poisons(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store", limits=Limits(**small_spill(64)))
    variable = filled(store, "rows", 6000)
    ask(store, 0.9)

    def fail(*_: Any) -> None:
        raise MemoryError("half-way")

    monkeypatch.setattr(type(variable.tables[0]), "shrink", fail)
    with pytest.raises(MemoryError, match="half-way"):
        variable.lookup([1])
    with pytest.raises(Poisoned, match="half-way"):
        variable.upsert([1], np.zeros((1, 16), np.float32))


def test_a_failure_while_a_table_shrinks_poisons_and_loses_nothing(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store", limits=Limits(**small_spill(64)))
    variable = filled(store, "rows", 6000)
    variable.lookup(np.arange(6000))  # all dirty
    ask(store, 0.9)

    def fail(rows: Any) -> None:
        raise ColdStoreError("no space left on device")

    monkeypatch.setattr(inside(variable).storage.cold, "write", fail)
    for _ in range(5):
        np.testing.assert_array_equal(variable.lookup(np.arange(6000), touch=False), rows_of(np.arange(6000)))
    with pytest.raises(Poisoned):
        variable.upsert([1], np.zeros((1, 16), np.float32))


@pytest.mark.slow
def test_threads_on_variables_that_take_each_others_memory_lose_no_update(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", memory_budget="4MiB", limits=Limits(**small_spill(64)))
    tables = [filled(store, f"field{number}", 8000) for number in range(3)]

    def work(number: int) -> Any:
        """Add 1 to rows; returns how often for each row of each table."""
        chance, added = np.random.default_rng(number), np.zeros((3, 8000), np.float32)
        for _ in range(60):
            at = chance.integers(3)
            keys = np.unique(popular(chance, 600, 8000))
            old, exists = tables[at].lookup(keys, return_exists=True)
            tables[at].accum(keys, old, old + 1, exists)
            ask(store, float(chance.random()) / 2)
            added[at, keys] += 1
        return added

    with ThreadPoolExecutor(3) as threads:
        added = sum(threads.map(work, range(3)))
    for table, count in zip(tables, added, strict=True):
        rows = table.lookup(np.arange(8000), touch=False)
        np.testing.assert_array_equal(rows, rows_of(np.arange(8000)) + count[:, None])


def test_budgets_balance_when_variables_that_shared_are_dropped(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", memory_budget="8MiB")
    staging = inside(store).budgets.staging
    whole = store.budget.free + staging.total
    tables = [filled(store, f"field{number}", 8000) for number in range(3)]
    for number in range(20):
        ask(store, 0.5)
        tables[number % 3].upsert([1], rows_of(np.ones(1)))  # as if it were trained
        tables[number % 3].lookup(np.arange(8000))
    assert any(inside(table).storage.in_flight.left for table in tables)
    for number in range(3):
        store.drop_variable(f"field{number}")
    assert store.budget.free + staging.total == whole
    assert staging.read.free == staging.read.total
