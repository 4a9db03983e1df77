"""Regression tests: every bug found in the tools."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crashes import copy_of_open

import kvemb
from kvemb import bulk
from kvemb.errors import Locked
from kvemb.tools.cli import run
from kvemb.tools.diff import diff
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.known import FORMATS
from kvemb.tools.importing import import_table
from kvemb.tools.inspect import peek
from kvemb.tools.migrate import migrate, plan
from kvemb.tools.table_stats import stats

pytest.importorskip("pyarrow")
BUDGET = "4MiB"


def make(path: Path, keys: Any, rows: Any, *, name: str = "table", key_dtype: str = "int64") -> Path:
    rows = np.asarray(rows)
    with kvemb.open(path, memory_budget=BUDGET) as store:
        table = store.get_variable(name, key_dtype, rows.dtype.name, rows.shape[1])
        bulk.load(table, [bulk.Rows(np.asarray(keys, key_dtype), rows)])
    return path


def rows_of(path: Path, name: str = "table") -> tuple[list[int], Any]:
    with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
        keys, values = store.variables[name].export()
        return keys.tolist(), values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        (np.append(np.zeros(200_000), 0.5).astype(np.float32).reshape(-1, 1), None),
        (np.array([[1.0], [2.0]], np.float32), None),
        (np.array([[np.nan], [np.inf]], np.float32), None),
        (np.empty((0, 2), np.float32), None),
        (np.array([[7], [-8]], np.int8), "int8"),
        (np.array([[1e300], [-0.1]]), "float64"),
    ],
)
def test_a_csv_says_nothing_of_types_and_brings_back_what_was_written(tmp_path, rows, dtype):
    make(tmp_path / "store", np.arange(len(rows)), rows)
    export(tmp_path / "store", tmp_path / "out.csv")
    import_table(tmp_path / "out.csv", tmp_path / "copy", variable="table", value_dtype=dtype)
    np.testing.assert_array_equal(rows_of(tmp_path / "copy")[1], rows)


def test_great_unsigned_keys_come_through_a_csv(tmp_path):
    keys = [2**63 + 1, 2**63 + 3, 2**64 - 1]
    make(tmp_path / "store", keys, np.zeros((3, 1), np.float32), key_dtype="uint64")
    export(tmp_path / "store", tmp_path / "out.csv")
    import_table(tmp_path / "out.csv", tmp_path / "copy", variable="table", key_dtype="uint64")
    assert rows_of(tmp_path / "copy")[0] == keys
    with pytest.raises(BadInput, match="invalid value '9223372036854775809'"):
        import_table(tmp_path / "out.csv", tmp_path / "no", variable="table")


def test_rows_are_given_the_length_1_whatever_their_size(tmp_path):
    make(tmp_path / "ints", [1, 2], np.array([[3, 4], [10, 0]], np.int8))
    with pytest.raises(BadInput, match="--normalize needs floats, the values are int8"):
        export(tmp_path / "ints", tmp_path / "out.npy", normalize=True)
    export(tmp_path / "ints", tmp_path / "half.npy", normalize=True, dtype="float16")
    np.testing.assert_allclose(np.load(tmp_path / "half.npy" / "value.npy"), [[0.6, 0.8], [1, 0]], rtol=1e-3)
    make(tmp_path / "wide", [1, 2, 3], np.array([[3e200, 4e200], [3e-200, 4e-200], [0, 0]]))
    export(tmp_path / "wide", tmp_path / "unit.npy", normalize=True)
    np.testing.assert_allclose(np.load(tmp_path / "unit.npy" / "value.npy"), [[0.6, 0.8], [0.6, 0.8], [0, 0]])
    found = peek(tmp_path / "wide", keys=[1], neighbours=1)
    assert found.neighbours == {1: [(2, pytest.approx(1.0))]}
    assert not np.isnan(stats(tmp_path / "wide").spread).any()


def test_int8_holds_no_infinity_and_nothing_wraps(tmp_path):
    make(tmp_path / "store", [1], np.array([[np.inf, 1]], np.float32))
    with pytest.raises(BadInput, match="the row of key 1 has a NaN or an infinity"):
        export(tmp_path / "store", tmp_path / "out.safetensors", dtype="int8")
    tiny = np.array([[2.7e-43, -1e-44, 1e-45]], np.float32)
    make(tmp_path / "tiny", [1], tiny)
    export(tmp_path / "tiny", tmp_path / "out.npy", dtype="int8")
    found = np.load(tmp_path / "out.npy" / "value.npy")[0].tolist()
    assert found[0] > 0 >= found[1]


def test_more_than_a_hundred_rows_that_moved_are_named(tmp_path):
    for name, offset in (("a", 0), ("b", 1)):
        make(tmp_path / name, np.arange(1000), np.arange(offset, 1000 + offset, dtype=np.float32).reshape(-1, 1))
    assert len(diff(tmp_path / "a", tmp_path / "b", top=500)[0].most) == 500


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


def test_what_is_not_finite_is_told_apart_in_json(tmp_path, capsys):
    for name, number in (("a", 1.0), ("b", 2.0)):
        make(tmp_path / name, [1, 2], np.array([[number, 0, 0], [np.nan, np.inf, -np.inf]], np.float32))
    assert run(["peek", str(tmp_path / "a"), "--json"]) == 0
    found = [row["values"] for row in json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rows"]]
    assert found == [[1, 0, 0], ["NaN", "Infinity", "-Infinity"]]
    assert str([float(number) for number in found[1]]) == "[nan, inf, -inf]"
    assert run(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["variables"]
    assert found["l2"] == {"upto": [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, "Infinity"], "counts": [0] * 7 + [1, 0]}


def test_no_argument_is_ignored(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=1)
        table.upsert(np.arange(10), np.zeros((10, 1), np.float32))
        store.checkpoint(tmp_path / "1")
        table.remove([1, 5, 6])
        table.upsert([2, 7], np.ones((2, 1), np.float32))
        store.checkpoint(tmp_path / "2")
    for arguments in ({"partitions": 4}, {"jobs": 2}):
        with pytest.raises(BadInput, match="leave them out with --since"):
            export(tmp_path / "2", tmp_path / "o.parquet", since=tmp_path / "1", **arguments)
        with pytest.raises(BadInput, match="and with a pipe"):
            export(tmp_path / "2", io.BytesIO(), format="csv", **arguments)
    done = export(tmp_path / "2", tmp_path / "o.parquet", since=tmp_path / "1", where="key in 0..2")
    assert (done.rows, done.removed) == (1, 1)
    assert np.load(tmp_path / "o.removed.npy").tolist() == [1]
    with pytest.raises(BadInput, match="has no optimizer already; leave --optimizer out"):
        plan(tmp_path / "2", tmp_path / "out", optimizer="none")
    with pytest.raises(BadInput, match="has the policy none already"):
        plan(tmp_path / "2", tmp_path / "out", policy="none")


def test_a_store_that_appeared_since_the_plan_is_left_alone(tmp_path):
    make(tmp_path / "store", [1], np.zeros((1, 2), np.float32))
    found = plan(tmp_path / "store", tmp_path / "out", dim=3)
    with kvemb.open(tmp_path / "out", memory_budget=BUDGET) as other:
        other.get_variable("mine").upsert([1], [[1.0]])
        with pytest.raises(FileExistsError, match="exists"):
            migrate(found)
        with pytest.raises((FileExistsError, Locked)):
            kvemb.repair(tmp_path / "store", tmp_path / "out")
    assert rows_of(tmp_path / "out", "mine")[0] == [1]


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


@pytest.mark.parametrize(
    ("name", "text", "arguments", "line"),
    [
        ("v.csv", "key,value_0\n1,2\n", ["--value-dtype", "foo"], "--value-dtype must be one of float32"),
        ("v.w2v", "1 1\n99999999999999999999 1\n", [], "has a key that does not fit int64"),
        ("v.w2v", "1 1\n7 1e39\n", [], "key 7 has the number 1e+39, too large for float32"),
        ("v.w2v", "1 1\n5000000000 1\n", ["--key-dtype", "int32"], "has a key that does not fit int32"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, name, text, arguments, line):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    assert run(["import", name, "new", *arguments]) == (2 if "foo" in arguments else 1)
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1
    assert not Path("new").exists()


@pytest.mark.parametrize("about", [[], {"name": 5}, {"whole": True}, "{", b"\xff\xfe\x00{"])
def test_a_description_that_cannot_be_is_one_line(tmp_path, capsys, about):
    make(tmp_path / "store", [1], np.zeros((1, 1), np.float32))
    export(tmp_path / "store", tmp_path / "out.npy")
    text = about if isinstance(about, (str, bytes)) else json.dumps(about)
    (tmp_path / "out.npy" / "about.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert run(["import", str(tmp_path / "out.npy"), str(tmp_path / "new")]) == 1
    told = capsys.readouterr().err
    assert "about.json has metadata that cannot be read" in told
    assert told.count("\n") == 1


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


def test_a_key_may_be_negative(tmp_path, capsys):
    make(tmp_path / "store", [-5], np.ones((1, 1), np.float32))
    assert run(["peek", str(tmp_path / "store"), "table", "-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["key"] == -5


def test_who_reads_a_store_that_was_not_closed_is_told(tmp_path, caplog, capsys):
    store = kvemb.open(tmp_path / "live", memory_budget=BUDGET, durability="write")
    table = store.get_variable("table", dim=1)
    store.flush()
    table.upsert([1], [[1.0]])
    copy_of_open(tmp_path / "live", tmp_path / "left")
    with kvemb.open(tmp_path / "live", read_only=True, memory_budget=BUDGET):
        assert caplog.messages == [], "its owner is at work"
    store.close()
    for read in (lambda: rows_of(tmp_path / "left"), lambda: run(["info", str(tmp_path / "left")])):
        caplog.clear()
        read()
        assert "was not closed; this is its durable point of" in caplog.messages[0]
    with kvemb.open(tmp_path / "left", memory_budget=BUDGET) as opened:
        assert opened.variables["table"].size() == 1
        with pytest.raises(KeyError, match="there is no variable 'tabel'; there is table"):
            opened.variables["tabel"]
    capsys.readouterr()


@pytest.mark.slow
def test_rows_that_became_nan_stand_first_among_those_that_moved_max_and_hide_no_other(tmp_path):
    rows = np.full((40, 1), 1.5, np.float32)
    rows[[5, 30], 0], rows[31:34, 0], rows[39, 0], rows[38, 0] = np.nan, [1000, 2000, 3000], 9000, np.inf
    make(tmp_path / "a", np.arange(40), np.ones((40, 1), np.float32))
    make(tmp_path / "b", np.arange(40), rows)
    for one, other in (("a", "b"), ("b", "a")):
        for top in range(9):
            # Several batches, each with rows to be named.
            (found,) = diff(tmp_path / one, tmp_path / other, top=top, batch_rows=7)
            assert [each.key for each in found.most] == [5, 30, 38, 39, 33, 32, 31, 0, 1][:top]


def test_how_far_great_and_tiny_rows_moved(tmp_path):
    make(tmp_path / "a", [1, 2, 3], np.array([[1e200, 1e200], [1e-200, 1e-200], [1, 1]]))
    make(tmp_path / "b", [1, 2, 3], np.array([[1e200, 2e200], [1e-200, 3e-200], [1, 1]]))
    (found,) = diff(tmp_path / "a", tmp_path / "b")
    assert [each.key for each in found.most] == [1, 2]
    np.testing.assert_allclose([each.l2 for each in found.most], [1e200, 2e-200], rtol=1e-12)
    np.testing.assert_allclose([each.cosine for each in found.most], [3 / np.sqrt(10), 4 / np.sqrt(20)])
    assert found.l2.counts == [0] * 7 + [1, 1]


def test_the_table_of_a_diff_has_no_heading_of_nothing(tmp_path, capsys):
    make(tmp_path / "a", [1], np.ones((1, 1), np.float32))
    make(tmp_path / "b", [1], np.full((1, 1), 2, np.float32))
    assert run(["diff", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    told = capsys.readouterr().out
    assert "no difference; " in told
    assert "added" not in told
    assert "moved" not in told
    assert run(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    told = capsys.readouterr().out
    assert "1 changed; " in told
    assert "removed" not in told
    assert "1 moved; " in told
    assert "moved most:" in told


def test_a_row_with_a_nan_or_an_infinity_has_no_direction(tmp_path):
    rows = np.array([[3, 4], [np.nan, 1], [np.inf, 1], [0, 0], [4, 3]], np.float32)
    make(tmp_path / "store", np.arange(5), rows)
    export(tmp_path / "store", tmp_path / "unit.npy", normalize=True)
    nan = np.nan
    expected = [[0.6, 0.8], [nan, nan], [nan, nan], [0, 0], [0.8, 0.6]]
    np.testing.assert_allclose(np.load(tmp_path / "unit.npy" / "value.npy"), expected, rtol=1e-6)
    with pytest.raises(BadInput, match="the row of key 1 has a NaN or an infinity"):
        export(tmp_path / "store", tmp_path / "int8.npy", normalize=True, dtype="int8")
    found = peek(tmp_path / "store", neighbours=4).neighbours
    assert [key for key, _ in found[0]] == [4, 3]
    assert found[1] == found[2] == []


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("key,value_0,value_7", r"has the column 'value_0' but no 'value_1'; number a list's columns from 0"),
        ("key,value_1,value_2", r"has the column 'value_1' but no 'value_0'"),
        ("key,value,value_0", r"has the column 'value_0' and 'value' too"),
        ("key,value_0,value_0", r"has the column 'value_0' twice; rename one"),
        ("key,key,value_0", r"has the column 'key' twice"),
        ("key_0,value_0,value_1", r"has the column 'key_0'; a key is one number"),
        ("key,value_0,score_0", r"has the column 'score_0'; a score is one number"),
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


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("doubled", ["key", "value", "other"])
def test_a_column_that_is_there_twice_is_refused_where_it_is_needed(tmp_path, format, doubled):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"key": pa.array([1]), "value": pa.array([[2.0]]), "other": pa.array([3])}
    table = pa.table([*columns.values(), columns[doubled]], names=[*columns, doubled])
    out = tmp_path / f"out.{format}"
    if format == "parquet":
        pq.write_table(table, out)
    else:
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    if doubled == "other":
        assert import_table(out, tmp_path / "new").added == 1
        return
    with pytest.raises(BadInput, match=f"has the column '{doubled}' twice"):
        import_table(out, tmp_path / "new")


@pytest.mark.slow
def test_bfloat16_of_others_is_known_in_a_fresh_process(tmp_path):
    make(tmp_path / "store", [1, 2], np.array([[1.5], [-2]], np.float32))
    export(tmp_path / "store", tmp_path / "out", format="tfra", dtype="bfloat16")
    arguments = [str(tmp_path / "out"), str(tmp_path / "new"), "--format", "tfra", "--value-dtype", "bfloat16"]
    code = f"import sys; from kvemb.tools.cli import run; sys.exit(run(['import', *{arguments!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_of(tmp_path / "new")[1].astype(float).tolist() == [[1.5], [-2]]


@pytest.mark.parametrize("header", [b"{'descr': '<i8', 'shape': (", b"'''", b"{" * 100, b"PK\x03\x04", b""])
def test_an_array_file_that_is_damaged_is_one_line(tmp_path, capsys, header):
    make(tmp_path / "store", [1], np.zeros((1, 1), np.float32))
    export(tmp_path / "store", tmp_path / "out.npy")
    file = tmp_path / "out.npy" / "key.npy"
    content = file.read_bytes()
    file.write_bytes(content[:10] + header.ljust(118) + content[128:] if header else b"")
    assert run(["import", str(tmp_path / "out.npy"), str(tmp_path / "new")]) == 1
    told = capsys.readouterr().err
    assert "key.npy cannot be read" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("condition", ["key in 1..{}", "key >= {}", "step < {}"])
def test_a_condition_with_a_number_without_end_is_one_line(tmp_path, capsys, condition):
    make(tmp_path / "store", [1], np.zeros((1, 1), np.float32))
    where = condition.format("9" * 5000)
    assert run(["export", str(tmp_path / "store"), str(tmp_path / "out.csv"), "--where", where]) != 0
    told = capsys.readouterr().err
    assert "is not a condition; write for example" in told
    assert len(told) < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "dtype", "to"),
    [
        *((1e6, "float32", "float16"), (-1e6, "float32", "float16"), (1e300, "float64", "float32")),
        *((1e38, "bfloat16", "float16"), (3.4e38, "float32", "bfloat16"), (10**6, "int32", "float16")),
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


def test_where_a_series_is_named_commands_that_write_say_what_to_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(Path("other"), [1], np.zeros((1, 1), np.float32))
    export("other", "rows.npy")
    with kvemb.open("store", memory_budget=BUDGET) as store, kvemb.CheckpointManager("series") as manager:
        store.get_variable("table", dim=1).upsert([1], [[1.0]])
        manager.save(store)
    for arguments in (
        *(["compact", "series"], ["repair", "series", "out"], ["restrict", "series", "5"]),
        *(["migrate", "series", "out", "--dim", "2"], ["import", "rows.npy", "series"]),
    ):
        assert run(arguments) == 1, arguments
        told = capsys.readouterr().err
        assert re.search("series is a series of checkpoints: name one, such as .*series/00000001", told)
        assert told.count("\n") == 1
    with pytest.raises(FileNotFoundError, match="name one, such as series/00000001"):
        kvemb.Checkpoint("series")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "rows.npy", "series", "store"]


def test_advice_is_for_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with kvemb.open("store", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=1).upsert([1], [[1.0]])
        store.get_variable("other", dim=1)
        store.checkpoint("checkpoint")
        export("checkpoint", "out.npy", variable="table")
        assert run(["compact", "store"]) == 3
        told = capsys.readouterr().err
        assert "stop the process that has it open" in told
        assert "read_only" not in told
    make(Path("empty"), [], np.empty((0, 1), np.float32), name="x")
    for arguments, code, line in (
        (["import", "out.npy", "checkpoint"], 1, "checkpoint is a checkpoint, which never changes; make a store of it"),
        (["import", "out.npy", "store"], 1, "key 1 is in 'table' already; give --on-conflict replace, or keep"),
        (["peek", "store"], 2, "store has the variables other, table; name one: kvemb peek store other"),
        (["stats", "store"], 2, "name one: kvemb stats store other"),
        (["export", "store", "o.csv"], 2, "name one: --variable other"),
        (
            ["diff", "store", "checkpoint", "--variable", "no"],
            1,
            "store and checkpoint have no variable 'no'; they have other, table",
        ),
        (["stats", "--frob"], 2, "(see kvemb stats --help)"),
        (["frob"], 2, "(see kvemb --help)"),
        (["export", "store", "o.xyz"], 2, "hugectr, tfra, dynamicemb, word2vec, word2vec-binary\n"),
        (["export", "empty", "o.csv", "--variable", "y"], 1, "empty has no variable 'y'; it has x"),
        (["push", "empty", "foo://x"], 1, "empty is a store, not a series of checkpoints"),
    ):
        assert run(arguments) == code, arguments
        told = capsys.readouterr().err
        assert line in told
        assert told.count("\n") == 1
    assert run(["export", "--help"]) == 0
    assert "torch" not in capsys.readouterr().out


def test_only_what_was_begun_can_be_gone_on_with(tmp_path, capsys):
    pytest.importorskip("fsspec")
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=1).upsert([1], [[1.0]])
        with kvemb.CheckpointManager(tmp_path / "series") as manager:
            manager.save(store)
    series = kvemb.CheckpointManager(tmp_path / "series")
    for call in (series.push, series.pull):
        with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
            call("memory://nothing/here", jobs=0)
    for arguments in (["push", str(tmp_path / "series"), "foo://x"], ["pull", "foo://x", str(tmp_path / "new")]):
        assert run(arguments) == 1
        told = capsys.readouterr().err
        assert "Protocol not known: foo" in told
        assert "go on" not in told


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
        assert run(["import", source, new, "--on-conflict", "keep", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["made"] is None


@pytest.mark.slow
@pytest.mark.parametrize("command", ["export store - --format csv", "export store - --format arrow", "ls many"])
def test_a_reader_that_goes_away_is_no_failure_of_the_input(tmp_path, command):
    make(tmp_path / "store", np.arange(100_000), np.ones((100_000, 2), np.float32))
    with kvemb.open(tmp_path / "many", memory_budget="32MiB") as store:
        for at in range(20 if command == "ls many" else 1):
            store.get_variable(f"variable {at}", dim=1)
    code = "import sys; from kvemb.tools import main; main()"
    # It reads nothing: what is written meets a pipe that is closed.
    line = f"{sys.executable} -c '{code}' {command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "arguments",
    [
        *(["report", "URL"], ["repair", "store", "URL"], ["restore", "store", "URL"]),
        *(["migrate", "store", "URL"], ["import", "in.npy", "URL"]),
        *(["push", "URL", "there"], ["pull", "there", "URL"], ["compact", "URL"], ["restrict", "URL", "5"]),
        *(["demo", "--dir", "URL"], ["demo", "--triples", "URL"]),
    ],
    ids=" ".join,
)
def test_a_url_where_only_a_path_can_be_is_refused_as_it_was_written(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert run([part.replace("URL", "s3://bucket/x") for part in arguments]) == 2
    told = capsys.readouterr().err
    assert "s3://bucket/x is a URL, and this must be on this machine" in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_not_imported_to_a_url(tmp_path):
    make(tmp_path / "store", [1], np.ones((1, 1), np.float32))
    export(tmp_path / "store", tmp_path / "out.npy")
    with pytest.raises(BadInput, match="memory://bucket/new is a URL, and a store is a directory on this machine"):
        import_table(tmp_path / "out.npy", "memory://bucket/new")


def test_a_url_that_is_written_to_is_told_as_it_was_given(tmp_path, monkeypatch, capsys):
    pytest.importorskip("fsspec")
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        make(tmp_path / name, [1], np.full((1, 1), len(name), np.float32))
    url = f"memory://{tmp_path.name}/"
    for arguments, out in (
        (["report", "one", "--out"], f"{url}page.html"),
        (["export", "one"], f"{url}out.csv"),
        (["diff", "one", "two", "--format", "parquet", "--out"], f"{url}diff.parquet"),
    ):
        for place, options in ((out, []), (f"{out}.json", ["--json"])):
            if arguments[0] == "diff" and options:
                continue  # which tells no place
            options += ["--format", "csv"] if arguments[0] == "export" else []
            assert run([*arguments, place, *options]) == 0
            assert place in capsys.readouterr().out.replace("\n", ""), arguments


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    mark = b"\xef\xbb\xbf"
    for name, text in (("v.csv", b"key,value_0\n7,0.5\n"), ("v.w2v", b"1 1\n7 0.5\n")):
        (tmp_path / name).write_bytes(mark + text)
        import_table(tmp_path / name, tmp_path / "new", variable=name)
        assert (rows_of(tmp_path / "new", name)[0], rows_of(tmp_path / "new", name)[1].tolist()) == ([7], [[0.5]])
    from kvemb.tools.demos.triple_files import read_triples

    (tmp_path / "graph.txt").write_bytes(mark + b"a\tb\tc\n")
    assert read_triples(tmp_path / "graph.txt") == [("a", "b", "c")]
