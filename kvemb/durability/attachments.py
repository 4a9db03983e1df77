"""Files and values that a caller adds to a checkpoint, such as a model's dense parameters.

The files are in files/ (FORMAT.md, "A checkpoint"), the values in the manifest's `extra`. They are written before the
checkpoint gets its name, so that they and the rows are there together or not at all. Not thread-safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from kvemb import fresh_files
from kvemb.checks.brief import brief
from kvemb.durability import layout
from kvemb.durability.inventory import check_is_of_file
from kvemb.durability.manifest import ATTACHED, Manifest
from kvemb.errors import Corruption

# A file's content: its bytes, the path of a file to copy, or a function that writes it.
Content = bytes | bytearray | memoryview | str | os.PathLike[str] | Callable[[IO[bytes]], object]
Files = Mapping[str, Content] | None
Extra = Mapping[str, Any] | None
MAX_EXTRA_CHARACTERS = 1 << 20


class Attachments:
    """The files and values that a call attaches to a checkpoint. Raises TypeError, ValueError; FileNotFoundError.

    files: a dict from name to content. extra: a dict that JSON can represent. id: the checkpoint's identity; None: a
    random one. linked: whether paths are of files that never change, which are linked, not copied.
    """

    def __init__(
        self, files: Files = None, extra: Extra = None, *, id: str | None = None, linked: bool = False
    ) -> None:
        self.extra, self.id, self._linked = _checked_extra(extra), id, linked
        if files is not None and not isinstance(files, Mapping):
            raise TypeError(f"files must be a dict from names to contents, got {brief(files)}")
        self._files = dict(files or {})
        folded: dict[str, str] = {}
        for name, content in self._files.items():
            if not isinstance(name, str) or re.fullmatch(ATTACHED, f"{layout.FILES}/{name}") is None:
                raise ValueError(
                    "files must have names of 1 to 200 letters, digits and the characters _ . + -, without folders and "
                    f"without a dot at the beginning, got {brief(name)}"
                )
            if (other := folded.setdefault(name.lower(), name)) != name:
                raise ValueError(f"files {other!r} and {name!r} are the same name on some filesystems; rename one")
            if isinstance(content, (str, os.PathLike)):
                os.stat(content)  # raises before anything is written
            elif not isinstance(content, (bytes, bytearray, memoryview)) and not callable(content):
                raise TypeError(
                    f"files[{name!r}] must be bytes, a path, or a function that writes to a file, got {brief(content)}"
                )

    @property
    def names(self) -> list[str]:
        """The names of the files."""
        return list(self._files)

    def write(self, folder: Path) -> None:
        """Write the files to a new folder, unsynced, if there are any. Raises OSError, and a writer's errors."""
        if self._files:
            folder.mkdir()
        for name, content in self._files.items():
            if isinstance(content, (str, os.PathLike)):
                (fresh_files.link_or_copy if self._linked else shutil.copyfile)(Path(content), folder / name)
                continue
            with open(folder / name, "xb") as file:
                if isinstance(content, (bytes, bytearray, memoryview)):
                    file.write(content)
                else:
                    content(file)


class AttachedFiles(Mapping[str, Path]):
    """The files attached to a checkpoint, by name. Getting one reads it, checks its checksum, and returns its path.

    Raises Corruption naming a file that is missing or damaged; CheckpointNotFound if the checkpoint was deleted.
    """

    def __init__(self, directory: Path, described: Manifest) -> None:
        self._directory, self._entries = directory, described.files
        self._names = sorted(name.partition("/")[2] for name in described.attached)

    def __getitem__(self, name: str) -> Path:
        if name not in self._names:
            raise KeyError(f"{self._directory} has no file {name!r}; it has {', '.join(self._names) or 'none'}")
        path, entry = self._directory / layout.FILES / name, self._entries[f"{layout.FILES}/{name}"]
        with layout.reading_checkpoint(self._directory):
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                check_is_of_file(error, path)
                raise Corruption(f"{path} cannot be read: {error}; use another checkpoint") from error
        if digest != entry.sha256:
            raise Corruption(f"{path} is damaged: its checksum differs from the manifest; use another checkpoint")
        return path

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<files of {self._directory}: {', '.join(self._names) or 'none'}>"


def _checked_extra(extra: Extra) -> dict[str, Any]:
    """Return extra as a reader will get it. Raises TypeError, ValueError."""
    if extra is None:
        return {}
    if not isinstance(extra, Mapping):
        raise TypeError(f"extra must be a dict, got {brief(extra)}")
    try:
        text = json.dumps(dict(extra), allow_nan=False)
        back: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"extra must hold only what JSON does (str, int, finite float, bool, None, list, dict): {error}"
        ) from error
    if back != dict(extra):
        raise TypeError("extra would come back changed: use str keys, and lists instead of tuples")
    if len(text) > MAX_EXTRA_CHARACTERS:
        raise ValueError(f"extra must have at most {MAX_EXTRA_CHARACTERS:,} characters as JSON, has {len(text):,}")
    return back
