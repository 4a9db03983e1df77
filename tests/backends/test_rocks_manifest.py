"""A copy of a database that is amended without opening it, and what RocksDB then makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvemb.backends.rocks_log import BLOCK_BYTES, framed, numbers, records
from kvemb.backends.rocks_manifest import amend
from kvemb.errors import ColdStoreError, Corruption, UnsupportedFormat
from kvemb.options import RocksDBCreator
from kvemb.rows.block import REMOVED
from tests.backends.test_cold_store import all_rows, assert_same, database, rows_of, schema_of
from tests.backends.test_rocks_files import sorted_file_of

SCHEMA, NAMES = schema_of(dim=2), ("a", "b")


def contents(rows: Any) -> dict[int, Any]:
    found = zip(rows.words.tolist(), rows.scores.tolist(), rows.steps.tolist(), strict=True)
    return dict(zip(rows.keys.tolist(), found, strict=True))


class Life:
    """A database whose copies are amended and take its place, beside a model: the contents of the rows by key."""

    def __init__(self, folder: Path) -> None:
        self.chance, self.folder, self.salt = np.random.default_rng(5), folder, 0
        self.model: dict[str, dict[int, Any]] = {name: {} for name in NAMES}
        self.opened = database(folder / "0")
        self.stores = {name: self.opened.create(name, SCHEMA, RocksDBCreator()) for name in NAMES}

    def rows(self, name: str) -> Any:
        """New rows for some keys, some of them removed; the model has them."""
        keys, self.salt = np.unique(self.chance.integers(-60, 60, self.chance.integers(1, 50))), self.salt + 1
        made = rows_of(SCHEMA, keys, self.salt)
        made.flags[self.chance.random(len(keys)) < 0.3] |= REMOVED
        for key in made.keys.tolist():
            self.model[name].pop(key, None)
        self.model[name] |= contents(made.select(made.flags & REMOVED == 0))
        return made

    def file(self, name: str) -> Any:
        return sorted_file_of(self.opened, self.folder / f"{self.salt}.sst", self.rows(name))

    def change(self, name: str) -> None:
        kind = self.chance.integers(3)
        if kind == 0:
            self.opened.ingest(name, self.file(name).path)
        elif kind == 1:
            self.stores[name].compact(lambda *_: None)
        else:
            self.stores[name].write(self.rows(name))

    def move(self, number: int) -> None:
        """Go on with a copy to which newer rows were added."""
        self.opened.checkpoint(self.folder / f"{number}")
        names = map(str, self.chance.choice(NAMES, self.chance.integers(4)))
        self.opened.amend(self.folder / f"{number}", [], ((name, self.file(name)) for name in names))
        self.opened.close()
        self.opened = database(self.folder / f"{number}", dict.fromkeys(NAMES, RocksDBCreator()))
        self.stores = {name: self.opened.attach(name, SCHEMA) for name in NAMES}

    def check(self) -> None:
        for name, store in self.stores.items():
            assert contents(all_rows(store)) == self.model[name]


def test_copies_that_take_the_place_of_their_database_keep_the_newest_rows(tmp_path):
    life = Life(tmp_path)
    for number in range(1, 20):
        for _ in range(life.chance.integers(4)):
            life.change(str(life.chance.choice(NAMES)))
        life.move(number)
        life.check()
    life.opened.close()


@pytest.fixture
def copy(tmp_path) -> tuple[Path, Any]:
    """A copy of two families with rows, and a file."""
    opened = database(tmp_path / "rows")
    for salt, name in enumerate(NAMES):
        opened.create(name, SCHEMA, RocksDBCreator()).write(rows_of(SCHEMA, np.arange(9), salt))
    opened.checkpoint(tmp_path / "copy")
    file = sorted_file_of(opened, tmp_path / "1.sst", rows_of(SCHEMA, np.arange(5, 20), 2))
    opened.close()
    return tmp_path / "copy", file


def names_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_dropped_family_leaves_no_file(copy):
    folder, file = copy
    before = names_of(folder)
    amend(folder, ["b"], [])
    amend(folder, [], [("a", file)])
    gone, new = before - names_of(folder), names_of(folder) - before
    assert [len(gone), len(new)] == [1, 1]
    assert min(new) > max(gone)  # the number of a deleted file is not used again
    opened = database(folder, {"a": RocksDBCreator()})
    opened.create("b", SCHEMA, RocksDBCreator()).write(rows_of(SCHEMA, np.arange(2), 7))
    opened.checkpoint(folder.with_name("again"))
    opened.close()
    assert opened.families(folder.with_name("again")) == ["a", "b"]
    amend(folder.with_name("again"), ["b"], [])
    found = database(folder.with_name("again"), {"a": RocksDBCreator()}, read_only=True)
    assert_same(all_rows(found.attach("a", SCHEMA)).part(5, 20), rows_of(SCHEMA, np.arange(5, 20), 2))
    found.close()


def test_no_change_changes_nothing(copy):
    folder, _ = copy
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    amend(folder, [], [])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_damaged_copy_is_named(copy):
    folder, file = copy
    listed = next(folder.glob("MANIFEST-*"))
    whole = listed.read_bytes()
    for name, content in (
        ("CURRENT", b"damage"),
        (listed.name, whole[:-1]),
        (listed.name, whole[:40] + b"?" + whole[41:]),
        (listed.name, whole + framed(bytes(BLOCK_BYTES), len(whole))[: BLOCK_BYTES - len(whole)]),
        (listed.name, whole + framed(numbers(103, 0), len(whole))),
    ):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(Corruption, match=rf"{folder}/{name} is damaged: .*; use another checkpoint"):
            amend(folder, ["a"], [])
        (folder / name).write_bytes(kept)
    listed.write_bytes(whole + framed(numbers(500), len(whole)))
    with pytest.raises(UnsupportedFormat, match=rf"{listed} has the tag 500, .*; use the kvemb that wrote it"):
        amend(folder, ["a"], [])
    listed.write_bytes(whole)
    with pytest.raises(Corruption, match="it has no 'none'"):
        amend(folder, [], [("none", file)])
    shutil.rmtree(folder)
    with pytest.raises(ColdStoreError, match=f"{folder}"):
        amend(folder, ["a"], [])


def test_any_edit_is_read_or_refused(copy):
    """Whatever bytes a record with the right checksum has."""
    folder, file = copy
    listed = next(folder.glob("MANIFEST-*"))
    whole, chance = listed.read_bytes(), np.random.default_rng(3)
    edits = [edit for edit in records(whole) if edit]
    for _ in range(300):
        edit = bytearray(edits[chance.integers(len(edits))])
        edit[chance.integers(len(edit))] = chance.integers(256)
        edit = edit[: chance.integers(1, len(edit) + 1)]
        listed.write_bytes(whole + framed(bytes(edit), len(whole)))
        with pytest.raises((Corruption, UnsupportedFormat), match=f"{listed} (is damaged|has )"):
            amend(folder, [], [("none", file)])
