"""What callers name: a directory here, a place elsewhere, a series of checkpoints and its numbers.

Pure functions, but for looking at what is there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvemb.durability import layout
from kvemb.durability.layout import series_name
from kvemb.errors import Corruption, StoreNotFound

# With one slash a Path has been made of a URL.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local(path: str | os.PathLike[str], what: str = "path") -> Path:
    """Return a path on this machine. what: errors call it so. Raises TypeError; ValueError for a URL."""
    text = _text(path, what)
    if _URL.match(text):
        raise ValueError(
            f"{what} must be a directory here, got {text!r}, a URL; kvemb pull copies a checkpoint from a URL to here, "
            "kvemb push to there"
        )
    return Path(path)


def place(url: str | os.PathLike[str]) -> str:
    """Return a URL, or a path, as text without a slash at its end. Raises TypeError, ValueError."""
    text = _text(url, "url")
    if _URL.match(text) and "://" not in text:
        raise ValueError(f"url {text!r} has one slash after its colon; give it as a str with two, not as a Path")
    bare = text.rstrip("/")
    return bare if bare and not bare.endswith(":") else text


def _text(given: str | os.PathLike[str], what: str) -> str:
    if not isinstance(given, (str, os.PathLike)) or not isinstance(text := os.fspath(given), str):
        raise TypeError(f"{what} must be a str or a path, got {given!r}")
    if not text or "\0" in text:
        raise ValueError(f"{what} must name a place, got {text!r}")
    return text


def check_own(store: Path) -> None:
    """Raise Corruption where a folder that a store writes to and deletes from is a link to another place."""
    for folder in (store / layout.POINTS, store / layout.LOG):
        if folder.is_symlink():
            raise Corruption(
                f"{folder} is a symbolic link to {os.readlink(folder)}; a store changes only what is in its own "
                f"directory: put the folder itself there, or link to {store} as a whole"
            )


def series_numbers(root: Path) -> list[int]:
    """The numbers of the complete checkpoints of a series, ascending; none where root is no series."""
    if not root.is_dir():
        return []
    found = (path for path in root.iterdir() if path.name.isdecimal())
    ours = (path for path in found if path.name == series_name(int(path.name)))
    return sorted(int(path.name) for path in ours if layout.is_checkpoint(path))


def newest_of(path: Path) -> Path:
    """Return the newest checkpoint of a series, and any other path as it is."""
    numbers = [] if layout.is_checkpoint(path) or layout.is_store(path) else series_numbers(path)
    return path / series_name(numbers[-1]) if numbers else path


def lacking_number(path: Path) -> str | None:
    """Say of a path that would be a checkpoint of a series, and is not there, which ones are; None of any other."""
    named = path.absolute()
    if re.fullmatch("[0-9]{8,18}", named.name) is None or named.name != series_name(int(named.name)):
        return None
    if layout.is_checkpoint(path) or layout.is_store(path) or not (numbers := series_numbers(named.parent)):
        return None
    there = ", ".join(map(series_name, numbers))
    return f"the series {path.parent} has no checkpoint {path.name}; it has {there}"


def check_no_number(path: Path) -> None:
    """Raise StoreNotFound where path is a number of a series: no store may be made there."""
    if (lacking := lacking_number(path)) is not None:
        raise StoreNotFound(f"{lacking}; name one of these, or another directory for a store")
