"""Paths and URLs that callers give: validation, and the numbered checkpoints of a series.

Reads directories, writes nothing. Thread-safe.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvemb.durability import layout, manifest
from kvemb.durability.layout import series_name
from kvemb.errors import Corruption, StoreNotFound
from kvemb.masking import masked

# One slash is enough: Path("s3://x") is "s3:/x".
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is a URL, not a local path."""
    return isinstance(path, str) and _URL.match(path) is not None


def local(path: str | os.PathLike[str], what: str = "path") -> Path:
    """Return a local path, absolute: it stays the same place when the working directory changes.

    what: its name in errors. Raises TypeError; ValueError for a URL.
    """
    text = text_of(path, what)
    if _URL.match(text):
        raise ValueError(
            f"{what} must be a local directory, got the URL {masked(text)!r}; kvemb pull copies a checkpoint from a "
            "URL, kvemb push to one"
        )
    return Path(path).absolute()


def url_text(url: str | os.PathLike[str]) -> str:
    """Return a URL, or a path made absolute, as str without a slash at its end. Raises TypeError, ValueError."""
    text = text_of(url, "url")
    if _URL.match(text) and "://" not in text:
        raise ValueError(
            f"url {masked(text)!r} has one slash after its colon; give it as a str with two, not as a Path"
        )
    if "://" not in text:
        return str(Path(text).absolute())
    bare = text.rstrip("/")
    return bare if bare and not bare.endswith(":") else text


def check_options(given: str | os.PathLike[str], options: object) -> None:
    """Raise ValueError if there are options of fsspec's for a local path, which needs none."""
    if options and "://" not in str(given):
        raise ValueError(f"options are for a URL's filesystem, but {given} is a local path; leave them out")


def text_of(given: str | os.PathLike[str], what: str) -> str:
    """Return a path or URL as str. what: its name in errors. Raises TypeError, ValueError."""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(text := os.fspath(given), str):
        raise TypeError(f"{what} must be a str or a path, got {given!r}")
    if not text or "\0" in text:
        raise ValueError(f"{what} must not be empty or contain a null character, got {text!r}")
    return text


def check_own(store: Path) -> None:
    """Raise Corruption if a directory that the store writes to and deletes from is a symbolic link."""
    for folder in (store / layout.POINTS, store / layout.LOG, store / layout.MARKS):
        if folder.is_symlink():
            raise Corruption(
                f"{folder} is a symbolic link to {os.readlink(folder)}; a store changes only files in its own "
                f"directory: move the folder itself there, or link to {store} as a whole"
            )


def series_numbers(root: Path) -> list[int]:
    """Return the numbers of the complete checkpoints of a series, ascending; empty if root is not a series."""
    if not root.is_dir():
        return []
    decimal = (path for path in root.iterdir() if path.name.isdecimal())
    numbered = (path for path in decimal if path.name == series_name(int(path.name)))
    return sorted(int(path.name) for path in numbered if layout.is_checkpoint(path))


def newest_of(path: Path) -> Path:
    """Return the newest checkpoint if path is a series, else path."""
    numbers = [] if layout.is_checkpoint(path) or layout.is_store(path) else series_numbers(path)
    return path / series_name(numbers[-1]) if numbers else path


def is_cluster_series(path: Path) -> bool:
    """Whether path is a directory with checkpoints of a cluster (kvemb.cluster.durability.cluster_series)."""
    return (path / "checkpoints").is_dir() and (path / "shards").is_dir() and not layout.is_store(path)


def cluster_message(path: Path) -> str | None:
    """Return a message if path has a cluster's checkpoints, or would be one of them, else None."""
    numbered = path.name.isdecimal() and not path.exists()
    if not is_cluster_series(place := path.parent if numbered else path):
        return None
    return f"{place} has a cluster's checkpoints: kvemb.cluster.open opens them, kvemb.restore makes a store of one"


def missing_checkpoint_message(path: Path) -> str | None:
    """Return a message if path would be a checkpoint of an existing series and is missing, else None."""
    if re.fullmatch("[0-9]{8,18}", path.name) is None or path.name != series_name(int(path.name)):
        return None
    if layout.is_checkpoint(path) or layout.is_store(path) or not (numbers := series_numbers(path.parent)):
        return None
    existing = ", ".join(map(series_name, numbers))
    return f"the series {path.parent} has no checkpoint {path.name}; it has {existing}"


def check_not_in_series(path: Path) -> None:
    """Raise StoreNotFound if path would be a checkpoint of a series: no store may be created there."""
    if (message := missing_checkpoint_message(path)) is not None:
        raise StoreNotFound(f"{message}; name one of these, or another directory for a store")
    if (message := cluster_message(path)) is not None:
        raise StoreNotFound(message)


def check_series_root(root: Path) -> None:
    """Raise FileExistsError or ValueError if a path cannot be the root of a series, saying what it is."""
    above = (each for each in root.parents if (each / layout.ROWS).is_dir())
    if outer := next(filter(layout.is_checkpoint, above), None):
        raise ValueError(f"{root} is inside the checkpoint {outer}, which never changes; name another directory")
    if kind := "store" if layout.is_store(root) else "checkpoint" if layout.is_checkpoint(root) else None:
        raise FileExistsError(f"{root} is a {kind}, not a series of checkpoints; name another directory")
    if is_cluster_series(root):
        raise FileExistsError(
            f"{root} has a cluster's checkpoints, which only the cluster writes; name another directory"
        )
    if root.exists() and not root.is_dir():
        raise FileExistsError(f"{root} is a file, not a series of checkpoints; name a directory")
    layout.check_outside_stores(root, "series")


def describe(path: Path) -> str:
    """Return a message saying what is at a path where a checkpoint or a store was expected."""
    if (message := missing_checkpoint_message(path) or cluster_message(path)) is not None:
        return message
    if not path.exists():
        return f"{path} does not exist: there is no store and no checkpoint"
    if not path.is_dir():
        return f"{path} is a file, not a store or a checkpoint; name a directory"
    if layout.is_store(path):
        return f"{path} is a store, not a checkpoint; name a checkpoint"
    if (path / layout.POINTS).is_dir():
        return f"{path} is a damaged store, {layout.CURRENT} is missing; run kvemb repair"
    if (path / layout.ROWS).is_dir():
        return f"{path} is a damaged checkpoint, {manifest.NAME} is missing; run kvemb repair"
    if numbered := sorted(entry.name for entry in path.glob("[0-9]*") if layout.is_checkpoint(entry)):
        return f"{path} is a series of checkpoints: name one, such as {path / numbered[-1]}"
    below = sorted(entry.name for entry in path.glob("*") if layout.is_checkpoint(entry) or layout.is_store(entry))
    named = f"; it contains {path / below[0]}" + (f" and {len(below) - 1:,} more" if below[1:] else "") if below else ""
    return f"{path} is a directory, but neither a checkpoint nor a store{named}"


def check_exists(path: Path) -> None:
    """Raise StoreNotFound, saying what path is, unless it is a checkpoint or a store."""
    if not layout.is_checkpoint(path) and not layout.is_store(path):
        raise StoreNotFound(describe(path))
