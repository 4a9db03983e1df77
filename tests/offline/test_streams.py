"""File transfers: a file that does not match its entry never appears under its name at the destination."""

from __future__ import annotations

import errno
import hashlib
import os
from unittest.mock import Mock

import pytest

from kvemb.durability.manifest import FileEntry
from kvemb.errors import ColdStoreError, Corruption
from kvemb.offline import streams

fsspec = pytest.importorskip("fsspec")
SIZES = [0, 1, streams.PIECE_BYTES, 2 * streams.PIECE_BYTES + 5]


def entry_of(data):
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture(params=["local", "memory"])
def there(request, tmp_path):
    """A filesystem, and a path in it."""
    if request.param == "memory":
        return fsspec.filesystem("memory"), f"/{tmp_path.name}"
    return fsspec.filesystem("file"), str(tmp_path / "there")


@pytest.mark.parametrize("size", SIZES)
def test_a_file_goes_there_and_back(there, tmp_path, size):
    files, target = there
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    (tmp_path / "here").write_bytes(data)
    streams.send(tmp_path / "here", entry_of(data), files, target)
    assert streams.matches(files, target, entry_of(data))
    assert streams.receive(files, target, entry_of(data), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data


@pytest.mark.parametrize("damage", [b"", b"xxxxx", b"xxxxxxyy", b"xxxxxz"])
def test_a_damaged_file_is_not_sent_and_not_kept(there, tmp_path, damage):
    files, target = there
    (tmp_path / "here").write_bytes(damage)
    with pytest.raises(Corruption, match="here is damaged"):
        streams.send(tmp_path / "here", entry_of(b"xxxxxx"), files, target)
    assert not files.exists(target) or files.size(target) != 6
    files.pipe_file(target, damage)
    assert not streams.matches(files, target, entry_of(b"xxxxxx"))
    assert not streams.receive(files, target, entry_of(b"xxxxxx"), tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_file_that_is_not_here_is_told(there, tmp_path):
    with pytest.raises(Corruption, match="lacking cannot be read"):
        streams.send(tmp_path / "lacking", entry_of(b""), *there)


def test_a_small_file_is_read_as_far_as_asked(there):
    files, target = there
    streams.write(files, target, b"abcdef")
    assert streams.read(files, target, 4) == b"abcd"


@pytest.mark.parametrize(("number", "error"), [(errno.EMFILE, ColdStoreError), (errno.EIO, Corruption)])
def test_too_few_file_descriptors_are_no_damage(there, tmp_path, monkeypatch, number, error):
    files, target = there
    (tmp_path / "here").write_bytes(b"x")
    refuse = Mock(side_effect=OSError(number, os.strerror(number)))
    monkeypatch.setattr(streams, "open", refuse, raising=False)
    with pytest.raises(error, match="read"):
        streams.send(tmp_path / "here", entry_of(b"x"), files, target)


def test_a_damaged_file_that_cannot_be_removed_there_is_seen_by_its_size(there, tmp_path, monkeypatch):
    files, target = there
    (tmp_path / "here").write_bytes(b"y" * 100)
    refuse = Mock(side_effect=OSError("no"))
    monkeypatch.setattr(files, "rm_file", refuse)
    with pytest.raises(Corruption, match="is damaged"):
        streams.send(tmp_path / "here", entry_of(b"x" * 100), files, target)
    assert files.size(target) < 100


@pytest.mark.slow
def test_a_small_file_is_read_while_another_process_replaces_it(s3, tmp_path, monkeypatch):
    """A file that is opened has its size asked first, and s3fs refuses to read what has another ETag by then."""
    files = fsspec.filesystem("s3", skip_instance_cache=True, **s3)
    path = f"bucket/{tmp_path.name}"
    files.pipe_file(path, b"the first")
    asked, real = [], files._call_s3

    async def replaced(method, *args, **kwargs):
        asked.append(method)
        answer = await real(method, *args, **kwargs)
        await real("put_object", Bucket="bucket", Key=tmp_path.name, Body=b"the second, which is longer")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(files, "_call_s3", replaced)
        assert streams.read(files, path, 100) == b"the first"
    assert asked == ["get_object"]
    assert streams.read(files, path, 10) == b"the second"
    files.pipe_file(path, b"")
    assert streams.read(files, path, 10) == b""
    with pytest.raises(FileNotFoundError):
        streams.read(files, f"{path}-lacking", 10)
