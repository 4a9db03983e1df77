"""Bad input of each command is one line on stderr and the documented exit code; nothing is made, changed or left."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.tools.cli import run
from kvemb.tools.formats.known import names

pytest.importorskip("pyarrow")
BUDGET = "8MiB"
ENDLESS = "9" * 5000
ADVICE = "; a variable is named with --variable NAME (see kvemb {} --help)\n"
CASES = {
    "demo": [
        ("--dir full", 1, "not empty"),
        ("--budget plenty", 1, "memory_budget must be text"),
        ("--budget 1KiB", 1, "memory_budget must be at least"),
        ("--dlrm --clicks 100", 2, "--clicks cannot be used with --dlrm"),
        ("--kill-at 3", 2, "--kill-at can only be used with --dlrm"),
        ("--dlrm --steps 5 --kill-at 5", 2, "--kill-at must be less than the 5 steps, got 5"),
        ("--dim 0", 2, "--dim"),
        ("--frob", 2, "--frob"),
        ("--dir s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "export": [
        ("nowhere o.parquet", 1, "nowhere does not exist"),
        ("store o.what", 2, "the ending of o.what names no format; give --format"),
        ("store o.xyz", 2, f"give --format, one of {names(written=True)}\n"),
        ("store o.x --format what", 2, "there is no format 'what'"),
        ("store o.pt", 2, "torch can be imported, not exported"),
        ("store o.parquet --variable x", 1, "store has no variable 'x'; it has table"),
        ("two o.csv", 2, "two has the variables items, users; name one: --variable items, or give --all\n"),
        ("two o.csv --all", 2, "--all writes a folder of files; give --format, one of "),
        ("two - --all --format csv", 2, "--all writes a folder, but a pipe takes one table; name a folder"),
        ("two o --all --format csv --variable users", 2, "--all takes all variables, --variable one of them"),
        ("empty o.csv --variable y", 1, "empty has no variable 'y'; it has x"),
        ("store o.parquet --where score>", 2, "--where 'score>' is not a condition"),
        ("store o.parquet --where name=1", 2, "is not a condition; write for example"),
        *(
            (f"store o.csv --where {condition}", 2, "is not a condition; write for example")
            for condition in (f"step<{ENDLESS}", f"key>={ENDLESS}", "score>=nan", "step<1e400", "key==inf", "step<x")
        ),
        ("store o.csv --since store", 1, "store is a store, not a checkpoint"),
        ("store there", 2, "the ending of there names no format"),
        ("store o.csv.gz", 2, "exports are not compressed; export to o.csv, and compress that"),
        ("store there --format csv", 1, "there exists; name a new file"),
        ("store - --format parquet", 1, "parquet cannot be written to a pipe"),
        ("store o.w2v --with-scores", 1, "word2vec cannot hold the column 'score'"),
        ("store o.model --dtype float16", 1, "hugectr holds float32 values, these are float16"),
        ("store o.npy --partitions 2", 1, "the output of npy is one folder and cannot be split"),
        ("checkpoint users out.csv", 2, ADVICE.format("export")),
    ],
    "import": [
        ("nowhere.parquet new", 1, "nowhere.parquet does not exist"),
        *((f"there new --format {name}", 1, "there cannot be read") for name in ("parquet", "arrow", "safetensors")),
        *((f"there new --format {name}", 1, "is not a word2vec file") for name in ("word2vec", "word2vec-binary")),
        *((f"there new --format {name}", 1, "there has no table in the files of") for name in ("tfra", "dynamicemb")),
        ("there new --format csv", 1, "there has no column 'key'"),
        ("there new --format npy", 1, "there cannot be read: it does not begin as a .npy file does"),
        ("there new --format hugectr", 1, "there/key is missing"),
        *((f"odd.w2v {store}", 1, "the key 'king' is not an integer") for store in ("new", "store")),
        ("cut.w2v.bin new", 1, "is truncated: 1 of 2 rows are missing"),
        ("short.w2v new", 1, "has 1 rows, but its first line says 2"),
        ("far.w2v new", 1, "does not fit int64; give another --key-dtype"),
        ("great.w2v new", 1, "key 7 has the number 1e+39, too large for float32"),
        ("five.w2v new --key-dtype int32", 1, "does not fit int32; give another --key-dtype"),
        ("wide.csv store --variable table", 1, "the source has rows of 2 values"),
        ("wide.csv new --value-dtype foo", 2, "--value-dtype must be one of float32"),
        ("half.csv new", 1, "half.csv, line 2, column 'value_0': there is no number"),
        ("big.csv new --key-dtype int32", 1, "the key 1099511627776 does not fit int32"),
        ("three.csv store --variable table", 1, "key 1 is in 'table' already; set on_conflict to replace or to keep"),
        ("three.csv checkpoint", 1, "checkpoint is a checkpoint, not a store; restore it to another path"),
        ("three.csv series", 1, "series is a series of checkpoints: name one, such as "),
        ("three.csv s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "migrate": [
        ("store out --dim 3 --yes", 2, "nothing to change in variable 'table'"),
        ("a b users", 2, ADVICE.format("migrate")),
        ("nowhere out --dim 2", 1, "nowhere does not exist"),
        ("series out --dim 2", 1, "series is a series of checkpoints: name one, such as "),
        ("store s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "compact": [
        ("nowhere", 1, "nowhere does not exist"),
        ("checkpoint", 1, "is a checkpoint, not a store; restore it to another path"),
        (".", 1, "PLACE is a directory, but neither a checkpoint nor a store"),
        ("series", 1, "series is a series of checkpoints: name one, such as "),
        ("s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "restrict": [
        ("nowhere 5", 1, "nowhere does not exist"),
        ("checkpoint 5", 1, "checkpoint is a checkpoint, not a store; restore it to another path"),
        ("series 5", 1, "series is a series of checkpoints: name one, such as "),
        ("store 5", 1, "--variable table --policy frequency"),
        ("store 5 users", 2, ADVICE.format("restrict")),
        ("s3://bucket/x 5", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "restore": [
        ("nowhere out", 1, "nowhere does not exist"),
        ("series/00000009 out", 1, "the series PLACE/series has no checkpoint 00000009; it has 00000001"),
        ("series/00000001 series/00000009", 1, "the series PLACE/series has no checkpoint 00000009; it has 00000001"),
        ("store out", 1, "store is a store, not a checkpoint; name a checkpoint"),
        ("series/00000001 two", 1, "two exists and is not empty; name a new directory to restore to"),
        ("series/00000001 out --variable ads", 2, "has no variable 'ads'; it has items, users"),
        ("store s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "verify": [
        ("nowhere", 1, "kvemb: PLACE/nowhere does not exist: there is no store and no checkpoint\n"),
        (".", 1, "kvemb: PLACE is a directory, but neither a checkpoint nor a store; it contains "),
    ],
    "repair": [
        ("nowhere out", 1, "kvemb: PLACE/nowhere does not exist: there is no store and no checkpoint\n"),
        ("series out", 1, "series is a series of checkpoints: name one, such as "),
        ("store s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "push": [
        ("nowhere url", 1, "kvemb: there is no checkpoint in PLACE/nowhere\n"),
        ("empty foo://x", 1, "empty is a store, not a series of checkpoints"),
        ("series foo://x", 1, "Protocol not known: foo"),
        ("s3://bucket/x there", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "pull": [
        ("nowhere new", 1, "kvemb: there is no checkpoint in nowhere\n"),
        ("foo://x new", 1, "Protocol not known: foo"),
        ("there s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "report": [
        ("nowhere page.html", 1, "nowhere does not exist"),
        ("s3://bucket/x", 2, "s3://bucket/x is a URL, but this must be a path on this machine"),
    ],
    "peek": [
        ("two", 2, "two has the variables items, users; name one: --variable items, or give --all\n"),
        ("two 1 --all", 2, "--all shows the first rows of every variable; with keys, name one: --variable NAME\n"),
        *((f"checkpoint {words}", 2, ADVICE.format("peek")) for words in ("users 17", "17 users")),
    ],
    "stats": [
        ("two", 2, "name one: --variable items, or give --all\n"),
        ("two --all --variable users", 2, "--all takes all variables, --variable one of them"),
        ("--frob", 2, "(see kvemb stats --help)"),
        ("checkpoint users", 2, ADVICE.format("stats")),
    ],
    "drop": [("store users", 2, "--variable")],
    "diff": [("two two --variable no", 1, "two and two have no variable 'no'; they have items, users")],
    "cluster": [
        ("status nowhere", 1, "there is no checkpoint of a cluster at"),
        ("reshard nowhere out --shards 2", 1, "there is no checkpoint of a cluster at"),
    ],
    "frob": [("", 2, "(see kvemb --help)")],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores, checkpoints, and files to import."""
    folder = tmp_path_factory.mktemp("place")
    with kvemb.open(folder / "store", memory_budget=BUDGET) as store:
        store.get_variable("table", dim=3).upsert(np.arange(20), np.ones((20, 3), np.float32))
        store.checkpoint(folder / "checkpoint")
    with kvemb.open(folder / "two", memory_budget=BUDGET) as store, kvemb.CheckpointManager(folder / "series") as made:
        for name in ("users", "items"):
            store.get_variable(name, dim=1).upsert([1], [[1.0]])
        made.save(store)
    with kvemb.open(folder / "empty", memory_budget=BUDGET) as store:
        store.get_variable("x", dim=1)
    for name, text in {
        "there": "what is this\n" * 40,
        "odd.w2v": "1 2\nking 1 2\n",
        "cut.w2v.bin": "2 1\n1 abcd2 ab",
        "short.w2v": "2 2\n1 1 2\n",
        "far.w2v": "1 1\n99999999999999999999 1\n",
        "great.w2v": "1 1\n7 1e39\n",
        "five.w2v": "1 1\n5000000000 1\n",
        "wide.csv": "key,value_0,value_1\n1,2,3\n",
        "three.csv": "key,value_0,value_1,value_2\n1,2,3,4\n",
        "half.csv": "key,value_0\n1,\n2,x\n",
        "big.csv": f"key,value_0\n{2**40},0.5\n",
    }.items():
        (folder / name).write_text(text)
    for name in ("full/mine", "tmp/mine"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("precious")
    return folder


def rows(folder: Path) -> list[list[int]]:
    with kvemb.open(folder / "store", read_only=True, memory_budget=BUDGET) as store:
        assert list(store.variables) == ["table"]
        return [*map(list, store.variables["table"].export())]


@pytest.mark.parametrize("command", CASES)
def test_bad_input_is_one_line_and_changes_nothing(place, monkeypatch, capsys, command):
    monkeypatch.chdir(place)
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    names, before = sorted(place.glob("*")), str(rows(place))
    for words, code, line in CASES[command]:
        assert run([command, *words.split()]) == code, words
        told = capsys.readouterr().err
        assert told.startswith("kvemb: ")
        assert line.replace("PLACE", str(place)) in told, words
        assert (told.count("\n"), len(told) < 500) == (1, True), told
        assert sorted(place.glob("*")) == names
    assert str(rows(place)) == before
    assert [path.name for name in ("full", "tmp") for path in (place / name).iterdir()] == ["mine"] * 2


def test_a_store_that_is_open_is_told_of(place, tmp_path, capsys):
    shutil.copytree(place / "store", tmp_path / "store")
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET):
        for command in ("compact", "verify"):
            assert run([command, str(tmp_path / "store")]) == 3
            told = capsys.readouterr().err
            assert "close it there" in told
            assert "=True" not in told


def test_a_series_is_no_checkpoint(place, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(FileNotFoundError, match=f"name one, such as {place}/series/00000001"):
        kvemb.Checkpoint("series")
