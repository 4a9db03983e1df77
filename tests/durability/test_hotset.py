"""Sets of hot keys, whose cost is proportional to the change."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.durability.hotset import read_hot, write_hot
from kvemb.errors import Corruption


def whole(folder, files):
    return [int(key) for keys in read_hot(folder, files) for key in keys]


@pytest.mark.parametrize("seed", range(4))
def test_sets_come_back_whatever_changes_between_them(tmp_path, seed):
    chance = np.random.default_rng(seed)
    sets = {name: np.empty(0, np.uint64) for name in ("a", "b", "c")}
    known: dict[str, list[str]] = {}
    for number in range(30):
        given = {}
        for name in sets:
            if chance.random() < 0.7:
                churn = int(chance.choice([0, 3, 100, 1000]))
                kept = sets[name][chance.random(len(sets[name])) < (0.97 if churn < 1000 else 0.0)]
                added = chance.integers(0, 2**64, churn, np.uint64, endpoint=False)
                sets[name] = np.unique(np.concatenate([kept if churn else sets[name], added]))
                given[name] = chance.permutation(sets[name])
        known = write_hot(tmp_path / f"{number}", number, given, tmp_path / f"{number - 1}", known, max_files=3)
        for name, keys in sets.items():
            assert whole(tmp_path / f"{number}", known.get(name, [])) == keys.tolist()
            assert len(known.get(name, [])) <= 3
        if (tmp_path / f"{number}").exists():
            named = {file for files in known.values() for file in files}
            assert {path.name for path in (tmp_path / f"{number}").iterdir()} == named


def test_a_set_that_did_not_change_is_the_same_file(tmp_path):
    keys = np.arange(1000, dtype=np.uint64) ** 3
    first = write_hot(tmp_path / "1", 1, {"a": keys}, tmp_path / "0", {})
    again = write_hot(tmp_path / "2", 2, {"a": keys[::-1]}, tmp_path / "1", first)
    assert first == again
    assert (tmp_path / "1" / first["a"][0]).samefile(tmp_path / "2" / first["a"][0])
    changed = write_hot(tmp_path / "3", 3, {"a": np.append(keys[10:], np.uint64(7))}, tmp_path / "2", again)
    assert (tmp_path / "3" / changed["a"][1]).stat().st_size < 200


def test_damage_is_named_when_it_is_read_and_gone_when_it_is_written(tmp_path):
    keys = np.arange(1000, dtype=np.uint64)
    names = write_hot(tmp_path / "1", 1, {"a": keys}, tmp_path / "0", {})
    path = tmp_path / "1" / names["a"][0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corruption, match=path.name):
        whole(tmp_path / "1", names["a"])
    assert whole(tmp_path / "2", write_hot(tmp_path / "2", 2, {"a": keys}, tmp_path / "1", names)["a"]) == keys.tolist()
