"""What a URL keeps secret is in no message and in no traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import kvemb
from kvemb.errors import TransferError
from kvemb.masking import masked, unsecret

URLS = {
    "ftp://ann:SECRET@host/series": "ftp://ann:***@host/series",
    "ftp://ann:SECR@ET:x?@host:21/series": "ftp://ann:***@host:21/series",
    "ftp:/ann:SECRET@host/series": "ftp:/ann:***@host/series",
    "simplecache::sftp://:SECRET@host": "simplecache::sftp://:***@host",
    "cannot read 'https://h/x?sig=SECRET&y=1': it": "cannot read 'https://h/x?***': it",
    "cannot read https://h/x?sig=SECRET: it; at http://a:SECRET@b": "cannot read https://h/x?***: it; at http://a:***@b",
    **{
        url: url
        for url in ("abfs://container@account.net/x", "ssh://git@host:22/x", "s3://bucket/a:b@c", "/a:b@c?d", "")
    },
}


@pytest.mark.parametrize("text", URLS)
def test_passwords_and_parameters_are_masked(text: str) -> None:
    assert masked(text) == URLS[text]
    assert masked(masked(text)) == masked(text)


def test_an_error_with_a_secret_is_no_cause() -> None:
    secret, plain = ValueError("at ftp://a:SECRET@b"), ValueError("plain")
    assert unsecret(plain) is plain
    plain.__context__ = secret
    assert unsecret(plain) is None


@pytest.mark.parametrize("url", ["http://ann:SECRET@127.0.0.1:9/series", "ftp://ann:SECRET@127.0.0.1:9/series"])
def test_no_call_tells_the_password_of_its_url(url: str, store: kvemb.Store, tmp_path, capsys) -> None:
    """Nothing listens there; or what the protocol needs is not installed."""
    pytest.importorskip("fsspec")
    from kvemb.tools.cli import run

    with kvemb.CheckpointManager(tmp_path / "series") as series:
        series.save(store)
        calls = [
            lambda: series.push(url),
            lambda: series.pull(url),
            lambda: series.remote_numbers(url),
            lambda: kvemb.restore(f"{url}/00000001", tmp_path / "new"),
            lambda: kvemb.verify(url),
            lambda: kvemb.repair(url, tmp_path / "new"),
            lambda: kvemb.bulk.Place(url),
            lambda: kvemb.open(url),
            lambda: kvemb.CheckpointManager(url),
            lambda: kvemb.CheckpointManager(Path(url)),
            lambda: series.push(Path(url)),
        ]
        for call in calls:
            with pytest.raises((TransferError, ImportError, ValueError)) as told:
                call()
            assert "SECRET" not in "".join(traceback.format_exception(told.value))
            assert "ann:***@" in str(told.value)
    for words in ("verify", "ls", "info", f"push {tmp_path / 'series'}"):
        assert run([*words.split(), url]) != 0
        assert "SECRET" not in "".join(capsys.readouterr())
