"""Lock files: held by one process, whose pid and host they contain, and released when it ends.

Uses flock(): a record lock would be released whenever this process closes any descriptor of the file, for example after
copying the directory. An flock() belongs to the open file description, which a forked child shares; the child closes
its copy as soon as it runs, so the lock ends with its owner. A child that C code forks without exec does not close it:
such a child holds the lock while it lives, and the error says so. Executed programs never inherit the file (O_CLOEXEC).
Thread-safe.
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
from kvemb.threads.interrupts import uninterrupted

_LINE = re.compile(rb"(\d{1,19}) (\S{1,255})\n")
# How long to wait for a lock whose owner has ended: a child of it may be between fork and exec.
_PATIENCE_SECONDS = 0.5

_files: WeakSet[io.FileIO] = WeakSet()
_forking = threading.Lock()  # no file is opened during a fork, so the child knows all of them


class LockFile(io.FileIO):
    """An open lock file. Closing it releases the lock."""

    def __init__(self, path: Path, flags: int) -> None:
        self._named = False

        def opened(name: str, _: int) -> int:
            # Never opens a link's target, nor blocks on a pipe.
            return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)

        with uninterrupted(), _forking:
            try:
                super().__init__(str(path), "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "r+b", opener=opened)
            except OSError:
                if path.is_symlink():
                    raise Corruption(f"{path} is a symbolic link, not a lock file; move it away") from None
                raise
            _files.add(self)
        if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.close()
            raise Corruption(f"{path} is not a regular file; move it away")

    def lock(self, how: int, what: str, advice: str) -> None:
        """Take the lock, shared or exclusive (fcntl.LOCK_*). Raises Locked, naming the owner.

        what: begins the message, such as "the store s is open for writing". advice: ends it.
        """
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
                text = f"{what}{_by(pid, host)}; {advice}"
                if ended:
                    text = (
                        f"{what} elsewhere: process {pid} has ended without closing it, and a process that it "
                        f"forked, or one that verifies it, holds {self.name}; end that process: "
                        f"fuser {self.name} names it"
                    )
                self.close()
                raise Locked(text) from error

    def name_owner(self) -> None:
        """Write this process as the owner. A file with other hard links, or with unknown content, is not changed."""
        if os.fstat(self.fileno()).st_nlink != 1 or ((content := self._content()) and not _LINE.fullmatch(content)):
            return
        with suppress(OSError):  # such as a full disk: then the owner is not named
            os.ftruncate(self.fileno(), 0)
            os.pwrite(self.fileno(), f"{os.getpid()} {socket.gethostname() or '-'}\n".encode(), 0)
            self._named, self._pid = True, os.getpid()

    def owner(self) -> tuple[int | None, str]:
        """Return the owner's process id and host name, as the file has them; (None, "") if it has none."""
        found = _LINE.fullmatch(self._content())
        if found is None or os.fstat(self.fileno()).st_nlink != 1:
            return None, ""
        return int(found[1]), found[2].decode(errors="replace")

    def close(self) -> None:
        """Delete the owner's name, and release the lock. Idempotent."""
        if not self.closed and self._named and self._pid == os.getpid():
            with suppress(OSError):
                os.ftruncate(self.fileno(), 0)
        super().close()

    def _content(self) -> bytes:
        return os.pread(self.fileno(), 512, 0)


def _by(pid: int | None, host: str) -> str:
    if pid is None:
        return " elsewhere"
    if host != socket.gethostname():
        return f" elsewhere, by process {pid} on {host}"
    return " already, by this process" if pid == os.getpid() else f" elsewhere, by process {pid}"


def _runs(pid: int) -> bool:
    """Whether a process of this machine is running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _close_in_child() -> None:
    """Close the lock files inherited from the parent process, which keeps its locks."""
    for file in list(_files):
        io.FileIO.close(file)
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_in_child)
