"""A demo's working directory, deleted afterwards, and interrupts that wait for the end of a batch.

A store that is closed between two batches is complete, so Ctrl-C, SIGTERM and an error leave either nothing or a store
that can be opened.
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


class DeferredInterrupts:
    """Within the block, Ctrl-C and SIGTERM take effect at the next `check()`; a second one takes effect at once.

    An exception in the middle of a batch would leave the model's variables partly updated.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._asked: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> DeferredInterrupts:
        # Python delivers signals only to the main thread.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in self._SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._asked is not None:
            stop(number)
        self._asked = number

    def check(self) -> None:
        """Raise KeyboardInterrupt (for SIGTERM its subclass Terminated) if a signal was received."""
        if self._asked is not None:
            stop(self._asked)
