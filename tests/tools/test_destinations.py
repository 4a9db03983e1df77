"""Where tools read and write: buckets that are not there, URLs that lost a slash, paths of either kind."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.tools import destinations
from kvemb.tools.cli import run
from kvemb.tools.diff import diff
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput
from kvemb.tools.importing import import_table
from kvemb.tools.migrate import plan

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The current directory, with a store of one variable."""
    monkeypatch.chdir(tmp_path)
    with kvemb.open("store", memory_budget="4MiB") as store:
        store.get_variable("table", dim=2).upsert([1, 2], np.ones((2, 2), np.float32))
    return tmp_path


@pytest.fixture
def s3(monkeypatch) -> Any:
    """The filesystem of an S3 server on this machine, with an empty bucket."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # Servers of one process share their buckets.
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    files = fsspec.filesystem("s3", skip_instance_cache=True, **options)
    files.mkdir("bucket")
    yield files
    server.stop()


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_told_and_not_made(made, s3):
    for call in (lambda url: export("store", url), lambda url: import_table(url, "new")):
        with pytest.raises(BadInput, match=r"the bucket 'typo' of s3://typo/folder/rows\.npy does not exist"):
            call("s3://typo/folder/rows.npy")
        for url in ("s3:///rows.npy", "s3://"):
            with pytest.raises(BadInput, match=f"{url} names no bucket; write s3://BUCKET/NAME"):
                call(url) if url != "s3://" else destinations._filesystem(url)
    assert [path.rstrip("/") for path in s3.ls("")] == ["bucket"]
    export("store", "s3://bucket/folder/rows.npy")
    assert import_table("s3://bucket/folder/rows.npy", "new").added == 2


def test_a_url_that_lost_a_slash_is_told(made):
    slipped = Path("memory://x/rows.csv")
    for call in (
        lambda place: export("store", place),
        lambda place: import_table(place, "new"),
        lambda place: diff("store", "store", out=place),
        lambda place: plan("store", place),
    ):
        with pytest.raises(BadInput, match=r"memory:/x/rows\.csv has one slash after its colon"):
            call(slipped)
    with pytest.raises(BadInput, match="the new store must be a directory here, got the URL memory://x"):
        plan("store", "memory://x")
    assert [path.name for path in made.iterdir()] == ["store"]


def test_a_path_is_taken_for_its_text(made):
    export("store", made / "rows.csv")
    assert import_table(made / "rows.csv", made / "new").added == 2
    for place in (made / "page", str(made / "other")):
        with destinations.atomic_output(place, folder=True) as folder:
            (folder / "file").touch()
        with destinations.fetched(place) as here:
            assert (here / "file").exists()


def test_what_is_removed_is_the_link(made):
    (made / "link").symlink_to(made / "store")
    destinations.remove(made / "link")
    assert not (made / "link").is_symlink()
    assert kvemb.verify(made / "store")


def test_a_folder_that_cannot_be_written_to_is_named(made, monkeypatch, capsys):
    monkeypatch.setattr(destinations.os, "access", lambda path, mode: False)
    assert run(["export", "store", "fixed/t.csv"]) == 4
    assert "the disk refused: fixed: cannot be written to; name another place for t.csv" in capsys.readouterr().err
