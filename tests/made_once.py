"""Files that several processes of a test run need, and that take long to make: kept in the system's temporary folder.

Their names are digests of all that they are made of. A process that finds one being made waits for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def made_once(kind: str, name: str, make: Callable[[Path], object]) -> Path:
    """Return the file of this name; if it is missing, make(path) writes it, under another name first."""
    folder = Path(tempfile.gettempdir(), f"kvemb-{kind}-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / name
    if not target.exists():
        with open(folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                draft = target.with_suffix(f".{os.getpid()}")
                make(draft)
                draft.rename(target)
    return target


def digest(*parts: object) -> str:
    """Return a name for what is made of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
