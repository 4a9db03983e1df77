"""Delta files: what is read equals what was written, the same bytes each time; any damaged byte is found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.durability.manifest import Manifest
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.handle import inside
from kvemb.offline.delta_file import DeltaFile, DeltaPart, frame_rows, write_delta
from kvemb.rows.block import REMOVED
from kvemb.rows.schema import Schema

DIM = 2


def described(checkpoint: kvemb.Checkpoint) -> Manifest:
    return inside(checkpoint)


@pytest.fixture
def made(store: kvemb.Store, tmp_path: Path) -> tuple[kvemb.Checkpoint, kvemb.Checkpoint]:
    """Two checkpoints: rows 0 to 19 changed, 20 and 21 removed, and a variable came."""
    table = store.get_variable("table", dim=DIM)
    table.upsert(np.arange(100), np.zeros((100, DIM), np.float32))
    first = store.checkpoint(tmp_path / "first")
    table.upsert(np.arange(20), np.ones((20, DIM), np.float32))
    table.remove([20, 21])
    new = store.get_variable("new", dim=7)
    new.upsert([-1], np.ones((1, 7), np.float32))
    return first, store.checkpoint(tmp_path / "second")


def write(made: tuple[kvemb.Checkpoint, kvemb.Checkpoint], path: Path, most: int = 1 << 20, **how: int) -> object:
    first, second = made
    return write_delta(second.path, described(second), described(first), path, most, **how)


def read(path: Path, schemas: dict[str, Schema]) -> None:
    found = DeltaFile(path, "it")
    for name, schema in schemas.items():
        list(found.rows(name, schema))


def test_what_changed_is_there(made, tmp_path):
    first, second = made
    entry = write(made, tmp_path / "delta")
    assert write(made, tmp_path / "again") == entry
    assert (tmp_path / "again").read_bytes() == (tmp_path / "delta").read_bytes()
    assert (tmp_path / "delta").stat().st_size == entry.bytes
    write(made, tmp_path / "small frames", frame_bytes=200)
    for name in ("small frames", "delta"):
        found = DeltaFile(tmp_path / name, "it")
        assert (found.since, found.id) == (first.id, second.id)
        assert found.parts == {"new": DeltaPart("new", True, 17 + 32), "table": DeltaPart("table", False, 17 + 8)}
        schema = second.variables["table"].schema
        blocks = list(found.rows("table", schema))
        assert (len(blocks) > 3) == (name == "small frames")
        assert [key for block in blocks for key in block.keys.tolist()] == list(range(22))
        gone = [bool(flags & REMOVED) for block in blocks for flags in block.flags.tolist()]
        assert gone == [False] * 20 + [True] * 2
        assert all((block.values[block.flags == 0] == 1).all() for block in blocks)
        assert [len(block) for block in found.rows("new", second.variables["new"].schema)] == [1]
        with pytest.raises(Corruption, match="records of 'table' have 25 bytes"):
            list(found.rows("table", second.variables["new"].schema))


def test_one_that_would_be_too_large_is_not_made(made, tmp_path):
    size = write(made, tmp_path / "fits").bytes
    assert write(made, tmp_path / "fits too", size) is not None
    assert write(made, tmp_path / "large", 500) is None


def test_every_damaged_byte_is_found(made, tmp_path):
    path = tmp_path / "delta"
    write(made, path)
    sound = path.read_bytes()
    schema = made[1].variables["table"].schema
    other = made[1].variables["new"].schema
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :])
        with pytest.raises((Corruption, UnsupportedFormat), match=r"it (is damaged|has format)"):
            read(path, {"table": schema, "new": other})
    for end in range(len(sound)):
        path.write_bytes(sound[:end])
        with pytest.raises(Corruption, match="it is damaged"):
            DeltaFile(path, "it")
    path.write_bytes(sound + b"x")
    with pytest.raises(Corruption, match="it is damaged"):
        DeltaFile(path, "it")


def test_a_frame_has_at_min_a_row():
    assert frame_rows(1 << 24) == 1
    assert frame_rows(92) == (256 << 10) // 100
