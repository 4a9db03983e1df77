"""Files and directories that replace what has their name, and never write through it.

What is there may be a symbolic link, or have links elsewhere: a checkpoint's, or a stranger's file. It loses the name,
and what it leads to stays as it is. No thread contract.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_new(path: Path, data: bytes) -> None:
    """Write a file, in place of whatever has its name, and wait until it is on disk. Raises OSError."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Delete a file, a symbolic link or, as far as that goes, a directory, if it is there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
