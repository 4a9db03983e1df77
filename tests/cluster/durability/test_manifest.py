"""The manifest of a cluster's checkpoint: it is read as it was written, and refused if anything is wrong with it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import hostile
import pytest

from kvemb.cluster.durability.manifest import (
    ClusterManifest,
    ShardEntry,
    following,
    id_of_part,
    joined,
    parse,
    ranges,
    text_of,
)
from kvemb.durability.manifest import checksum_of
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import Corruption, UnsupportedFormat


def entry(rows=3, step=5, optimizer_steps=0):
    return VariableEntry(
        "int64", "float32", 2, (), {"kind": "zeros"}, None, None, {"compression": "none"},
        True, True, False, rows, step, optimizer_steps,
    )  # fmt: skip


def described(shards=3, **variables):
    parts = tuple(ShardEntry(*each, os.urandom(16).hex()) for each in ranges(shards))
    ids = [os.urandom(16).hex() for _ in range(4)]
    return ClusterManifest(*ids[:2], 12.5, variables or {"towers/users": entry()}, parts, tuple(ids[2:]))


def changed(text, change):
    data = json.loads(text)
    del data["checksum"]
    change(data)
    return json.dumps({"checksum": checksum_of(data), **data})


@pytest.mark.parametrize("shards", [1, 3, 4096])
def test_what_is_written_is_read(shards):
    made = described(shards)
    assert parse(text_of(made).decode(), "here") == made


def test_values_beside_the_rows_and_calls_are_read():
    extra = {"step": 7, "loss": [0.5, None], "of": {"a": "b"}}
    made = replace(described(), extra=extra, calls={"0" * 32: [0], "f" * 32: [7, 7, 9, 2**62 - 1]})
    assert parse(text_of(made).decode(), "here") == made


def test_the_parts_of_a_variable_are_joined():
    assert joined([entry(1, 5, 2), entry(2, 7, 1)]) == entry(3, 7, 2)


def test_shards_are_found_by_their_buckets():
    made = described(4)
    assert made.overlapping(0, 4095) == list(made.shards)
    assert made.overlapping(1023, 1024) == list(made.shards[:2])
    assert made.overlapping(3072, 3072) == [made.shards[3]]


def test_a_checkpoint_follows_those_of_the_same_shards():
    first = described()
    assert following(None, first.shards) == ()
    assert following(first, described().shards) == ()
    assert following(first, first.shards) == (*first.follows, first.id)
    many = replace(first, follows=tuple(f"{number:032x}" for number in range(256)))
    assert following(many, first.shards) == (*many.follows[1:], first.id)


def test_the_identity_of_a_shards_checkpoint_is_as_specified():
    assert id_of_part("a" * 32, "b" * 32) == "fdd2a64d014f2c406d2ece67c23212a9"


CHANGES = {
    "extra": lambda data: data.update(extra=[1]),
    r"follows\[0\] must be": lambda data: data.update(follows=["../x"]),
    "buckets": lambda data: data.update(buckets=8192),
    r"buckets must be 4096, got 4096\.0": lambda data: data.update(buckets=4096.0),
    "shards must end": lambda data: data["shards"].pop(),
    r"shards\[0\] must begin": lambda data: data["shards"].reverse(),
    r"shards\[1\] must begin": lambda data: data["shards"][0].update(last=100),
    "different stores": lambda data: data["shards"][1].update(store=data["shards"][0]["store"]),
    r"shards\[0\].store must be 32": lambda data: data["shards"][0].update(store="../../etc"),
    "stay in their folder": lambda data: data["variables"].update({"../x": data["variables"]["towers/users"]}),
    "cannot read": lambda data: data["variables"]["towers/users"].update(dim=0),
    "strange is not a field": lambda data: data.update(strange=1),
    "id is missing": lambda data: data.pop("id"),
    "created must be": lambda data: data.update(created=-1),
    "calls must be an object": lambda data: data.update(calls=[["0" * 32, 1]]),
    "calls must have clients' ids": lambda data: data.update(calls={"client": [1]}),
    "calls.0{32} must be an array": lambda data: data.update(calls={"0" * 32: {"1": 2}}),
    r"at least one int .* got \[\]": lambda data: data.update(calls={"0" * 32: []}),
    "at least one int .* got .*None": lambda data: data.update(calls={"0" * 32: [1, None]}),
    "at least one int .* got .*True": lambda data: data.update(calls={"0" * 32: [True]}),
    "at least one int .* got .*-1": lambda data: data.update(calls={"0" * 32: [-1]}),
    "at least one int .* got .*2.0": lambda data: data.update(calls={"0" * 32: [1, 2.0]}),
    "at least one int .* got .*99999": lambda data: data.update(calls={"0" * 32: [10**30 - 1]}),
    r"ascending, got \[1, 3, 2\]": lambda data: data.update(calls={"0" * 32: [1, 3, 2]}),
    r"ascending, got \[1, 3, 3\]": lambda data: data.update(calls={"0" * 32: [1, 3, 3]}),
    r"ascending, got \[3, 2\]": lambda data: data.update(calls={"0" * 32: [3, 2]}),
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_manifest_that_says_something_impossible_is_refused(message):
    with pytest.raises((Corruption, UnsupportedFormat), match=message):
        parse(changed(text_of(described()).decode(), CHANGES[message]), "here")


def test_any_value_in_any_place_is_read_or_refused_in_one_line():
    """Other JSON as the calls of a shard was an AttributeError or a TypeError."""
    made = replace(described(), calls={"0" * 32: [1, 3]}, extra={"step": 7})
    data, refusals = json.loads(text_of(made)), []
    del data["checksum"]
    for path in hostile.places(data):
        for value in (*hostile.VALUES, hostile.MISSING, hostile.EXTRA):
            other = hostile.changed(data, path, value)
            try:
                parse(json.dumps({"checksum": checksum_of(other), **other}), "here")
            except (Corruption, UnsupportedFormat) as error:
                refusals.append(str(error))
    assert len(refusals) > 1000
    assert [text for text in refusals if not text.startswith("here") or "\n" in text] == []


def test_damage_is_seen():
    text = text_of(described()).decode()
    for damaged in (text[:-20], text.replace("12.5", "12.6"), "[]", "", "{}"):
        with pytest.raises((Corruption, UnsupportedFormat), match="here"):
            parse(damaged, "here")
    with pytest.raises(UnsupportedFormat, match="must be a cluster's format 7, got 6"):
        parse(changed(text, lambda data: data.update(format=6)), "here")
