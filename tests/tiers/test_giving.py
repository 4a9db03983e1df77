"""Hot memory that moves: from tables whose cells are worth little to others, while every result stays the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import KEYS, change, checker_of, small_spill
from opaque_table import OpaqueTable
from quick import quick

import kvemb
from kvemb import registry
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.tools.stress.lockstep import LockstepChecker
from kvemb.tools.stress.model import Model

Opener = Callable[..., kvemb.Store]
ROWS = 30_000


def shares_of(store: kvemb.Store) -> list[Any]:
    return inside(store).budgets.host.sharing.shares


def ask(store: kvemb.Store, part: float) -> int:
    """Have every growing table give this part of its memory at its variable's next call."""
    asked = 0
    for share in shares_of(store):
        asked += share.ask(int(part * share.held))
        share.tell()
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


@pytest.mark.limits(**small_spill(64))
@pytest.mark.parametrize("devices", quick([["cpu"], ["cpu"] * 2]))
def test_a_table_that_grows_and_shrinks_at_random_equals_its_model(store: kvemb.Store, devices: list[str]) -> None:
    chance = np.random.default_rng(7)
    optimizer, start = kvemb.optimizers.Adagrad(0.5), kvemb.RandomUniform(seed=1)
    variable = store.get_variable("table", dim=3, init_size=16, devices=devices, initializer=start, optimizer=optimizer)
    keys = np.arange(-2000, 2000) * 1_000_003
    twin = LockstepChecker(variable, Model(keys, variable.value_dtype, 3, initializer=start, optimizer=optimizer))
    capacities = []
    for number in range(120):
        some = chance.choice(keys, int(chance.integers(300)))
        values = chance.standard_normal((len(some), 3)).astype(np.float32)
        if number % 3 == 2:
            ask(store, chance.random())
        [
            twin.upsert,
            twin.apply_gradients,
            lambda keys, _: twin.lookup(keys, touch=True),
            lambda keys, _: twin.remove(keys[:30]),
        ][chance.integers(4)](some, values)
        capacities.append(sum(table.capacity_rows for table in variable.tables))
    moves = np.sign(np.diff(capacities))
    assert (moves > 0).sum() > 10
    assert (moves < 0).sum() > 10
    twin.check_export()


@pytest.mark.limits(**small_spill(24), snapshot_file_bytes=1200)
def test_histories_of_a_shrinking_table_survive_checkpoints_under_way(open_store: Opener, tmp_path: Path) -> None:
    store, chance = open_store(tmp_path / "store"), np.random.default_rng(3)
    twin = checker_of(store, None)
    for number in range(60):
        writing = store.checkpoint(tmp_path / f"{number}", block=False) if number % 6 == 0 else None
        for _ in range(4):
            ask(store, 0.6)
            change(twin, chance)
        if writing is not None:
            writing.result()
    rows = twin.variable.lookup(KEYS, touch=False)
    store.checkpoint(tmp_path / "last")
    with kvemb.restore(tmp_path / "last", tmp_path / "copy") as copy:
        np.testing.assert_array_equal(copy.variables["table"].lookup(KEYS, touch=False), rows)
    twin.check_export()


def test_memory_follows_a_popularity_that_changes_half_way(open_store: Opener, tmp_path: Path) -> None:
    store, chance = open_store(tmp_path / "store", memory_budget="8MiB"), np.random.default_rng(5)
    tables = [filled(store, f"field{number}") for number in range(6)]
    fixed = filled(store, "fixed", 2000, hot_rows=512)
    for busy, idle in ((tables[:3], tables[3:]), (tables[3:], tables[:3])):
        for _ in range(60):
            for table in busy:
                table.lookup(popular(chance))
            idle[0].lookup([1])
        assert min(hot_bytes(*busy)) > 3 * max(hot_bytes(*idle))
        assert fixed.tables[0].capacity_rows == 512
        held = sum(share.held for share in shares_of(store))
        assert held == sum(hot_bytes(*tables)), "what is counted is there"
        assert held > 0.5 * (8 << 20)
    for table in tables:
        np.testing.assert_array_equal(table.lookup(np.arange(ROWS), touch=False), rows_of(np.arange(ROWS)))


def test_a_variable_opened_last_in_a_full_store_gets_what_it_needs(open_store: Opener, tmp_path: Path) -> None:
    store, chance = open_store(tmp_path / "store", memory_budget="8MiB"), np.random.default_rng(5)
    first = filled(store, "first", 3 * ROWS)
    before = hot_bytes(first)[0]
    small, large = filled(store, "small", 100), filled(store, "large")
    for _ in range(60):
        small.lookup(np.arange(100))
        large.lookup(popular(chance))
    assert hot_bytes(large)[0] > before / 4
    assert small.stats.rows_hot == 100
    assert small.tables[0].capacity_rows < 2000
    wide = store.get_variable("wide", dim=16, hot_rows=40_000)  # all at once, from those that have it
    assert wide.stats.bytes_hot > before / 2 > hot_bytes(first)[0]


def test_a_table_that_only_doubles_and_halves_gives_too(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.hot_backends, "gpu", "opaque_table:OpaqueTable")
    store = open_store(tmp_path / "store")
    variable = filled(store, "rows", 900, devices="gpu:0", init_size=16)
    (table,) = variable.tables
    assert isinstance(table, OpaqueTable)
    capacity = table.capacity_rows
    (budget,) = (inside(store).budgets.of(table.memory("gpu:0")),)
    (share,) = budget.sharing.shares
    share.ask(10)
    share.tell()
    np.testing.assert_array_equal(variable.lookup(np.arange(900)), rows_of(np.arange(900)))
    assert (
        share.held == table.nbytes <= capacity // 2 * table.bytes_per_cell(table.schema) or table.size > capacity // 2
    )
    assert budget.free == table.memory("gpu:0").nbytes - table.nbytes


@pytest.mark.parametrize("how", ["write", "memory"])
def test_a_failure_while_a_table_shrinks_poisons_and_loses_nothing(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store = open_store(tmp_path / "store", limits=Limits(**small_spill(64)))
    variable = filled(store, "rows", 6000)
    variable.lookup(np.arange(6000))  # all dirty
    ask(store, 0.9)
    if how == "write":

        def fail(rows: Any) -> None:
            raise ColdStoreError("no space left on device")

        monkeypatch.setattr(inside(variable).storage.cold, "write", fail)
        for _ in range(4):
            np.testing.assert_array_equal(variable.lookup(np.arange(6000), touch=False), rows_of(np.arange(6000)))
    else:

        def refuse(*_: Any) -> None:
            raise MemoryError

        monkeypatch.setattr(type(variable.tables[0]), "shrink", refuse)
        with pytest.raises(MemoryError):
            variable.lookup([1])
    np.testing.assert_array_equal(variable.lookup(np.arange(6000), touch=False), rows_of(np.arange(6000)))
    with pytest.raises(Poisoned):
        variable.upsert([1], np.zeros((1, 16), np.float32))


def test_threads_on_variables_that_take_each_others_memory_lose_no_update(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", memory_budget="4MiB", limits=Limits(**small_spill(64)))
    tables = [filled(store, f"field{number}", 8000) for number in range(3)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        chance = np.random.default_rng(number)
        try:
            for _ in range(60):
                table = tables[chance.integers(3)]
                keys = np.unique(popular(chance, 600, 8000))
                old, exists = table.lookup(keys, return_exists=True)
                table.accum(keys, old, old + 1, exists)
                ask(store, float(chance.random()) / 2)
                for done, key in zip(counts, [table is other for other in tables], strict=True):
                    if key:
                        with lock:
                            done[keys] += 1
        except BaseException as error:
            failures.append(error)

    counts, lock = [np.zeros(8000, np.int64) for _ in tables], threading.Lock()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for table, count in zip(tables, counts, strict=True):
        expected = rows_of(np.arange(8000)) + count[:, None].astype(np.float32)
        np.testing.assert_array_equal(table.lookup(np.arange(8000), touch=False), expected)


def test_budgets_balance_when_variables_that_shared_are_dropped(open_store: Opener, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", memory_budget="8MiB")
    free = store.budget.free
    tables = [filled(store, f"field{number}", 8000) for number in range(3)]
    for number in range(20):
        ask(store, 0.5)
        tables[number % 3].lookup(np.arange(8000))
    for number in range(3):
        store.drop_variable(f"field{number}")
    assert store.budget.free == store.budget.unused == free
