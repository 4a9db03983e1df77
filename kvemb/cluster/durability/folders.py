"""Folders for the files of shards, and whether their disk answers."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from kvemb import fresh_files
from kvemb.durability import layout
from kvemb.durability.scratch import scratch


def new_folder(root: Path, prefix: str, undo: ExitStack) -> Path:
    """Make a folder in root, which is made if it is missing. The folder is deleted when `undo` is closed.

    If this process is killed, a later call with this root and prefix deletes it. Raises ColdStoreError.
    """
    with layout.as_cold_store_error(f"write to {root}"):
        fresh_files.make_directory(root)
        return undo.enter_context(scratch(prefix, root))


def probe(folder: Path) -> None:
    """Write to the disk of a folder. Returns once it has answered, also with an error; hangs while it does."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")
        file.flush()
        os.fsync(file.fileno())
