"""Deltas applied to a base: variables that come, go and come back, rows that come, change and go."""

from __future__ import annotations

import numpy as np
import pytest
from pushed import ROWS, contents, fill, pulled

import kvemb

fsspec = pytest.importorskip("fsspec")


@pytest.mark.slow
def test_each_number_is_pulled_whole_or_as_it_arrives(store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    fill(store, np.arange(ROWS), 0)
    fill(store, np.arange(50), 0, "gone")
    manager.save(store)
    assert manager.push(url).deltas == 0
    for version in range(1, 6):
        table = fill(store, np.arange(version, ROWS, 100), version)
        table.remove(np.arange(version * 7, version * 7 + 3))
        table.lookup(np.arange(version * 10, version * 10 + 9))
        if version == 2:
            store.drop_variable("gone")
            fill(store, np.arange(40), 2, "new")
        if version == 4:
            fill(store, np.arange(30), 4, "gone", dim=7)  # another one of that name
        manager.save(store)
        done = manager.push(url)
        assert (done.deltas, done.number) == (version, version + 1)
        assert done.nbytes < 20_000
        assert done.shared > 0
    assert manager.remote_numbers(url) == [1, 2, 3, 4, 5, 6]
    wanted = {number: contents(kvemb.Checkpoint(manager.path(number))) for number in manager.numbers()}
    for number in (1, 2, 3, 4, 5, 6, 3):
        assert contents(pulled(url, tmp_path / f"whole{number}", number)) == wanted[number]
        assert contents(pulled(url, tmp_path / "arriving", number)) == wanted[number]
    for number in (2, 6, 4):
        assert contents(pulled(url, tmp_path / "jumping", number)) == wanted[number]


@pytest.mark.slow
def test_each_kind_of_variable_comes_back(store, manager, tmp_path):
    """Every dtype and width of record, extreme keys, and rows that are replaced by later deltas again and again."""
    url, chance = f"memory://{tmp_path.name}", np.random.default_rng(5)
    kinds = [
        ("int64", "float32", kvemb.optimizers.Adam(0.1), 4),
        ("uint64", "float16", kvemb.optimizers.RowWiseAdagrad(0.1), 3),
        ("int32", "int8", None, 5),
        ("int64", "float64", None, 1),
    ]
    for version in range(4):
        for at, (keys, values, optimizer, dim) in enumerate(kinds):
            table = store.get_variable(f"{at}", key_dtype=keys, value_dtype=values, dim=dim, optimizer=optimizer)
            limits = np.iinfo(keys)
            drawn = (
                chance.integers(0, 500, 200) if version else np.arange(1000)
            )  # a base that is larger than all deltas
            some = np.append(drawn.astype(keys), np.array([limits.min, limits.max], keys))
            table.upsert(some, np.full((len(some), dim), version, table.value_dtype))
            if version:
                table.remove(some[:20])
        manager.save(store)
        assert manager.push(url).deltas == version
        made = manager.latest()
        assert contents(pulled(url, tmp_path / "whole" / f"{version}", version + 1)) == contents(made)
        assert contents(pulled(url, tmp_path / "arriving", version + 1)) == contents(made)


def test_a_variable_that_is_cleared_has_only_what_came_after(store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    table = fill(store, np.arange(ROWS), 0)
    fill(store, np.arange(ROWS), 0, "other")
    manager.save(store)
    manager.push(url)
    table.clear()
    fill(store, [5], 1)
    manager.save(store)
    assert manager.push(url).deltas == 1
    fill(store, [6], 2)
    manager.save(store)
    assert manager.push(url).deltas == 2
    for number in (2, 3):
        found = pulled(url, tmp_path / f"{number}", number)
        assert found.variables["table"].rows == number - 1
        assert contents(found) == contents(kvemb.Checkpoint(manager.path(number)))
