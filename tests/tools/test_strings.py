"""Commands on variables whose keys are strings: exports and imports, peek, stats, diff and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.tools.diff import diff
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.importing import import_table
from kvemb.tools.inspect import peek
from kvemb.tools.table_stats import stats

WORDS = ["Paris", "Zürich", "東京", "a,b", 'quo"ted', "1_2"]
VALUES = np.repeat(np.arange(6, dtype=np.float32), 2).reshape(6, 2)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        words = store.get_variable("words", "string", dim=2, name_bytes=16, optimizer=kvemb.optimizers.Adagrad(0.1))
        words.upsert(WORDS, VALUES)
    return tmp_path / "store"


def rows_in(path: Path, name: str = "words") -> dict[Any, list[float]]:
    with kvemb.open(path, read_only=True) as store:
        keys, values = store.variables[name].export()
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "vec", "glove", "w2v.bin"])
def test_exports_with_words_come_back(made: Path, tmp_path: Path, ending: str):
    export(made, tmp_path / f"words.{ending}")
    import_table(tmp_path / f"words.{ending}", tmp_path / "new", variable="words", key_dtype="string")
    assert rows_in(tmp_path / "new") == rows_in(made)


def test_a_whole_export_comes_back_with_every_bit(made: Path, tmp_path: Path):
    export(made, tmp_path / "words.parquet", with_slots=True, with_scores=True, partitions=3)
    import_table(tmp_path / "words.parquet", tmp_path / "new", format="parquet")
    with kvemb.open(tmp_path / "new", read_only=True) as store:
        assert store.variables["words"].optimizer == kvemb.optimizers.Adagrad(0.1)
    (found,) = diff(made, tmp_path / "new")
    assert (found.added, found.removed, found.changed) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "hugectr"])
def test_formats_of_integers_refuse_words(made: Path, tmp_path: Path, kind: str):
    with pytest.raises(BadInput, match=f"{kind} holds integers as keys, these are strings; choose parquet, arrow, csv"):
        export(made, tmp_path / "out", format=kind)


def test_a_word_with_a_blank_is_refused_where_blanks_divide(tmp_path: Path):
    with kvemb.open(tmp_path / "store") as store:
        store.get_variable("words", "string", dim=1).upsert(["New York"], [[1]])
    with pytest.raises(BadInput, match="the key 'New York' is empty or has a blank; choose another format"):
        export(tmp_path / "store", tmp_path / "words.vec")
    with pytest.raises(BadInput, match="--where compares integers, and the keys of 'words' are strings"):
        export(tmp_path / "store", tmp_path / "words.csv", where="key in 0..9")


def test_words_are_hashed_on_request(tmp_path: Path):
    (tmp_path / "words.vec").write_text("2 2\nParis 1 2\n1_2 3 4\n")
    import_table(tmp_path / "words.vec", tmp_path / "new", hash_keys=True)
    paris, other = kvemb.hash_strings(["Paris", "1_2"]).tolist()
    assert rows_in(tmp_path / "new") == {paris: [1.0, 2.0], other: [3.0, 4.0]}
    with pytest.raises(BadInput, match="is not an integer; import words as strings, with --key-dtype string, or"):
        import_table(tmp_path / "words.vec", tmp_path / "third")
    with pytest.raises(WrongUsage, match="--hash-keys makes int64 keys; leave out --key-dtype string"):
        import_table(tmp_path / "words.vec", tmp_path / "third", hash_keys=True, key_dtype="string")
    (tmp_path / "long.vec").write_text("1 1\nabcdefghi 1\n")
    with pytest.raises(ValueError, match="at most name_bytes=8 bytes"):
        import_table(tmp_path / "long.vec", tmp_path / "third", key_dtype="string", name_bytes=8)


def test_rows_are_shown_by_their_words(made: Path):
    found = peek(made, keys=["Zürich", "nowhere"], neighbours=2)
    assert found.rows.keys.tolist() == ["Zürich"]
    assert found.missing == ["nowhere"]
    assert {other for other, _ in found.neighbours["Zürich"]} < set(WORDS)
    assert stats(made).dead == 1


def test_differences_are_told_with_words(made: Path, tmp_path: Path):
    with kvemb.open(made) as store:
        store.checkpoint(tmp_path / "one")
        store.variables["words"].remove(["a,b"])
        store.variables["words"].upsert(["Paris", "new"], [[7, 7], [8, 8]])
        store.checkpoint(tmp_path / "two")
    kvemb.restore(tmp_path / "one", tmp_path / "other").close()  # its changes are not recorded together with two's
    for before in (tmp_path / "one", tmp_path / "other"):
        (found,) = diff(before, tmp_path / "two")
        assert (found.added, found.removed, found.changed) == (1, 1, 1)
        assert [moved.key for moved in found.most] == ["Paris"]
    export(tmp_path / "two", tmp_path / "delta.csv", since=tmp_path / "one")
    assert np.load(tmp_path / "delta.removed.npy").tolist() == ["a,b"]
