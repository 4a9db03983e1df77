"""A demo's working directory, which is deleted afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvemb.tools.failures import BadInput


@contextmanager
def workplace(directory: Path | None, keep: bool) -> Iterator[Path]:
    """Yield an empty directory, a temporary one or the one given, and delete its contents afterwards unless `keep`.

    Raises BadInput if the directory is not empty: a demo never overwrites.
    """
    if directory is not None and directory.exists():
        if not directory.is_dir():
            raise BadInput(f"--dir {directory} is a file; give a new or an empty directory")
        if any(directory.iterdir()):
            raise BadInput(f"--dir {directory} is not empty; give a new or an empty directory")
    existed = directory is not None and directory.exists()
    if directory is None:
        folder = Path(tempfile.mkdtemp(prefix="kvemb-demo-"))
    else:
        folder = directory
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not keep:
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            if not existed:
                folder.rmdir()
