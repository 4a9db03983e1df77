"""Key files: what is read equals what was written, unions of them, and damage is reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvemb.durability.keyfile import FRAME_KEYS, merged, read_keys, write_keys
from kvemb.errors import Corruption, UnsupportedFormat

TOP = 2**64 - 1
KEYS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, TOP), st.integers(TOP - 9, TOP)), unique=True)


def array(keys: list[int]) -> np.ndarray:
    return np.array(sorted(keys), np.uint64)


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data())
def test_keys_come_back_and_files_merge(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("keys")
    sets = [array(data.draw(KEYS)) for _ in range(data.draw(st.integers(0, 4)))]
    frame_keys = data.draw(st.sampled_from([1, 2, 5, FRAME_KEYS]))
    for number, keys in enumerate(sets):
        cut = data.draw(st.integers(0, len(keys)))
        assert write_keys(folder / f"{number}", [keys[:cut], keys[cut:]], frame_keys=frame_keys) == len(keys)
        assert np.concatenate([keys[:0], *read_keys(folder / f"{number}")]).tolist() == keys.tolist()
    streams = (read_keys(folder / f"{number}") for number in range(len(sets)))
    union = [int(key) for batch in merged(streams) for key in batch]
    assert union == sorted({int(key) for keys in sets for key in keys})


def test_dense_keys_take_little_room(tmp_path):
    write_keys(tmp_path / "keys", [np.arange(0, 3_000_000, 3, dtype=np.uint64)])
    assert (tmp_path / "keys").stat().st_size < 100_000


@pytest.mark.parametrize("how", ["flipped", "cut", "longer"])
def test_damage_is_told_and_never_gives_other_keys(tmp_path, how):
    path, keys = tmp_path / "keys", np.cumsum(np.arange(1, 40, dtype=np.uint64) ** 5)
    write_keys(path, [keys], frame_keys=7)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        if how == "flipped":
            damaged[at] ^= 1 << at % 8
        path.write_bytes({"flipped": damaged, "cut": whole[:at], "longer": whole + whole[at:]}[how])
        read: list[int] = []
        with pytest.raises((Corruption, UnsupportedFormat), match=str(path)):
            read_into(read, path)
        assert read == keys[: len(read)].tolist()


def read_into(read: list[int], path: Path) -> None:
    for batch in read_keys(path):
        read += batch.tolist()
