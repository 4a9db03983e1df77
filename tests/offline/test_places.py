"""Checkpoints wherever they are: each place gives the same rows, what it has is told, and nothing is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from quick import quick

import kvemb
import kvemb.cluster
from kvemb.errors import CheckpointNotFound, StoreNotFound, TransferError
from kvemb.offline.places import Place, source_at

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The system's temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def memory(tmp_path):
    """A URL where nothing is yet."""
    yield f"memory://{tmp_path.name}"
    files = fsspec.filesystem("memory")
    if files.exists(f"/{tmp_path.name}"):
        files.rm(f"/{tmp_path.name}", recursive=True)


def saved(tmp_path, memory, kind):
    """Two checkpoints, of 10 and 20 rows, as that kind of series; returns where."""
    if kind.startswith("cluster"):
        url = memory if kind == "cluster at a URL" else str(tmp_path / "cluster")
        how = {"shards": 2, "memory_budget": "4MiB", "transport": "local", "scratch": tmp_path / "shards"}
        with kvemb.cluster.open(url, **how) as cluster:
            for rows in (10, 20):
                cluster.get_variable("table", dim=2).upsert(np.arange(rows), np.full((rows, 2), rows, np.float32))
                cluster.checkpoint(files={"dense": bytes(rows)}, extra={"rows": rows})
            cluster.close(flush=False)
        return url
    url = memory if kind == "at a URL" else str(tmp_path / "pushed")
    with (
        kvemb.open(tmp_path / "one", memory_budget="4MiB") as store,
        kvemb.CheckpointManager(tmp_path / "ones") as ones,
    ):
        for rows in (10, 20):
            store.get_variable("table", dim=2).upsert(np.arange(rows), np.full((rows, 2), rows, np.float32))
            ones.save(store, files={"dense": bytes(rows)}, extra={"rows": rows})
            if kind != "local":
                ones.push(url)
    return str(tmp_path / "ones") if kind == "local" else url


KINDS = ["at a URL", "local", "cluster at a URL", "pushed", "cluster"]


@pytest.mark.parametrize("kind", quick(KINDS, 2))
def test_a_place_is_described_and_read(tmp_path, memory, scratch, kind):
    url = saved(tmp_path, memory, kind)
    for place, rows in ((url, 20), (f"{url}/00000002", 20), (f"{url}/00000001/", 10)):
        found = Place(place)
        assert found.newest == (place == url)
        assert found.name.endswith(f"/0000000{rows // 10}")
        described = found.described()
        assert described.variables["table"].rows == rows
        assert (described.attached, described.extra) == ({"dense": rows}, {"rows": rows})
        assert any(name.endswith("files/dense") and nbytes == rows for name, nbytes in described.files.items())
        assert described.kind.startswith("checkpoint")
        with found.readable() as here:
            assert kvemb.Checkpoint(here).id == described.id
            assert kvemb.verify(here, deep=True)
            assert (found.here is None) == (here.parent.parent == scratch)
        assert list(scratch.iterdir()) == []
    with pytest.raises((CheckpointNotFound, StoreNotFound), match=r"has no checkpoint 00000007|no checkpoint 7 in"):
        Place(f"{url}/00000007").described()
    assert bool(kvemb.verify(url, deep=True))
    assert kvemb.verify(f"{url}/00000001", deep=True).rows == {"table": 10}
    store = kvemb.restore(f"{url}/00000001", tmp_path / "store", memory_budget="4MiB", variables=["table"])
    assert store.variables["table"].lookup([9]).tolist() == [[10, 10]]
    store.close()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".kvemb")]


@pytest.mark.parametrize("kind", quick([kind for kind in KINDS if kind != "local"]))
def test_damage_and_missing_files_are_named(tmp_path, memory, scratch, kind):
    url = saved(tmp_path, memory, kind)
    files, root = fsspec.core.url_to_fs(url)
    largest = max(files.find(root), key=lambda path: files.info(path)["size"])
    data = files.cat_file(largest)
    name = largest.rpartition("/")[2]
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], None):
        if damaged is None:
            files.rm_file(largest)
        else:
            files.pipe_file(largest, damaged)
        for place in (url, f"{url}/00000001"):
            assert any(name in line for line in kvemb.verify(place, deep=True).findings)
        with pytest.raises(kvemb.errors.Corruption, match=name):
            kvemb.restore(f"{url}/00000001", tmp_path / "store", memory_budget="4MiB")
        assert not (tmp_path / "store").exists()
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".kvemb")]


def test_what_is_no_place_is_told(tmp_path, memory):
    with pytest.raises(CheckpointNotFound, match=r"there is no checkpoint in memory://"):
        Place(memory)
    with pytest.raises(StoreNotFound, match="does not exist"):
        Place(tmp_path / "none").described()
    with pytest.raises(StoreNotFound, match="does not exist"):
        Place(tmp_path / "none" / "00000003").described()
    with pytest.raises(ValueError, match="one slash after its colon"):
        Place(Path("memory://here"))
    with pytest.raises((TransferError, kvemb.errors.BackendUnavailable)):
        source_at("nosuchprotocol://here").numbers()


def test_options_of_a_local_path_are_refused_everywhere(tmp_path, memory):
    local, options = saved(tmp_path, memory, "local"), {"key": "k"}
    out, store = tmp_path / "out", tmp_path / "one"
    with kvemb.CheckpointManager(local) as series:
        series.push(tmp_path / "pushed")
        for call in (
            *(
                lambda place=place: kvemb.verify(place, options=options)
                for place in (local, store, tmp_path / "pushed")
            ),
            *(lambda place=place: kvemb.repair(place, out, options=options) for place in (store, tmp_path / "pushed")),
            *(lambda place=place: kvemb.restore(place, out, options=options) for place in (local, tmp_path / "pushed")),
            lambda: series.push(tmp_path / "other", options=options),
            lambda: series.pull(tmp_path / "pushed", options=options),
            lambda: series.remote_numbers(tmp_path / "pushed", options=options),
        ):
            with pytest.raises(ValueError, match=r"options are for a URL's filesystem, but .* is a local path"):
                call()
    assert not out.exists()
    assert not (tmp_path / "other").exists()
