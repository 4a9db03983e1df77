"""Sources and destinations of the tools: paths, URLs that fsspec reaches, and pipes. Output appears only when complete.

Output is written to a hidden folder next to its destination, or to a temporary one for a URL, and moved when complete.
Folders left by killed processes are deleted by the next one (kvemb.bulk.scratch).
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from kvemb import bulk
from kvemb.installed import pip_install
from kvemb.masking import masked, unsecret
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.columns import PathOrFile

PIPE = "-"
# The endings of compressed files, as pyarrow detects them.
COMPRESSED = (".gz", ".zst", ".bz2", ".lz4", ".br")
# The filesystems of fsspec in which creating a folder would create its bucket.
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "obs", "oci", "cos", "tos")
_LOST_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL. Raises BadInput for a URL that was turned into a Path, which drops a slash."""
    text = os.fspath(path)
    if _LOST_SLASH.match(text):
        raise BadInput(f"{masked(text)} has one slash after its colon; a URL has two, and must be a str, not a Path")
    return "://" in text


def local(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path on this machine. Raises BadInput for a URL."""
    if is_url(path):
        raise BadInput(f"the {what} must be a directory here, got the URL {masked(path)}")
    return Path(path)


def uncompressed(name: str) -> str:
    """Return a file's name without the ending of its compression, if it has one."""
    ending = next((each for each in COMPRESSED if name.lower().endswith(each)), "")
    return name[: len(name) - len(ending)]


def is_compressed(source: PathOrFile) -> bool:
    """Whether a file is compressed, by its ending; a pipe is not."""
    return isinstance(source, Path) and uncompressed(source.name) != source.name


@contextmanager
def resumed(source: PathOrFile, head: bytes = b"") -> Iterator[IO[bytes]]:
    """Yield a file or a pipe positioned after head, which was read from it. A file's content is decompressed.

    Raises BadInput for a damaged compressed file, also from the block.
    """
    if not isinstance(source, Path):
        yield source
    elif not is_compressed(source):
        with open(source, "rb") as file:
            file.seek(len(head))
            yield file
    else:
        import pyarrow as pa

        try:
            with io.BufferedReader(pa.input_stream(str(source), compression="detect")) as file:
                file.read(len(head))
                yield file
        except OSError as error:
            raise BadInput(f"{source} cannot be decompressed: {error}") from error


def next_line(source: PathOrFile, max_bytes: int, head: bytes = b"") -> bytes:
    """Return the line of a file or a pipe after head, which was read from it, at most max_bytes of it."""
    with resumed(source, head) as file:
        return file.readline(max_bytes)


@contextmanager
def atomic_output(destination: str | os.PathLike[str], *, folder: bool) -> Iterator[Path]:
    """Yield a temporary path to write to, moved to `destination` if the block succeeds. folder: yield an empty folder.

    Raises FileExistsError if the destination exists; BadInput if its bucket does not; PermissionError if its folder
    is read-only.
    """
    if is_url(destination):
        destination = os.fspath(destination)
        files, path = _filesystem(destination)
        if files.exists(path):
            raise FileExistsError(f"{masked(destination)} exists; name a new destination")
        with bulk.scratch("kvemb-send-") as scratch:
            made = scratch / (destination.rstrip("/").rpartition("/")[2] or "out")
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
    target = Path(destination)
    if target.exists() and not (folder and target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(f"{target} exists; name a new {'folder' if folder else 'file'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(target.parent, os.W_OK | os.X_OK):  # an error of the hidden folder would name that
        reason = f"cannot be written to; name another place for {target.name}"
        raise PermissionError(errno.EACCES, reason, str(target.parent))
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
    """Delete a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise BadInput(f"{masked(url)} cannot be reached: {error}; install: {pip_install('remote')}") from error
    protocol, _, rest = url.partition("://")
    in_bucket = protocol in _WITH_BUCKETS
    if in_bucket and rest[:1] in ("", "/"):
        raise BadInput(f"{masked(url)} names no bucket; write {protocol}://BUCKET/NAME")
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url)
        if in_bucket and not found[0].exists(bucket := found[1].partition("/")[0]):
            raise BadInput(f"the bucket {bucket!r} of {masked(url)} does not exist; create it, or correct the URL")
        return found
    except BadInput:
        raise
    except (ImportError, ValueError) as error:  # its message names the package for this protocol
        raise BadInput(f"{masked(url)} cannot be reached: {masked(error)}") from unsecret(error)


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
def fetched(source: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to read from; a URL is first copied to a temporary folder."""
    if not is_url(source):
        yield Path(source)
        return
    source = os.fspath(source)
    files, path = _filesystem(source)
    if not files.exists(path):
        raise FileNotFoundError(f"{masked(source)} does not exist")
    with bulk.scratch("kvemb-fetch-") as scratch:
        target = scratch / (source.rstrip("/").rpartition("/")[2] or "in")
        files.get(path, str(target), recursive=files.isdir(path))
        yield target
