"""Each field of a manifest: its limits, and the error beyond them."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from manifests import ID, entry_of, manifest_of

from kvemb.checks.fields import Fields
from kvemb.checks.ranges import MAX_NAME_BYTES, MAX_STEPS
from kvemb.durability.manifest import Epoch, EpochChanges, FileEntry, HotRows
from kvemb.durability.manifest_fields import check, check_variable, is_name, is_path
from kvemb.durability.sightings.counter_file import Counted
from kvemb.errors import UnsupportedFormat
from kvemb.optimizers import Adagrad
from kvemb.rows.schema import SlotShape


def parsed(value):
    return json.loads(json.dumps(asdict(value)))


def whole():
    """A manifest as check() gets it, every field of it filled."""
    files = {"rows/000001.sst": FileEntry(0, "ab" * 32), "changes/000001.keys": FileEntry(1, "cd" * 32)}
    epochs = [Epoch(ID, {"users/new": EpochChanges(True, ["000001.keys"], True)}, [ID])]
    hot = {"users/new": ["000001-000.keys"]}
    described = manifest_of(
        parent=ID,
        variables={"users/new": entry_of()},
        hot=hot,
        changes=epochs,
        files=files,
        left_out=["old"],
        tiers={"users/new": {"gpu:0": HotRows(2, 300), "host": HotRows(0, 0)}},
        sightings={"users/new": Counted("000007-000.counts", 1024, 3)},
    )
    return parsed(described)


def changed(data, path, value):
    at = data
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return data


def test_a_whole_manifest_and_one_with_few_fields_are_valid():
    check(whole(), 5)
    few = whole()
    del few["left_out"], few["extra"], few["tiers"], few["sightings"]
    del few["changes"][0]["variables"]["users/new"]["dropped"]
    del few["changes"][0]["includes"]
    check(changed(few, ["parent"], None), 5)


@pytest.mark.parametrize("name", sorted(set(whole()) - {"left_out", "extra", "tiers", "sightings"}))
def test_a_missing_field_is_named(name):
    data = whole()
    del data[name]
    with pytest.raises(ValueError, match=rf"^{name} is missing$"):
        check(data, 5)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["id"], "C0FFEE" + 26 * "0", "id must be 32 hexadecimal digits"),
        (["parent"], "", "parent must be 32 hexadecimal digits"),
        (["point"], 0, "point must be an int from 1"),
        (["created"], float("nan"), "created must be a number from 0"),
        (["variables", "a//b"], {}, "variables must have variables' names as fields, got 'a//b'"),
        (["hot", "default"], [], "hot must have variables' names"),
        (["hot", "users/new"], ["1.keys"], r"names such as '000007-000\.keys', got '1\.keys'"),
        (["tiers", "a//b"], {}, "tiers must have variables' names as fields, got 'a//b'"),
        (["tiers", "users/new", "cpu"], {}, r"'host' or names such as 'gpu:0' as fields, got 'cpu'"),
        (["tiers", "users/new", "host", "rows"], -1, r"host\.rows must be an int from 0"),
        (["tiers", "users/new", "gpu:0", "bytes"], 0.5, r"bytes must be an int from 0"),
        (["tiers", "users/new", "gpu:0", "cells"], 1, r"cells is not a field"),
        (["sightings", "a//b"], {}, "sightings must have variables' names as fields, got 'a//b'"),
        (["sightings", "users/new", "file"], "../7-0.counts", r"file must be a name such as '000007-000\.counts'"),
        (["sightings", "users/new", "counters"], 0, "counters must be an int from 4"),
        (["sightings", "users/new", "counters"], 1023, "counters must be a multiple of 4, got 1023"),
        (["sightings", "users/new", "counted"], -1, "counted must be an int from 0"),
        (["sightings", "users/new", "more"], 1, "more is not a field"),
        (["changes"], [], "changes must be an array of at least one epoch"),
        (["changes", 0, "since"], "x", r"changes\[0\]\.since must be"),
        (["changes", 0, "variables", "users/new", "files"], ["../1.keys"], r"names such as '000007\.keys'"),
        (["changes", 0, "variables", "users/new", "dropped"], 1, "dropped must be true or false, got 1"),
        (["changes", 0, "includes"], ["x"], r"changes\[0\]\.includes must be"),
        (["changes", 0, "more"], 1, r"changes\[0\]\.more is not a field"),
        (["files", "../x"], {}, "files must be paths below the directory"),
        (["files", "rows/000001.sst", "bytes"], -1, "bytes must be an int from 0"),
        (["files", "rows/000001.sst", "sha256"], "ab", "sha256 must be 64 hexadecimal digits"),
        (["files", "rows/000001.sst", "mode"], 1, "mode is not a field"),
        (["left_out"], [".."], "left_out must be an array of variables' names"),
        (["left_out"], [3], "left_out must be an array of variables' names, got 3"),
        (["more"], 1, "more is not a field that this kvemb knows"),
    ],
)
def test_a_field_that_cannot_be_is_named(path, value, message):
    with pytest.raises(ValueError, match=message):
        check(changed(whole(), path, value), 5)


@pytest.mark.parametrize("data", [None, [], "text"])
def test_what_is_no_object_is_no_manifest(data):
    with pytest.raises(ValueError, match="it must be an object"):
        check(data, 5)


def refused(expected=ValueError, match="", version=5, **fields):
    entry = parsed(entry_of())
    with pytest.raises(expected, match=match):
        check_variable(Fields({**entry, **fields}, "users"), version)


def test_a_variable_at_its_limits_is_valid():
    check_variable(Fields(parsed(entry_of(step=MAX_STEPS - 1))), 5)
    refused(match="users.step must be an int", step=MAX_STEPS)


ADAGRAD = Adagrad().to_json()


def test_slots_are_those_of_the_optimizer():
    own = (SlotShape("accumulator", 2),)
    check_variable(Fields(parsed(entry_of(slots=own, optimizer=ADAGRAD))), 5)
    for slots in ([], [{"name": "accumulator", "width": 1}], [{"name": "m", "width": 2}]):
        refused(match="users.slots must be those of the optimizer", slots=slots, optimizer=ADAGRAD)
    refused(match="users.slots must be those of the optimizer", slots=[{"name": "accumulator", "width": 2}])


def test_a_slot_of_format_2_is_a_name():
    fields = {**parsed(entry_of()), "slots": ["accumulator"], "optimizer": ADAGRAD}
    del fields["optimizer_steps"]
    check_variable(Fields(fields), 2)
    with pytest.raises(ValueError, match=r"slots\[0\] must be an object"):
        check_variable(Fields(fields), 3)
    refused(version=2, match="names of slots", slots=[{"name": "accumulator", "width": 2}], optimizer=ADAGRAD)


def test_steps_are_counted_since_format_5():
    for count in (0, MAX_STEPS - 1):
        check_variable(Fields(parsed(entry_of(optimizer_steps=count))), 5)
    for count in (-1, MAX_STEPS, True, 0.5):
        refused(match="users.optimizer_steps must be an int", optimizer_steps=count)
    refused(version=3, match="optimizer_steps is not a field that this kvemb knows")


def test_integers_are_not_trained_and_take_whole_initial_values():
    slots = [{"name": "accumulator", "width": 2}]
    refused(match="optimizer must be null for values of int32", value_dtype="int32", slots=slots, optimizer=ADAGRAD)
    refused(match="users.initializer: ", value_dtype="int8", initializer={"kind": "uniform", "low": 0.0, "high": 1.0})


@pytest.mark.parametrize("name", ["initializer", "optimizer", "policy", "creator"])
def test_a_kind_that_is_not_known_is_of_another_version(name):
    refused(UnsupportedFormat, rf"^users\.{name}: ", **{name: {"kind": "new", "name": "new"}})
    refused(ValueError, rf"users\.{name} must be an object", **{name: "new"})


@pytest.mark.parametrize("name", ["a", "users/new", "über", "a b", ".a", "x" * MAX_NAME_BYTES])
def test_a_name_is_a_path_of_plain_names(name):
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "default", "/a", "a/", "a//b", ".", "a/..", "a\nb", "a\u2028b", "a\0", "é" * (MAX_NAME_BYTES // 2 + 1)],
)
def test_what_could_leave_its_store_is_no_name(name):
    assert not is_name(name)


@pytest.mark.parametrize("path", ["a", "rows/000001.sst", ".a", "x" * 255])
def test_a_path_stays_below_its_folder(path):
    assert is_path(path)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "ü", "a\n", "x" * 256, "a/" * 2048 + "a"]
)
def test_what_could_leave_its_folder_is_no_path(path):
    assert not is_path(path)


def test_before_format_5_nothing_is_attached():
    old = whole()
    del old["variables"]["users/new"]["optimizer_steps"]
    with pytest.raises(ValueError, match="extra is not a field that this kvemb knows"):
        check(old, 3)
    del old["extra"]
    for name in ("sightings", "tiers"):
        with pytest.raises(ValueError, match="is not a field that this kvemb knows"):
            check(old, 3)
        del old[name]
    check(old, 3)
    with pytest.raises(ValueError, match="extra must be an object"):
        check(changed(whole(), ["extra"], [1]), 5)
