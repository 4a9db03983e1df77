"""Scans: batches up to a last key, an end that is an error and looks like none; RocksDB's errors as kvemb's."""

from __future__ import annotations

import os
from typing import Any

import pytest
from blocks import SCHEMA, rows_of

from kvemb.backends.rocks_scan import Scan, translated
from kvemb.errors import Closed, ColdStoreError, Corruption
from kvemb.rows.codec import encode_keys, encode_records

ROWS = rows_of(range(10))
KEYS = encode_keys(ROWS.keys, SCHEMA)
PAIRS = list(zip(KEYS, encode_records(ROWS), strict=True))


class Check:
    """An iterator of the same snapshot. error: what it fails with."""

    def __init__(self, error: str | None = None) -> None:
        self._error, self._at = error, 0

    def seek(self, key: bytes) -> None:
        self._at = sum(each < key for each in KEYS)

    def next(self) -> None:
        self._at += 1

    def valid(self) -> bool:
        return self._at < len(KEYS)

    def status(self) -> None:
        if self._error:
            raise Exception(self._error)


def scan_of(pairs: Any = PAIRS, *, error: str | None = None, batch_rows: int = 4, last: int = 9) -> Scan:
    return Scan("rows", SCHEMA, iter(pairs), Check(error), batch_rows, (KEYS[0], KEYS[last]))


def keys_of(scan: Scan) -> list[list[int]]:
    return [block.keys.tolist() for block in scan]


def test_rows_come_in_batches_up_to_the_last_key():
    assert keys_of(scan_of()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert keys_of(scan_of(last=5)) == [[0, 1, 2, 3], [4, 5]]
    assert keys_of(scan_of(last=3)) == [[0, 1, 2, 3]]
    assert keys_of(scan_of(last=0)) == [[0]]


@pytest.mark.parametrize("count", [0, 4, 5])
def test_an_end_that_was_an_error_is_one(count):
    scan = scan_of(PAIRS[:count], error="Corruption: block checksum mismatch")
    with pytest.raises(Corruption, match="scan 'rows': Corruption: block checksum"):
        keys_of(scan)
    with pytest.raises(Corruption, match=r"the scan ended after key .* though more keys follow"):
        keys_of(scan_of(PAIRS[:count]))


def test_a_closed_scan_says_so_and_a_finished_one_has_ended():
    scan = scan_of()
    next(scan)
    scan.close()
    with pytest.raises(Closed, match="'rows' was closed or dropped during this scan"):
        next(scan)
    scan = scan_of()
    keys_of(scan)
    scan.close()
    assert keys_of(scan) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("Corruption: bad block", Corruption), ("Result incomplete: truncated", Corruption)),
        *(("IO error: block checksum mismatch", Corruption), ("IO error: No space left on device", ColdStoreError)),
        ("Invalid argument: Column families not opened: a", Corruption),
    ],
)
def test_errors_of_rocksdb_are_damage_or_a_refusal(text, kind):
    with pytest.raises(kind, match=f"read: {text}") as told, translated("read"):
        raise Exception(text)
    assert str(told.value.__cause__) == text
    assert ("restore from a checkpoint" in str(told.value)) == (kind is Corruption)


@pytest.mark.parametrize("error", [Corruption("a"), ColdStoreError("b"), Closed("c"), StopIteration()])
def test_errors_of_kvemb_stay_as_they_are(error):
    with pytest.raises(type(error)) as told, translated("read"):
        raise error
    assert told.value is error


def test_a_file_is_named_where_it_is_and_not_by_its_link(tmp_path):
    (tmp_path / "000001.sst").touch()
    os.symlink(tmp_path / "000001.sst", tmp_path / "link.sst")
    with pytest.raises(Corruption, match=f"in {tmp_path}/000001.sst;"), translated("read"):
        raise Exception(f"Corruption: in {tmp_path}/link.sst")
