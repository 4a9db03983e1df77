"""Manifests: what is read equals what was written; damage and other versions are reported."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvemb.durability import manifest
from kvemb.durability.manifest import Epoch, EpochChanges, FileEntry, Manifest, VariableEntry
from kvemb.durability.sightings.counter_file import Counted
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
    sightings={"users": Counted("000009-000.counts", 1 << 20, 123_456)},
    changes=[
        Epoch("c0ffee" + 26 * "0", {"users": EpochChanges(cleared=True, files=["000007.keys"])}),
        Epoch("decaf" + 27 * "0"),
    ],
    files={
        "rows/000012.sst": FileEntry(3, "ab" * 32),
        "changes/000007.keys": FileEntry(90, "cd" * 32),
        "hot/000001-000.keys": FileEntry(80, "ef" * 32),
        "sightings/000009-000.counts": FileEntry(800, "23" * 32),
        "files/model.pt": FileEntry(7, "01" * 32),
    },
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


def change(data, path, value):
    for part in path[:-1]:
        data = data[part]
    if value is None:
        del data[path[-1]]
    else:
        data[path[-1]] = value


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"text"', "{}", '{"format": 2}', '{"format": 3}', '{"format": 5}', "\xff\xfe"],
    ids=repr,
)
def test_damaged_text_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(Corruption, match=r"manifest\.json is damaged"):
        manifest.read(tmp_path)


FIELDS = [
    *((("store",), None), (("point",), None), (("point",), 13), (("id",), "bee"), (("files",), {})),
    *((("variables",), None), (("variables",), []), (("variables", "users"), 3), (("checksum",), None)),
    (("extra",), []),
]
ENTRY_FIELDS = {
    "dim": [None, "3", 0, 1.0],
    "slots": [
        *(3, [3], [], None, ["accumulator"], [{"name": "accumulator"}], [{"name": "accumulator", "width": 3, "x": 1}]),
        *([{"name": "accumulator", "width": width}] for width in (0, -1, 4, 3.0, True, None, "3", 2**40)),
        *([{"name": name, "width": 3}] for name in ("", "m", 3, None, "a b", "x" * 200)),
        [{"name": "accumulator", "width": 3}] * 2,
    ],
    "key_dtype": ["int7", None, 3],
    "value_dtype": ["complex64", []],
    "rows": [-1, 1.5],
    "step": ["0", -1, True],
    "initializer": ["zeros", None],
    "creator": [[]],
    "optimizer": ["sgd"],
    "policy": [7],
    "trainable": [1],
    "more": [1],
}


@pytest.mark.parametrize(
    ("path", "value"),
    [*FIELDS, *((("variables", "users", name), value) for name, values in ENTRY_FIELDS.items() for value in values)],
    ids=repr,
)
def test_a_damaged_field_is_named(tmp_path, path, value):
    """With a checksum that fits, too: a field says itself what it cannot be."""
    for fitting in (False, True):
        manifest.write(EXAMPLE, tmp_path)
        data = json.loads((tmp_path / "manifest.json").read_text())
        change(data, path, value)
        if fitting and len(path) == 3:
            rest = {name: field for name, field in data.items() if name != "checksum"}
            data["checksum"] = manifest.checksum_of(rest)
        (tmp_path / "manifest.json").write_text(json.dumps(data))
        with pytest.raises(Corruption, match=r"manifest\.json is damaged: .+; restore from another checkpoint"):
            manifest.read(tmp_path)


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
