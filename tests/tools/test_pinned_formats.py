"""Regression tests: every bug found in exporting and importing, and in file formats."""

from __future__ import annotations

import io
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from programs import run_python
from told import json_of

import kvemb
from kvemb import bulk
from kvemb.tools.cli import run
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.known import FORMATS
from kvemb.tools.importing import import_table
from kvemb.tools.migrate import migrate, plan
from tests.tools.test_pinned_tools import BUDGET, make, rows_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "rows", "dtypes"),
    [
        (0, np.append(np.zeros(200_000), 0.5).astype(np.float32).reshape(-1, 1), {}),
        (0, np.array([[1.0], [2.0]], np.float32), {}),
        (0, np.array([[np.nan], [np.inf]], np.float32), {}),
        (0, np.empty((0, 2), np.float32), {}),
        (0, np.array([[7], [-8]], np.int8), {"value_dtype": "int8"}),
        (0, np.array([[1e300], [-0.1]]), {"value_dtype": "float64"}),
        (2**63 + 1, np.zeros((3, 1), np.float32), {"key_dtype": "uint64"}),
    ],
)
def test_a_csv_says_nothing_of_types_and_brings_back_what_was_written(tmp_path, first, rows, dtypes):
    keys = [first + at for at in range(len(rows))]
    make(tmp_path / "store", keys, rows, key_dtype=dtypes.get("key_dtype", "int64"))
    export(tmp_path / "store", tmp_path / "out.csv")
    import_table(tmp_path / "out.csv", tmp_path / "copy", variable="table", **dtypes)
    assert rows_of(tmp_path / "copy")[0] == keys
    np.testing.assert_array_equal(rows_of(tmp_path / "copy")[1], rows)


def test_rows_are_given_the_length_1_whatever_their_size(tmp_path):
    make(tmp_path / "ints", [1, 2], np.array([[3, 4], [10, 0]], np.int8))
    with pytest.raises(BadInput, match="--normalize needs floats, the values are int8"):
        export(tmp_path / "ints", tmp_path / "out.npy", normalize=True)
    export(tmp_path / "ints", tmp_path / "half.npy", normalize=True, dtype="float16")
    np.testing.assert_allclose(np.load(tmp_path / "half.npy" / "value.npy"), [[0.6, 0.8], [1, 0]], rtol=1e-3)


def test_tiny_numbers_do_not_wrap_in_int8(tmp_path):
    tiny = np.array([[2.7e-43, -1e-44, 1e-45]], np.float32)
    make(tmp_path / "tiny", [1], tiny)
    export(tmp_path / "tiny", tmp_path / "out.npy", dtype="int8")
    found = np.load(tmp_path / "out.npy" / "value.npy")[0].tolist()
    assert found[0] > 0 >= found[1]


def test_a_folder_that_could_not_be_sent_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    from fsspec.implementations.memory import MemoryFileSystem

    make(tmp_path / "store", [1], np.zeros((1, 1), np.float32))
    real, calls = MemoryFileSystem.put_file, []

    def second(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("gone")
        return real(self, *args, **kwargs)

    url = f"memory://{tmp_path.name}/t.npy"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", second)
        with pytest.raises(OSError, match="gone"):
            export(tmp_path / "store", url)
    assert export(tmp_path / "store", url).rows == 1


@pytest.mark.parametrize("format", ["tfra", "dynamicemb"])
def test_names_with_slashes_become_files(tmp_path, format):
    make(tmp_path / "store", [1], np.ones((1, 1), np.float32), name="tower/us%er ü")
    export(tmp_path / "store", tmp_path / "out", format=format)
    done = import_table(tmp_path / "out", tmp_path / "copy", format=format)
    assert done.variable == "tower/us%er ü"


@pytest.mark.parametrize("format", [kind.name for kind in FORMATS.values() if kind.int64_keys])
def test_int32_keys_become_int64_where_a_format_holds_no_others(tmp_path, format):
    make(tmp_path / "store", [-1, 2, 3], np.arange(6, dtype=np.float32).reshape(3, 2), key_dtype="int32")
    export(tmp_path / "store", tmp_path / "out", format=format)
    import_table(tmp_path / "out", tmp_path / "copy", format=format, variable="table")
    keys, values = rows_of(tmp_path / "copy")
    assert keys == [-1, 2, 3]
    assert values.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_parts_are_of_one_instant(tmp_path):
    """The owner of the store flushes between two parts."""
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=1)
        table.upsert(np.arange(1000), np.zeros((1000, 1), np.float32))
        store.flush()

        def move(done: int, total: int) -> None:
            table.upsert(np.arange(1000), np.ones((1000, 1), np.float32))
            store.flush()

        export(tmp_path / "store", tmp_path / "parts", format="csv", partitions=2, progress=move)
        files = sorted((tmp_path / "parts").iterdir())
        assert len(files) == 2
        assert {line.split(",")[1] for file in files for line in file.read_text().splitlines()[1:]} == {"0"}


def test_values_of_a_dtype_that_no_variable_has_are_one_line(tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = pa.array([[1, 2]], pa.list_(pa.uint8()))
    pq.write_table(pa.table({"key": [1], "value": lists}), tmp_path / "u8.parquet")
    assert run(["import", str(tmp_path / "u8.parquet"), str(tmp_path / "new")]) == 1
    assert "the source has uint8 values; give --value-dtype" in capsys.readouterr().err
    assert run(["import", str(tmp_path / "u8.parquet"), str(tmp_path / "new"), "--value-dtype", "float32"]) == 0
    assert rows_of(tmp_path / "new", "u8")[1].tolist() == [[1, 2]]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("key,value_0,value_7", r"has the column 'value_0' but no 'value_1'; number a list's columns from 0"),
        ("key,value_1,value_2", r"has the column 'value_1' but no 'value_0'"),
        ("key,value,value_0", r"has the column 'value_0' and 'value' too"),
        ("key,value_0,value_0", r"has the column 'value_0' twice; rename one"),
        ("key,key,value_0", r"has the column 'key' twice"),
        (
            "key_0,value_0,value_1",
            r"has no column 'key' for the key: name one of its columns with --key-column, it has key_0",
        ),
    ],
)
def test_columns_of_a_csv_that_can_be_read_in_several_ways_are_refused(tmp_path, head, line):
    with pytest.raises(BadInput, match=line):
        import_table(io.BytesIO(f"{head}\n1,2,3\n".encode()), tmp_path / "new", format="csv")
    assert not (tmp_path / "new").exists()


def test_columns_of_a_csv_are_taken_by_their_numbers(tmp_path):
    text = b"value_1,key,other_7,value_10,value_0," + b",".join(b"value_%d" % at for at in range(2, 10)) + b"\n"
    text += b"11,1,0,20,10,12,13,14,15,16,17,18,19\n"
    import_table(io.BytesIO(text), tmp_path / "new", format="csv")
    assert rows_of(tmp_path / "new")[1].tolist() == [list(range(10, 21))]


def test_a_column_that_is_there_twice_is_refused_where_it_is_needed(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"key": pa.array([1]), "value": pa.array([[2.0]]), "other": pa.array([3])}
    out = tmp_path / "out.parquet"
    for doubled in ("key", "value", "other"):
        pq.write_table(pa.table([*columns.values(), columns[doubled]], names=[*columns, doubled]), out)
        refused = pytest.raises(BadInput, match=f"has the column '{doubled}' twice")
        with nullcontext() if doubled == "other" else refused:
            assert import_table(out, tmp_path / "new").added == 1


@pytest.mark.slow
def test_bfloat16_of_others_is_known_in_a_fresh_process(tmp_path):
    make(tmp_path / "store", [1, 2], np.array([[1.5], [-2]], np.float32))
    export(tmp_path / "store", tmp_path / "out", format="tfra", dtype="bfloat16")
    arguments = [str(tmp_path / "out"), str(tmp_path / "new"), "--format", "tfra", "--value-dtype", "bfloat16"]
    code = f"import sys; from kvemb.tools.cli import run; sys.exit(run(['import', *{arguments!r}]))"
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_of(tmp_path / "new")[1].astype(float).tolist() == [[1.5], [-2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "dtype", "to"),
    [
        *((-1e6, "float32", "float16"), (3.4e38, "float32", "bfloat16"), (10**6, "int32", "float16")),
    ],
)
def test_no_number_becomes_infinite(tmp_path, number, dtype, to):
    from kvemb.tools.numbers import dtype_of

    rows = np.ones((3, 2), dtype_of(dtype))
    rows[1, 1] = number
    if dtype != "int32":
        rows[2] = np.array([np.inf, np.nan], rows.dtype)
    make(tmp_path / "store", [5, 6, 7], rows)
    for name, refused in {
        "migrate": lambda: migrate(plan(tmp_path / "store", tmp_path / "no", value_dtype=to)),
        "export": lambda: export(tmp_path / "store", tmp_path / "no.npy", dtype=to if to != "float32" else "int8"),
        "parts": lambda: export(tmp_path / "store", tmp_path / "no", format="parquet", dtype="float16", partitions=2),
    }.items():
        if (dtype, name) == ("int32", "migrate"):
            continue  # whole numbers must not change at all
        with pytest.raises(BadInput, match=r"key 6 has the number -?[\de+.]+, too large for \w+; "):
            refused()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    if dtype != "int32":
        export(tmp_path / "store", tmp_path / "out.parquet", where="key != 6")
        import_table(tmp_path / "out.parquet", tmp_path / "copy", variable="table", value_dtype=to)
        np.testing.assert_array_equal(rows_of(tmp_path / "copy")[1].astype(float)[1], [np.inf, np.nan])
        export(tmp_path / "store", tmp_path / "bad.parquet")
        with pytest.raises(BadInput, match="key 6 has the number"):
            import_table(tmp_path / "bad.parquet", tmp_path / "no", variable="table", value_dtype=to)
        assert not (tmp_path / "no").exists()


def test_slots_do_not_become_infinite_either(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", "int64", "float64", 1, optimizer=kvemb.optimizers.Adagrad())
        bulk.load(table, [bulk.Rows(np.array([3]), np.ones((1, 1)), {"accumulator": np.full((1, 1), 1e300)})])
    with pytest.raises(BadInput, match=r"key 3 has the number 1e\+300, too large for float32; .* --slots reset"):
        migrate(plan(tmp_path / "store", tmp_path / "no", value_dtype="float32"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert migrate(plan(tmp_path / "store", tmp_path / "out", value_dtype="float32", slots="reset")) == 1


def test_the_package_that_is_lacking_is_named(tmp_path, monkeypatch, capsys):
    fsspec = pytest.importorskip("fsspec")

    def lacking(*_: Any, **__: Any) -> Any:
        raise ImportError("Please install gcsfs to access Google Storage")

    make(tmp_path / "store", [1], np.zeros((1, 1), np.float32))
    monkeypatch.setattr(fsspec.core, "url_to_fs", lacking)
    for arguments in (["pull", "gs://b/x", str(tmp_path / "new")], ["export", str(tmp_path / "store"), "gs://b/x.csv"]):
        assert run(arguments) == 1
        told = capsys.readouterr().err
        assert told.endswith("cannot be reached: Please install gcsfs to access Google Storage\n")


def test_what_an_export_leaves_out_and_an_import_makes_is_told(tmp_path, capsys):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        policy = kvemb.FrequencyRestrictPolicy()
        table = store.get_variable("t", dim=1, optimizer=kvemb.optimizers.Adagrad(), restrict_policy=policy)
        table.upsert([1], [[1.0]])
    note = "without slots and scores: training cannot continue"
    for options, told in (
        ([], note),
        (["--with-slots"], note.replace("slots and ", "")),
        (["--with-scores"], "slots:"),
    ):
        assert run(["export", str(tmp_path / "store"), str(tmp_path / f"{len(told)}.npy"), *options]) == 0
        assert told in " ".join(capsys.readouterr().out.split())
    whole = str(tmp_path / "whole.npy")
    assert run(["export", str(tmp_path / "store"), whole, "--with-slots", "--with-scores"]) == 0
    assert "training" not in capsys.readouterr().out
    for source, made in (
        (whole, "optimizer adagrad, policy frequency, initializer zeros"),
        (str(tmp_path / f"{len(note)}.npy"), "optimizer none, policy none, initializer zeros"),
    ):
        new = str(tmp_path / f"new{len(made)}")
        assert run(["import", source, new]) == 0
        assert made in capsys.readouterr().out
        assert json_of(capsys, "import", source, new, "--on-conflict", "keep")["made"] is None


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    mark = b"\xef\xbb\xbf"
    for name, text in (("v.csv", b"key,value_0\n7,0.5\n"), ("v.w2v", b"1 1\n7 0.5\n")):
        (tmp_path / name).write_bytes(mark + text)
        import_table(tmp_path / name, tmp_path / "new", variable=name)
        assert (rows_of(tmp_path / "new", name)[0], rows_of(tmp_path / "new", name)[1].tolist()) == ([7], [[0.5]])
