"""Checkpoints at a URL: valid names, refused manifests, and unreachable places."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from versions import make

import kvemb
import kvemb.cluster
from kvemb.durability import manifest
from kvemb.errors import BackendUnavailable, CheckpointNotFound, Corruption, TransferError
from kvemb.installed import pip_install
from kvemb.offline import streams
from kvemb.offline.remote import RemoteCheckpoints

fsspec = pytest.importorskip("fsspec")


def test_only_names_of_checkpoints_count_elsewhere(store, manager, tmp_path):
    make(store, manager, 1)
    url = tmp_path / "remote"
    manager.push(url)
    for name in (
        "7.json",
        "0000000\u0667.json",
        "00000009.json.part",
        "9" * 200 + ".json",
        "a/00000005.json",
        "x.json",
    ):
        (url / "checkpoints" / name).parent.mkdir(exist_ok=True)
        (url / "checkpoints" / name).touch()
    assert manager.remote_numbers(url) == [1]


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_told_and_not_made(s3, store, manager, tmp_path):
    make(store, manager, 1)
    files = fsspec.filesystem("s3", **s3)
    for url in ("s3://typo", "s3://typo/model"):
        for call in (manager.push, manager.pull, manager.remote_numbers):
            with pytest.raises(TransferError, match=r"the bucket 'typo' of s3://typo.* does not exist"):
                call(url, options=s3)
    assert not files.exists("typo")
    assert manager.remote_numbers("s3://bucket/nothing/yet", options=s3) == []


@pytest.mark.needs("s3fs")
def test_a_place_that_is_none_is_told(store, manager, tmp_path, monkeypatch):
    make(store, manager, 1)
    s3 = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}  # nobody is asked
    monkeypatch.chdir(tmp_path)
    for call in (manager.push, manager.pull, manager.remote_numbers):
        for url in ("s3:///x", "s3://", "s3:///"):
            with pytest.raises(ValueError, match=rf"url '{url}' names no bucket, or host; write s3://NAME"):
                call(url, options=s3)
        with pytest.raises(TypeError, match="url must be a str or a path, got"):
            call(7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["series", "store"]
    done = manager.push(Path("remote"))
    assert manager.remote_numbers(Path("remote/")) == [done.number]
    with kvemb.CheckpointManager("copy") as copy:
        assert copy.pull(tmp_path / "remote").id == manager.latest().id


def test_a_place_that_cannot_be_reached_is_told(monkeypatch, store, manager, tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"there is no checkpoint in "):
        manager.push(f"memory://{tmp_path.name}")
    make(store, manager, 1)
    with pytest.raises(TransferError, match="nowhere"):
        manager.push("nowhere://x")
    (tmp_path / "file").touch()
    with pytest.raises(TransferError, match="file"):
        manager.push(str(tmp_path / "file"))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BackendUnavailable, match=re.escape(pip_install("remote"))):
        manager.push("memory://x")


def test_no_more_of_a_manifest_is_read_than_one_may_have(monkeypatch, store, manager, tmp_path):
    make(store, manager, 1)
    manager.push(f"memory://{tmp_path.name}")
    asked: list[int] = []
    place = RemoteCheckpoints(f"memory://{tmp_path.name}", max_characters=100)
    real = streams.read

    def read(files: Any, path: str, most: int) -> bytes:
        asked.append(most)
        return real(files, path, most)

    monkeypatch.setattr(streams, "read", read)
    with pytest.raises(Corruption, match="longer than 100 char"):
        place.id_of(place.numbers()[-1])
    assert asked == [401]
    with pytest.raises(Corruption, match="longer than 100 char"):
        manifest.read(manager.latest().path, max_characters=100)


@pytest.mark.slow
def test_a_bucket_that_is_missing_is_named_whatever_is_asked(s3):
    url = "s3://lacking/model"
    for call in (
        lambda: kvemb.verify(url, options=s3),
        lambda: kvemb.restore(f"{url}/00000001", "nowhere", options=s3),
        lambda: kvemb.cluster.latest(url, number=1, options=s3),
        lambda: kvemb.cluster.open(url, shards=1, transport="local", options=s3),
    ):
        with pytest.raises(
            TransferError, match=r"the bucket 'lacking' of s3://lacking/model does not exist; create it"
        ):
            call()
