"""Lock files: held by one process, released with it, and naming it.

flock() is used, not a record lock, which any close of the file in this process would release, such as after copying the
folder. An flock() belongs to the open file, which a forked child shares: the child closes its copy as soon as it runs,
so the lock goes with its owner. A child that C code forks without exec is out of reach: it holds the lock while it
lives, and the error says so. What a process executes never has the file (O_CLOEXEC). Thread-safe.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from kvemb.errors import Corruption, Locked

_LINE = re.compile(rb"(\d{1,19}) (\S{1,255})\n")
# How long a lock whose owner has ended is waited for: a child may be between fork and exec.
_PATIENCE_SECONDS = 0.5

_files: WeakSet[io.FileIO] = WeakSet()
_forking = threading.Lock()  # no file is opened while a fork is under way, so a child knows all of them


class LockFile(io.FileIO):
    """An open lock file. path: its place. Closing releases what it holds."""

    def __init__(self, path: Path, flags: int) -> None:
        self._named = False

        def opened(name: str, _: int) -> int:
            # Neither a link's target nor a pipe is ever opened to be written.
            return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)

        with _forking:
            try:
                super().__init__(str(path), "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b", opener=opened)
            except OSError:
                if path.is_symlink():
                    raise Corruption(f"{path} is a symbolic link, not a lock file; delete it") from None
                raise
            _files.add(self)
        if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.close()
            raise Corruption(f"{path} is no regular file; move it away")

    def lock(self, how: int, what: str, advice: str) -> None:
        """Take the lock, shared or exclusive (fcntl.LOCK_*), or raise Locked, which tells who has it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(self, how | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                pid, host = self.owner()
                ended = pid is not None and host == socket.gethostname() and not _runs(pid)
                if ended and time.monotonic() < deadline:
                    time.sleep(_PATIENCE_SECONDS / 20)
                    continue
                text = f"{what} elsewhere{_by(pid, host)}; {advice}"
                if ended:
                    text = (
                        f"{what} elsewhere: process {pid} has ended without closing it, and a process that it "
                        f"forked, or one that verifies it, holds {self.name}; end that one: "
                        f"fuser {self.name} tells which"
                    )
                self.close()
                raise Locked(text) from error

    def name_owner(self) -> None:
        """Write who holds the lock. A file that others share by a hard link, or that holds something else, is left."""
        if os.fstat(self.fileno()).st_nlink != 1 or ((held := self._content()) and not _LINE.fullmatch(held)):
            return
        with suppress(OSError):  # a full disk: nobody is named
            os.ftruncate(self.fileno(), 0)
            os.pwrite(self.fileno(), f"{os.getpid()} {socket.gethostname() or '-'}\n".encode(), 0)
            self._named, self._pid = True, os.getpid()

    def owner(self) -> tuple[int | None, str]:
        """Return the process and the machine that the file names; None where it names none."""
        found = _LINE.fullmatch(self._content())
        if found is None or os.fstat(self.fileno()).st_nlink != 1:
            return None, ""
        return int(found[1]), found[2].decode(errors="replace")

    def close(self) -> None:
        """Release the lock; the owner's name goes first. Idempotent."""
        if not self.closed and self._named and self._pid == os.getpid():
            with suppress(OSError):
                os.ftruncate(self.fileno(), 0)
        super().close()

    def _content(self) -> bytes:
        return os.pread(self.fileno(), 512, 0)


def _by(pid: int | None, host: str) -> str:
    if pid is None:
        return ""
    if host != socket.gethostname():
        return f", by process {pid} on {host}"
    return ", by this process" if pid == os.getpid() else f", by process {pid}"


def _runs(pid: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _close_in_child() -> None:
    """Let go of the files that this process shares with the one it was forked from. That one keeps its locks."""
    for file in list(_files):
        io.FileIO.close(file)
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_in_child)
