"""Where a demo works, and how it stops: a directory that is gone afterwards, and interrupts that wait for a batch.

A store that is closed between two batches is whole, so Ctrl-C, a kill and an error all leave either nothing or a store
that opens.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from kvemb.tools.failures import BadInput
from kvemb.tools.stopping import stop


@contextmanager
def workplace(directory: Path | None, keep: bool) -> Iterator[Path]:
    """Give an empty directory, a new one or the one asked for, and remove what was put there unless `keep`.

    Raises BadInput when the directory has anything in it: a demo never overwrites.
    """
    if directory is not None and directory.exists():
        if not directory.is_dir():
            raise BadInput(f"--dir {directory} is a file; give a new or an empty directory")
        if any(directory.iterdir()):
            raise BadInput(f"--dir {directory} is not empty; give a new or an empty directory")
    existed = directory is not None and directory.exists()
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix="kvemb-demo-"))
    else:
        place = directory
        place.mkdir(parents=True, exist_ok=True)
    try:
        yield place
    finally:
        if not keep:
            for entry in place.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            if not existed:
                place.rmdir()


class PatientInterrupts:
    """Within it, Ctrl-C and SIGTERM wait until `check()` is called; a second one does not wait.

    An exception thrown into the middle of a write would leave the store's memory half changed.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._asked: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> PatientInterrupts:
        # Python lets only the main thread handle signals; in another one nobody can interrupt us anyway.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            stop(number)
        self._asked = number

    def check(self) -> None:
        """Raise KeyboardInterrupt (for SIGTERM, Terminated, which is one) if a signal has come."""
        if self._asked is not None:
            stop(self._asked)
