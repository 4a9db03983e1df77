"""Files as people have them: read right, or refused with the line, the column and the cure."""

from __future__ import annotations

import bz2
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.importing import import_table
from tests.tools.test_pinned_tools import make, rows_of

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402 -- after importorskip

VALUES = np.array([[0.5, -1], [0.25, 2], [3, 1e-7]], np.float32)


def imported(path: Path, source: Any, **how: Any) -> tuple[list[int], list[list[float]]]:
    """The rows of a source that is imported into a new store."""
    import_table(source, path, **({"variable": "table"} | how))
    keys, values = rows_of(path)
    return keys, values.tolist()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"2 2\n1_2 0.5 1\n12 0.25 2\n", "in.txt, line 2: the key '1_2' is not an integer"),
        (b"2 2\n7 0_5 1\n12 0.25 2\n", "in.txt, line 2: '0_5' is not a number"),
        (b"2 2\n7 1 1\n\n12 0_5 2\n", "in.txt, line 4, column '1': '0_5' is not a number; correct it"),
        (b"2 2\n7 1 1\n12 2\n", "in.txt, line 3: it has 1 numbers, not 2"),
        (b"2 2\n7 1 1\n12 2 3 4\n", "in.txt, line 3: it has more than 2 numbers after '12'"),
        (b"7 1 1\n0x10 2 3\n", "in.txt, line 2: the key '0x10' is not an integer"),
        (b"7 1 1\n9999999999999999999 2 3\n", "line 2: the key 9999999999999999999 does not fit int64"),
        (b"3 2\n7 1 1\n12 2 3\n", "has 2 rows, but its first line says 3"),
        (b"7 1 1\nthe 2 3\n", "line 2: the key 'the' is not an integer"),
        (b"7 1 1\n\xff 2 3\n", "bytes that are not UTF-8 in line 2"),
    ],
)
def test_lines_of_word_vectors_that_are_wrong_are_named(tmp_path, text, line):
    """int() and float() took 1_2 for 12: two rows became one."""
    (tmp_path / "in.txt").write_bytes(text)
    with pytest.raises(BadInput, match=line):
        import_table(tmp_path / "in.txt", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"2 2\n7 0.5 -1\n-3 0.25 2\n",  # word2vec
        b"7 0.5 -1\n-3 0.25 2",  # GloVe
        b"2 2\n7 0.5 -1 \n-3 0.25 2 \n",  # fastText ends lines with a space
        b"2 2\n7 0.5 -1 \n-3 0.25 2\n",
        b"7\t0.5\t-1\r\n-3\t0.25\t2\r\n\r\n",
        b"2 2\n\n7 0.5 -1\n\n-3 0.25 2\n\n\n",
    ],
)
def test_text_of_word_vectors_comes_in_as_it_is_written(tmp_path, text):
    (tmp_path / "in.vec").write_bytes(text)
    expected = ([-3, 7], [[0.25, 2], [0.5, -1]])
    assert imported(tmp_path / "a", tmp_path / "in.vec") == expected
    assert imported(tmp_path / "b", io.BytesIO(text), format="word2vec") == expected


def test_text_of_word_vectors_comes_in_compressed(tmp_path):
    text = b"2 2\n7 0.5 -1\n-3 0.25 2\n"
    (tmp_path / "in.vec.gz").write_bytes(gzip.compress(text[:9]) + gzip.compress(text[9:]))
    (tmp_path / "in.vec.bz2").write_bytes(bz2.compress(text))
    (tmp_path / "in.vec.zst").write_bytes(pa.compress(text, "zstd", asbytes=True))
    for ending in ("gz", "bz2", "zst"):
        assert imported(tmp_path / ending, tmp_path / f"in.vec.{ending}") == ([-3, 7], [[0.25, 2], [0.5, -1]])


def test_a_damaged_or_unsuited_compressed_file_is_refused(tmp_path):
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"key,value_0\n" + b"1,2\n" * 10_000)[:50])
    with pytest.raises(BadInput, match=r"in\.csv\.gz cannot be decompressed: Truncated"):
        import_table(tmp_path / "in.csv.gz", tmp_path / "new")
    (tmp_path / "in.npy.gz").write_bytes(b"x")
    with pytest.raises(BadInput, match="is compressed; npy is read from its place in a file: decompress it first"):
        import_table(tmp_path / "in.npy.gz", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "text",
    [
        b'key,word,value_0,value_1,day\n7,cat,0.5,-1,2024-01-01\n-3,"a, b\nc",0.25,2,\n',
        b"key, value_0, value_1\n7, 0.5, -1\n\n-3, 0.25, 2\n\n",
        b"key\tvalue_0\tvalue_1\n7\t0.5\t-1\n-3\t0.25\t2\n",
        b"key;value_0;value_1;score\n7;0.5;-1;x\n-3;0.25;2;y\n".replace(b";score", b";rank"),
    ],
)
def test_columns_of_a_csv_that_nobody_asked_for_are_ignored(tmp_path, text):
    assert imported(tmp_path / "new", io.BytesIO(text), format="csv") == ([-3, 7], [[0.25, 2], [0.5, -1]])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"key,value_0\n1,2\n\n3,cat\n", "in.csv, line 4, column 'value_0': 'cat' is not a number; correct it"),
        (b"key,value_0\n1,\n", "in.csv, line 2, column 'value_0': there is no number"),
        (b"key,value_0\n1.0,2\n", "in.csv, line 2: the key '1.0' is not an integer"),
        (b"key,value_0\n1,2\n3\n", "in.csv, line 3: it has 1 columns, the first line has 2"),
        (b"id,value_0\n1,2\n", "has no column 'key' for the key: name one of its columns with --key-column, it has id"),
    ],
)
def test_lines_of_a_csv_that_are_wrong_are_named(tmp_path, text, line):
    (tmp_path / "in.csv").write_bytes(text)
    with pytest.raises(BadInput, match=line):
        import_table(tmp_path / "in.csv", tmp_path / "new")


def test_a_column_named_value_is_a_row_of_one_number(tmp_path):
    """It was an IndexError."""
    make(tmp_path / "store", [1], np.zeros((1, 1), np.float32))
    import_table(io.BytesIO(b"key,value\n2,0.5\n"), tmp_path / "store", format="csv", variable="table")
    assert rows_of(tmp_path / "store")[1].tolist() == [[0], [0.5]]


def test_equal_keys_of_a_file_are_told(tmp_path, capsys):
    (tmp_path / "in.csv").write_text("key,value_0\n1,1\n2,5\n1,2\n")
    assert run(["import", str(tmp_path / "in.csv"), str(tmp_path / "new")]) == 1
    told = capsys.readouterr().err
    assert "key 1 is given twice for 'in'; set on_conflict to replace, with which the last row stays, or to" in told
    for conflict, row in (("replace", 2), ("keep", 1)):
        place = str(tmp_path / conflict)
        assert run(["import", str(tmp_path / "in.csv"), place, "--variable", "table", "--on-conflict", conflict]) == 0
        assert "1 row whose key occurs twice" in capsys.readouterr().out
        assert rows_of(tmp_path / conflict)[1].tolist() == [[row], [5]]


def test_a_matrix_has_its_row_numbers_for_keys_or_those_of_a_file(tmp_path):
    np.save(tmp_path / "in.npy", VALUES)
    assert imported(tmp_path / "a", tmp_path / "in.npy") == ([0, 1, 2], VALUES.tolist())
    np.save(tmp_path / "ids.npy", np.array([9, -1, 4]))
    (tmp_path / "ids.txt").write_text("9\n-1\n4\n")
    for name in ("ids.npy", "ids.txt"):
        found = imported(tmp_path / f"of {name}", tmp_path / "in.npy", keys=tmp_path / name)
        assert found == ([-1, 4, 9], VALUES[[1, 2, 0]].tolist())
    (tmp_path / "ids.txt").write_text("9\n-1\n4\n5\n")
    with pytest.raises(BadInput, match=r"--keys has 4 keys, but 'in' of .*in\.npy has 3 rows"):
        import_table(tmp_path / "in.npy", tmp_path / "new", keys=tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_text("9\n\n4\n")
    with pytest.raises(BadInput, match=r"ids\.txt has no key in line 2"):
        import_table(tmp_path / "in.npy", tmp_path / "new", keys=tmp_path / "ids.txt")
    with pytest.raises(WrongUsage, match="csv has keys of its own"):
        import_table(io.BytesIO(b""), tmp_path / "new", format="csv", keys=tmp_path / "ids.npy")


def test_one_matrix_of_safetensors_is_chosen(tmp_path):
    numpy_tensors = pytest.importorskip("safetensors.numpy")
    tensors = {"embed.weight": VALUES, "other": VALUES[:1], "mask": np.ones(3, np.bool_)}
    numpy_tensors.save_file(tensors, tmp_path / "in.safetensors")
    found = imported(tmp_path / "a", tmp_path / "in.safetensors", value_column="embed.weight")
    assert found == ([0, 1, 2], VALUES.tolist())
    with pytest.raises(WrongUsage, match=r"has the matrices embed\.weight \(3, 2\), other \(1, 2\); name one"):
        import_table(tmp_path / "in.safetensors", tmp_path / "new")
    numpy_tensors.save_file({"m": np.ones((3, 2), np.bool_)}, tmp_path / "in.safetensors")
    with pytest.raises(BadInput, match=r"'m' of .*in\.safetensors holds BOOL, which no variable can hold"):
        import_table(tmp_path / "in.safetensors", tmp_path / "new")


@pytest.mark.needs("torch")
def test_checkpoints_of_pytorch_may_be_nested(tmp_path):
    import torch

    torch.save({"model": {"embed.weight": torch.from_numpy(VALUES)}, "epoch": 3}, tmp_path / "in.pt")
    assert imported(tmp_path / "a", tmp_path / "in.pt", value_column="model.embed.weight")[1] == VALUES.tolist()
    torch.save(torch.from_numpy(VALUES), tmp_path / "in.pt")
    assert imported(tmp_path / "b", tmp_path / "in.pt")[1] == VALUES.tolist()


@pytest.mark.slow
def test_lists_of_every_arrow_type_come_in(tmp_path):
    flat = pa.array(VALUES.reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, 2)
    tensor = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2]), lists)
    as_list = lists.cast(pa.list_(pa.float32()))
    keys = pa.array([7, 8, 9])
    arrays = [
        lists,
        tensor,
        as_list,
        lists.cast(pa.large_list(pa.float32())),
        pa.array(VALUES.tolist(), pa.list_view(pa.float32())),
    ]
    for at, array in enumerate(arrays):
        rows = pa.RecordBatch.from_arrays([keys.dictionary_encode(), array, keys.cast(pa.string())], ["key", "v", "w"])
        with pa.OSFile(str(tmp_path / f"{at}.arrow"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
        assert imported(tmp_path / str(at), tmp_path / f"{at}.arrow") == ([7, 8, 9], VALUES.tolist()), array.type


def test_a_folder_as_spark_writes_it_comes_in(tmp_path):
    """Made by hand in its layout."""
    folder = tmp_path / "rows.parquet"
    (folder / "day=1").mkdir(parents=True)
    (folder / "_temporary").mkdir()
    columns = {"id": pa.array([7, 8, 9]), "features": pa.array(VALUES.tolist(), pa.list_(pa.float32()))}
    whole = pa.table(columns)
    for at, name in enumerate(("part-00000-5f.c000.snappy.parquet", "day=1/part-00001-5f.c000.snappy.parquet")):
        pq.write_table(whole.slice(at * 2, 2), folder / name, compression="snappy", store_schema=False)
    for name in ("_SUCCESS", ".part-00000-5f.c000.snappy.parquet.crc", "_temporary/x.parquet", ".y.parquet"):
        (folder / name).write_bytes(b"no Parquet")
    assert imported(tmp_path / "new", folder) == ([7, 8, 9], VALUES.tolist())


def test_an_import_makes_a_variable_that_can_be_trained(tmp_path):
    np.save(tmp_path / "in.npy", VALUES)
    import_table(tmp_path / "in.npy", tmp_path / "store", variable="table", optimizer="adagrad:0.5")
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        table = store.variables["table"]
        assert table.optimizer.to_json()["learning_rate"] == 0.5
        table.apply_gradients([0], np.ones((1, 2), np.float32))
        assert (table.lookup([0]) < VALUES[:1]).all()
    with pytest.raises(WrongUsage, match="variable 'table' exists; leave out --optimizer"):
        import_table(tmp_path / "in.npy", tmp_path / "store", variable="table", optimizer="sgd:1")


def test_an_import_that_fails_leaves_an_empty_folder_empty(tmp_path):
    (tmp_path / "new").mkdir()
    with pytest.raises(BadInput):
        import_table(io.BytesIO(b"key,value_0\n1,x\n"), tmp_path / "new", format="csv")
    assert list((tmp_path / "new").iterdir()) == []
    assert imported(tmp_path / "new", io.BytesIO(b"key,value_0\n1,2\n"), format="csv") == ([1], [[2]])


def test_glove_is_written_as_it_is_read(tmp_path):
    make(tmp_path / "store", [1, 2, 3], VALUES)
    export(tmp_path / "store", tmp_path / "out.glove")
    assert (tmp_path / "out.glove").read_text().splitlines()[:2] == ["1 0.5 -1", "2 0.25 2"]
    assert imported(tmp_path / "new", tmp_path / "out.glove") == ([1, 2, 3], VALUES.tolist())
