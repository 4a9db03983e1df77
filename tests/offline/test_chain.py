"""Descriptions of checkpoints at a URL: written, read, and refused if any field is invalid."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import hostile
import pytest

from kvemb.durability import manifest
from kvemb.durability.manifest import Epoch, FileEntry, Manifest
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.offline import chain
from kvemb.offline.chain import Base, Delta, PushedCheckpoint

ONE, TWO, THREE = ("a" * 32, "b" * 32, "c" * 32)
MOST = 1 << 20


def described(id: str, files: dict[str, FileEntry]) -> Manifest:
    return Manifest("f" * 32, id, None, 1, 0.5, changes=[Epoch("f" * 32)], files=files)


def entry(letter: str, nbytes: int = 1) -> FileEntry:
    return FileEntry(nbytes, letter * 64)


def whole() -> PushedCheckpoint:
    return PushedCheckpoint(described(ONE, {"rows/1.sst": entry("1", 100), "changes/000001.keys": entry("2")}))


def third() -> PushedCheckpoint:
    second = described(TWO, {"rows/2.sst": entry("3"), "changes/000002.keys": entry("4")})
    last = described(THREE, {"rows/3.sst": entry("5"), "changes/000003.keys": entry("6")})
    two = whole().followed_by(1, second, Delta(2, TWO, 10, "7" * 64))
    return two.followed_by(2, last, Delta(3, THREE, 20, "8" * 64))


def parse(text: str) -> PushedCheckpoint:
    return chain.parse(text, "there", max_characters=MOST)


def test_a_chain_names_all_that_it_needs():
    pushed = third()
    assert parse(chain.text_of(pushed).decode()) == pushed
    assert pushed.ids == [ONE, TWO, THREE]
    assert pushed.base == Base(1, ONE)
    assert pushed.base_bytes == 100
    assert {sha256[0] for sha256 in pushed.files} == {"1", "6", "7", "8"}
    assert pushed.name_of("7" * 64, 3) == "the delta of checkpoint 00000002"
    assert pushed.name_of("1" * 64, 3) == "rows/1.sst of checkpoint 00000001"
    assert pushed.name_of("6" * 64, 3) == "changes/000003.keys of checkpoint 00000003"


def test_a_whole_checkpoint_is_its_manifest(tmp_path):
    manifest.write(whole().described, tmp_path)
    found = parse((tmp_path / manifest.NAME).read_text())
    assert (found, found.ids, found.base) == (whole(), [ONE], None)


def signed(data: dict[str, Any]) -> str:
    rest = {name: value for name, value in data.items() if name != "checksum"}
    return json.dumps({"checksum": manifest.checksum_of(rest), **rest}, indent=1) + "\n"


def test_hostile_fields_are_refused():
    data = json.loads(chain.text_of(third()))
    del data["manifest"]
    tried = 0
    for place in hostile.places(data):
        if place[0] == "checksum":
            continue
        for value in (*hostile.VALUES, hostile.MISSING, hostile.EXTRA):
            changed = hostile.changed(data, place, value)
            most = {"number": 10**18 - 1, "bytes": 2**63 - 1}.get(str(place[-1]), -1)
            if changed == data or (type(value) is int and 0 <= value <= most):
                continue
            if (place, value) == (("deltas", 0), hostile.MISSING):
                continue  # a shorter chain, whose first delta says that it begins elsewhere
            try:
                text = signed({**changed, "manifest": json.loads(chain.text_of(third()))["manifest"]})
            except (ValueError, RecursionError):
                continue  # it cannot be written
            tried += 1
            with pytest.raises((Corruption, UnsupportedFormat), match="there"):
                parse(text)
    assert tried > 300


@pytest.mark.parametrize("at", [0, 1])
def test_what_is_changed_without_its_checksum_is_damaged(at):
    text = chain.text_of(third()).decode()
    changed = text.replace('"bytes": 20', '"bytes": 21') if at else text.replace('"point": 1', '"point": 2')
    assert changed != text
    with pytest.raises(Corruption, match="there is damaged: its checksum is wrong"):
        parse(changed)


def test_an_end_that_is_another_checkpoint_and_too_many_deltas_are_damage():
    pushed = third()
    with pytest.raises(Corruption, match="its last delta leads to another checkpoint"):
        parse(chain.text_of(replace(pushed, deltas=pushed.deltas[:1])).decode())
    for deltas in ((), pushed.deltas * 200):
        with pytest.raises(Corruption, match="deltas must be an array of 1 to 256 elements"):
            parse(chain.text_of(replace(pushed, deltas=deltas)).decode())
    with pytest.raises(Corruption, match="longer than"):
        chain.parse(chain.text_of(pushed).decode(), "there", max_characters=100)
