"""Manifests: what is read equals what was written; damage and other versions are reported."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import hostile
import pytest

import kvemb
from kvemb.checks.ranges import END_OF_TIME
from kvemb.durability import manifest
from kvemb.durability.admission_counters.counter_file import CounterFile
from kvemb.durability.manifest import Epoch, EpochChanges, FileEntry, HotRows, Manifest
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.rows.schema import SlotShape

ENTRY = VariableEntry(
    key_dtype="uint64",
    value_dtype="float16",
    dim=3,
    slots=(SlotShape("accumulator", 3),),
    initializer={"kind": "constant", "value": 0.1},
    optimizer={"name": "adagrad", "learning_rate": 5e-324},
    policy=None,
    creator={"block_bytes": 4096, "compression": ["none", "zstd"]},
    trainable=True,
    checkpoint=False,
    bp_v2=True,
    rows=2**40,
    step=7,
)
EXAMPLE = Manifest(
    store="c0ffee" + 26 * "0",
    id="beef" + 28 * "0",
    parent=None,
    point=12,
    created=1763.25,
    variables={"users": ENTRY, "übers/ads": replace(ENTRY, dim=9, slots=(SlotShape("accumulator", 9),))},
    hot={"users": ["000001-000.keys"]},
    sightings={"users": CounterFile("000009-000.counts", 1 << 20, 123_456)},
    changes=[
        Epoch("c0ffee" + 26 * "0", {"users": EpochChanges(cleared=True, files=["000007.keys"])}),
        Epoch("decaf" + 27 * "0", includes=[]),
    ],
    files={
        "rows/000012.sst": FileEntry(3, "ab" * 32),
        "changes/000007.keys": FileEntry(90, "cd" * 32),
        "hot/000001-000.keys": FileEntry(80, "ef" * 32),
        "sightings/000009-000.counts": FileEntry(800, "23" * 32),
        "files/model.pt": FileEntry(7, "01" * 32),
    },
    left_out=["old"],
    tiers={"users": {"gpu:0": HotRows(2, 300), "host": HotRows(0, 0)}},
    extra={"step": 7, "loss": [0.25, None], "from": {"run": "übers"}},
)


def test_a_manifest_comes_back_as_it_was(tmp_path):
    manifest.write(EXAMPLE, tmp_path)
    assert manifest.read(tmp_path) == EXAMPLE
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]
    assert EXAMPLE.variables["users"].schema.slots == (SlotShape("accumulator", 3),)
    assert EXAMPLE.variables["users"].schema.row_words == 3


def test_a_missing_manifest_is_no_checkpoint(tmp_path):
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointNotFound, match=r"manifest\.json"):
            manifest.read(place)


@pytest.mark.parametrize("version", [1, 4, 6, 8, 0, "1", None, 1.5])
def test_another_format_is_refused_by_name(tmp_path, version):
    manifest.write(EXAMPLE, tmp_path)
    data = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({"format": version, "whatever": data}))
    with pytest.raises(
        UnsupportedFormat, match=rf"manifest\.json has format {version!r}, this kvemb reads formats 2, 3, 5"
    ):
        manifest.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"text"', "{}", '{"format": 2}', '{"format": 3}', '{"format": 5}', "\xff\xfe"],
    ids=repr,
)
def test_damaged_text_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(Corruption, match=r"manifest\.json is damaged"):
        manifest.read(tmp_path)


USERS = ("variables", "users")
BENT = [
    *(((name,), hostile.MISSING, f"{name} is missing") for name in ("store", "parent", "variables", "hot", "files")),
    (("more",), 1, "more is not a field that this kvemb knows"),
    (("id",), "C0FFEE" + 26 * "0", "id must be 32 hexadecimal digits"),
    (("parent",), "", "parent must be 32 hexadecimal digits"),
    (("point",), 0, "point must be an int from 1"),
    (("created",), float("nan"), "created must be a number from 0"),
    (("variables",), [], "variables must be an object"),
    (("variables", "a//b"), {}, "variables must have variables' names as fields, got 'a//b'"),
    (USERS, 3, "variables.users must be an object"),
    ((*USERS, "dim"), "3", "users.dim must be an int from 1"),
    ((*USERS, "dim"), hostile.MISSING, "users.dim is missing"),
    ((*USERS, "key_dtype"), "int7", "users.key_dtype must be one of int64, int32, uint64"),
    ((*USERS, "value_dtype"), [], "users.value_dtype must be one of float32"),
    ((*USERS, "slots"), [{"name": "accumulator", "width": 2**40}], r"users.slots\[0\].width must be an int from 1"),
    ((*USERS, "slots"), ["accumulator"], r"slots\[0\] must be an object"),
    ((*USERS, "slots"), [], "variables.users.slots must be those of the optimizer"),
    ((*USERS, "trainable"), 1, "users.trainable must be true or false"),
    ((*USERS, "more"), 1, "users.more is not a field"),
    (("hot", "default"), [], "hot must have variables' names"),
    (("hot", "users"), ["1.keys"], r"hot.users\[0\] must be a name such as '000007-000\.keys', got '1\.keys'"),
    (("tiers", "a//b"), {}, "tiers must have variables' names as fields, got 'a//b'"),
    (("tiers", "users", "cpu"), {}, r"'host' or names such as 'gpu:0' as fields, got 'cpu'"),
    (("tiers", "users", "host", "rows"), -1, r"host\.rows must be an int from 0"),
    (("tiers", "users", "gpu:0", "bytes"), 0.5, r"bytes must be an int from 0"),
    (("sightings", "users", "file"), "../7-0.counts", r"file must be a name such as '000007-000\.counts'"),
    (("sightings", "users", "counters"), 0, "counters must be an int from 4"),
    (("sightings", "users", "counters"), 1023, "counters must be a multiple of 4, got 1023"),
    (("sightings", "users", "counted"), -1, "counted must be an int from 0"),
    (("changes",), [], "changes must be an array of 1 to"),
    (("changes", 0, "since"), "x", r"changes\[0\]\.since must be"),
    (("changes", 0, "variables", "users", "files"), ["../1.keys"], r"files\[0\] must be a name such as '000007\.keys'"),
    (("changes", 0, "variables", "users", "dropped"), 1, "dropped must be true or false, got 1"),
    (("changes", 0, "includes"), ["x"], r"changes\[0\]\.includes\[0\] must be"),
    (("changes", 0, "includes"), None, r"changes\[0\]\.includes must be an array"),
    (("files", "../x"), {}, "files must have paths below the directory as fields"),
    (("files", "rows/000012.sst", "bytes"), -1, "bytes must be an int from 0"),
    (("files", "rows/000012.sst", "sha256"), "ab", "sha256 must be 64 hexadecimal digits"),
    (("files",), {}, "it names .* but does not list it in files"),
    (("left_out",), [".."], r"left_out\[0\] must be variables' names"),
    (("extra",), [1], "extra must be an object"),
]


@pytest.mark.parametrize(("path", "value", "message"), BENT)
def test_a_damaged_field_is_named_though_its_checksum_fits(path, value, message):
    data = hostile.changed(json.loads(manifest.text_of(manifest.data_of(EXAMPLE))), path, value)
    with pytest.raises(Corruption, match=f"^there is damaged: .*{message}.*; restore from another checkpoint"):
        manifest.parse(hostile.signed(data), "there")


@pytest.mark.parametrize("name", ["initializer", "optimizer", "policy", "creator"])
def test_a_kind_that_is_not_known_is_of_another_version(name):
    data = json.loads(manifest.text_of(manifest.data_of(EXAMPLE)))
    data["variables"]["users"][name] = {"kind": "new", "name": "new"}
    with pytest.raises(UnsupportedFormat, match=rf"^there: variables\.users\.{name}: "):
        manifest.parse(hostile.signed(data), "there")


def test_before_format_5_nothing_is_attached_and_no_steps_are_counted():
    data = json.loads(manifest.text_of(manifest.data_of(EXAMPLE)))
    data["format"] = 3
    for field in ("extra", "sightings", "tiers"):
        with pytest.raises(Corruption, match=f"{field} is not a field that this kvemb knows"):
            manifest.parse(hostile.signed(data), "there")
        del data[field]
    del data["files"]["sightings/000009-000.counts"]
    with pytest.raises(Corruption, match=r"lists 'files/model\.pt', which is no file of a checkpoint"):
        manifest.parse(hostile.signed(data), "there")
    del data["files"]["files/model.pt"]
    manifest.parse(hostile.signed(data), "there")
    for field in ("ages", "max_rows", "optimizer_steps", "ttl"):
        data["variables"]["users"][field] = 1
        with pytest.raises(Corruption, match=f"{field} is not a field that this kvemb knows"):
            manifest.parse(hostile.signed(data), "there")
        del data["variables"]["users"][field]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("slots", "accumulator", "slots must be an array"), ("dim", hostile.MISSING, "dim is missing")],
)
def test_of_format_2_too_a_damaged_field_is_named(field, value, message):
    data = json.loads(manifest.text_of(manifest.data_of(EXAMPLE)))
    data = {name: data[name] for name in data if name not in ("extra", "sightings", "tiers")} | {"format": 2}
    for name in ("sightings/000009-000.counts", "files/model.pt"):
        del data["files"][name]
    for entry in data["variables"].values():
        entry["slots"] = ["accumulator"]
    manifest.parse(hostile.signed(data), "there")
    with pytest.raises(Corruption, match=f"variables.users.{message}"):
        manifest.parse(hostile.signed(hostile.changed(data, (*USERS, field), value)), "there")


@pytest.mark.slow
def test_every_flipped_bit_is_named_or_changes_nothing(tmp_path):
    manifest.write(EXAMPLE, tmp_path)
    path = tmp_path / "manifest.json"
    sound = path.read_bytes()
    for at in range(len(sound)):
        for bit in (0, 5):
            damaged = bytearray(sound)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert manifest.read(tmp_path) == EXAMPLE
            except (Corruption, UnsupportedFormat) as error:
                assert "manifest.json" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("clock", "created"), [(-86_400.5, 0.0), (0.0, 0.0), (1e9 + 0.5, 1e9 + 0.5), (1e12, END_OF_TIME - 1.0)]
)
def test_a_clock_that_is_wrong_makes_no_manifest_that_cannot_be_read(tmp_path, monkeypatch, clock, created):
    """A flush before 1970 wrote a point that no opening accepted."""
    monkeypatch.setattr(time, "time", lambda: clock)
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        store.get_variable("users", dim=2).upsert([1], [[1.0, 2.0]])
        store.checkpoint(tmp_path / "checkpoint")
    kvemb.repair(tmp_path / "checkpoint", tmp_path / "repaired")
    for path in ("store", "repaired"):
        with kvemb.open(tmp_path / path, memory_budget="4MiB") as store:
            assert store.variables["users"].lookup([1]).tolist() == [[1, 2]]
        assert kvemb.Checkpoint.at(tmp_path / path).created == created


@pytest.mark.parametrize(
    ("text", "told"), [("{}\n", "it has no format"), ("[]\n", "it is no JSON object"), ("{", "Expecting property name")]
)
def test_what_is_no_manifest_says_what_it_lacks(text, told):
    with pytest.raises(Corruption, match=f"somewhere is damaged: {told}"):
        manifest.parse(text, "somewhere")
