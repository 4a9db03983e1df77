"""Where tools read and write: paths, URLs that fsspec reaches, and pipes. What is half-written is never seen.

Everything is written in a hidden folder beside its place, or in a temporary one for a URL, and moved when it is whole.
Such folders of processes that were killed are deleted by the next one (kvemb.bulk.scratch).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kvemb import bulk
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import Place

PIPE = "-"


# Of fsspec's filesystems, those where making a folder would make its bucket.
_BUCKETS = (
    "s3://",
    "s3a://",
    "gs://",
    "gcs://",
    "az://",
    "abfs://",
    "abfss://",
    "oss://",
    "obs://",
    "oci://",
    "cos://",
    "tos://",
)
_SLIPPED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether a place is a URL. Raises BadInput for one that a Path was made of."""
    text = os.fspath(place)
    if _SLIPPED.match(text):
        raise BadInput(f"{text} has one slash after its colon; a URL has two, and is given as a str, not as a Path")
    return "://" in text


def local(place: str | os.PathLike[str], what: str) -> Path:
    """Return a path on this machine. Raises BadInput for a URL."""
    if is_url(place):
        raise BadInput(f"the {what} must be a directory here, got the URL {os.fspath(place)}")
    return Path(place)


def first_line(place: Place, most_bytes: int) -> bytes:
    """Return the first line of a file or a pipe, or as much of it."""
    if isinstance(place, Path):
        with open(place, "rb") as file:
            return file.readline(most_bytes)
    return place.readline(most_bytes)


@contextmanager
def going_on(place: Place, head: bytes) -> Iterator[IO[bytes]]:
    """Yield a file or a pipe, of which the head has been read, to read on."""
    if isinstance(place, Path):
        with open(place, "rb") as file:
            file.seek(len(head))
            yield file
    else:
        yield place


@contextmanager
def atomic_directory(place: str | os.PathLike[str], *, folder: bool) -> Iterator[Path]:
    """Yield a path to write to, a folder that is there where `folder`; it takes its place when the block ends well.

    Raises FileExistsError where something is there already; BadInput where its bucket is not.
    """
    if is_url(place):
        place = os.fspath(place)
        files, path = _filesystem(place)
        if files.exists(path):
            raise FileExistsError(f"{place} exists; name a new place, or delete it")
        with bulk.scratch("kvemb-send-") as scratch:
            made = scratch / (place.rstrip("/").rpartition("/")[2] or "out")
            if folder:
                made.mkdir()
            yield made
            try:
                _send(made, files, path)
            except BaseException:
                if files.exists(path):
                    files.rm(path, recursive=True)
                raise
        return
    target = Path(place)
    if target.exists():
        raise FileExistsError(f"{target} exists; name a new {'folder' if folder else 'file'}, or delete it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with bulk.scratch(".kvemb-new-", target.parent) as scratch:
        made = scratch / target.name
        if folder:
            made.mkdir()
        yield made
        os.rename(made, target)
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _filesystem(place: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise BadInput(f"{place} cannot be reached: {error}; install: pip install 'kvemb[remote]'") from error
    in_bucket = place.startswith(_BUCKETS)
    if in_bucket and place.partition("://")[2][:1] in ("", "/"):
        raise BadInput(f"{place} names no bucket; write {place.partition('://')[0]}://BUCKET/NAME")
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(place)
        if in_bucket and not found[0].exists(bucket := found[1].partition("/")[0]):
            raise BadInput(f"there is no bucket {bucket!r}, which {place} names; create it, or correct the URL")
        return found
    except BadInput:
        raise
    except (ImportError, ValueError) as error:  # which names the package that knows this protocol
        raise BadInput(f"{place} cannot be reached: {error}") from error


def _send(made: Path, files: Any, path: str) -> None:
    if made.is_dir():
        for file in sorted(made.rglob("*")):
            if file.is_file():
                target = f"{path.rstrip('/')}/{file.relative_to(made).as_posix()}"
                files.makedirs(target.rpartition("/")[0], exist_ok=True)
                files.put_file(str(file), target)
    else:
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.put_file(str(made), path)


@contextmanager
def fetched(place: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to read from: what is at a URL is copied first."""
    if not is_url(place):
        yield Path(place)
        return
    place = os.fspath(place)
    files, path = _filesystem(place)
    if not files.exists(path):
        raise FileNotFoundError(f"{place} is not there")
    with bulk.scratch("kvemb-fetch-") as scratch:
        target = scratch / (place.rstrip("/").rpartition("/")[2] or "in")
        files.get(path, str(target), recursive=files.isdir(path))
        yield target
