"""A lease of a URL, where files cannot be locked: only one coordinator at a time writes checkpoints there.

The holder writes URL/LEASE again every RENEW_SECONDS. A coordinator that finds a lease waits for LOST_RENEWALS of these
intervals: if the file changes, its holder is alive; otherwise the coordinator takes the lease over. No clocks are
compared. It does not wait if the holder was a process of this machine that has ended. Most filesystems cannot create a
file only if it is missing, so two coordinators may write a lease at the same time. The one whose file remains has the
lease: both read the file again after SETTLE_SECONDS, and before they publish a manifest.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvemb.errors import Locked
from kvemb.offline import streams

NAME = "LEASE"
RENEW_SECONDS, LOST_RENEWALS = 10.0, 3
SETTLE_SECONDS = 0.5
_MAX_BYTES = 4096


class Lease:
    """The lease of a URL, held until close(). files: fsspec's filesystem. path: of the lease there. url: for messages.

    renew_seconds, settle_seconds: see the module. Raises Locked, and what the filesystem raises. Thread-safe.
    """

    def __init__(
        self,
        files: Any,
        path: str,
        url: str,
        *,
        renew_seconds: float = RENEW_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._files, self._path, self._url, self._every = files, path, url, renew_seconds
        self._owner, self._renewals = uuid.uuid4().hex, 0
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._wait_for_end()
        self._write()
        time.sleep(settle_seconds)
        self.check()
        self._thread = threading.Thread(target=self._renew, name="kvemb-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise Locked if another coordinator has the lease. Also raises what the filesystem raises."""
        with self._lock:
            if not self._renewed():
                raise Locked(
                    f"the cluster at {self._url} is open elsewhere{_by(self._read())}, which has taken over its lease; "
                    "end one of the two"
                )

    def _renewed(self) -> bool:
        """Write the lease again, also if its file is missing; returns False if another one has it. REQUIRES: _lock."""
        found = self._read()
        if found is not None and _fields(found).get("owner") != self._owner:
            return False
        self._renewals += 1
        self._write()
        return True

    def close(self) -> None:
        """Give the lease back. Idempotent."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            with suppress(Exception):  # then the lease expires
                if _fields(self._read()).get("owner") == self._owner:
                    self._files.rm_file(self._path)

    def _wait_for_end(self) -> None:
        """Wait until the holder of the lease, if there is one, seems to have ended. Raises Locked if it has not."""
        first = found = self._read()
        deadline = time.monotonic() + LOST_RENEWALS * self._every
        while found is not None and not _has_ended(_fields(found)) and time.monotonic() < deadline:
            if found != first:
                by = _by(found) or _by(first)  # it may have been read while its holder writes it again
                raise Locked(f"the cluster at {self._url} is open elsewhere{by}; close it there")
            time.sleep(self._every / 20)
            found = self._read()

    def _renew(self) -> None:
        while not self._ended.wait(self._every):
            with suppress(Exception), self._lock:  # an unreachable URL: check() raises when it matters
                if not self._renewed():
                    return

    def _read(self) -> bytes | None:
        try:
            self._files.invalidate_cache()
            return streams.read(self._files, self._path, _MAX_BYTES)
        except FileNotFoundError:
            return None

    def _write(self) -> None:
        text = {"owner": self._owner, "process": os.getpid(), "host": socket.gethostname()}
        text |= {"running": _running(os.getpid()), "renewals": self._renewals}
        streams.write(self._files, self._path, json.dumps(text).encode())


def _running(process: int) -> str | None:
    """Return text that identifies a running process among all machines; None if it does not run, or is unknown.

    It consists of Linux's boot id, PID namespace and start time of the process.
    """
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if state[0] != "Z":
            return f"{boot} {os.readlink('/proc/self/ns/pid')} {state[19]}"
    return None


def _has_ended(fields: dict[str, Any]) -> bool:
    """Whether the holder of a lease was a process of this machine that has ended."""
    running, here, process = fields.get("running"), _running(os.getpid()), fields.get("process")
    if not isinstance(running, str) or here is None or not isinstance(process, int):
        return False
    return running.split()[:-1] == here.split()[:-1] and _running(process) != running


def _fields(found: bytes | None) -> dict[str, Any]:
    with suppress(ValueError):
        fields = json.loads(found or b"{}")
        if isinstance(fields, dict):
            return fields
    return {}


def _by(found: bytes | None) -> str:
    fields = _fields(found)
    return f", by process {fields['process']} on {fields['host']}" if {"process", "host"} <= set(fields) else ""
