"""Commands that change or make a store, killed before each rename: the store has one state or the other, whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashes import killed_at_each

import kvemb
from kvemb import bulk
from kvemb.tools import migrate
from kvemb.tools.importing import import_table

BUDGET = {"memory_budget": "4MiB"}
RENAMES = ["rename", "replace"]
pytestmark = pytest.mark.slow


def make(store: Path) -> None:
    with kvemb.open(store, **BUDGET) as opened:
        opened.get_variable("users", dim=2).upsert([1, 2], [[1.0, 1.0], [2.0, 2.0]])


def values(store: Path) -> list[float] | None:
    """The values of all rows, None if there is no store."""
    if not store.exists():
        return None
    kvemb.verify(store, deep=True)
    with kvemb.open(store, **BUDGET) as opened:
        opened.check(deep=True)
        return opened.variables["users"].export()[1][:, 0].tolist()


def load(place: Path) -> None:
    (place / "more.csv").write_text("key,value_0,value_1\n2,7,7\n3,7,7\n")
    import_table(place / "more.csv", place / "store", variable="users", on_conflict="replace")


def compact(place: Path) -> None:
    with kvemb.open(place / "store", **BUDGET) as store:
        bulk.compact(store)


def halve(place: Path) -> None:
    migrate.migrate(migrate.plan(place / "store", place / "out", value_dtype="float16"))


def repair(place: Path) -> None:
    kvemb.repair(place / "store", place / "out")


CASES = {
    "load": (load, "store", [1.0, 7.0, 7.0]),
    "compact": (compact, "store", [1.0, 2.0]),
    "halve": (halve, "out", [1.0, 2.0]),
    "repair": (repair, "out", [1.0, 2.0]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_kill_at_a_rename_leaves_one_state_or_the_other(tmp_path: Path, case: str) -> None:
    """And the next call succeeds."""
    command, changed, after = CASES[case]
    place = tmp_path / "place"
    make(place / "store")
    before = None if changed == "out" else [1.0, 2.0]
    left = killed_at_each(RENAMES, lambda: command(place), place, tmp_path / "killed")
    found = [values(killed / changed) for killed in left]
    assert all(each in (before, after) for each in found)
    assert (found[0], found[-1]) == (before, after)
    for killed, each in zip(left, found, strict=True):
        assert values(killed / "store") == (each if changed == "store" else [1.0, 2.0])
        if each != after:
            command(killed)
            assert values(killed / changed) == after
