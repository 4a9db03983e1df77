"""A variable that cannot be made leaves nothing behind: no reserved memory, no column family."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvemb
from kvemb.errors import ColdStoreError


def test_a_variable_too_large_for_the_budget_can_be_asked_for_again_smaller(tmp_path: Path) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        free = store.budget.free
        with pytest.raises(ValueError, match="hot_rows"):
            store.get_variable("rows", dim=64, hot_rows=10_000_000)
        assert store.budget.free == free
        var = store.get_variable("rows", dim=64, hot_rows=64)
        var.upsert([1], [[1.0] * 64])
        assert var.size() == 1


def test_a_cold_store_that_cannot_be_made_costs_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ColdStoreError("the disk is full")

    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        free = store.budget.free
        with monkeypatch.context() as broken:
            broken.setattr(store._database, "create", refuse)
            with pytest.raises(ColdStoreError):
                store.get_variable("rows", dim=4)
        assert store.budget.free == free
        assert store.get_variable("rows", dim=4).size() == 0
