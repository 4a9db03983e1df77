"""A process on a disk that fails: tests/faults.c, compiled and preloaded, and the trials it runs (tests/trials.py).

One process imports everything once and forks for each trial. `survivors` builds the files that a crash of the machine
leaves. Crashes during one history are tried without killing it: the process is stopped, its files are copied, and it
continues.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KILL = -1  # in place of an errno


def compiled(folder: Path) -> Path:
    """Compile the library; skips the test if that is impossible."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("faults are injected by a C library on Linux, and there is no C compiler here")
    library = folder / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-o", str(library), str(HERE / "faults.c")]
    done = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, timeout=60)
    if "fatal error" in done.stderr:
        pytest.skip(f"the C compiler has no headers of libc: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return library


class Disk:
    """The library in this process, which must have been started with it."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(os.environ["LD_PRELOAD"])

    def begin(self, root: Path, shadow: Path) -> None:
        """Record in shadow what would survive of root from now on. Neither need exist; root is empty, and durable."""
        root.mkdir(parents=True)
        for name in ("inodes", "dirs", "kept", "partial"):
            (shadow / name).mkdir(parents=True)
        self._library.faults_begin(os.fsencode(root), os.fsencode(shadow))

    def fail(self, at: int, error: int = 0, *, forever: bool = False, only: str = "", removals: bool = False) -> None:
        """Make the at-th operation from now fail with an errno; at 0: none fails, and none is counted.

        error: KILL: the operation kills the process. only: count operations on paths with this ending. removals:
        whether removals count and fail, too.
        """
        how = ctypes.c_long(forever), os.fsencode(only), ctypes.c_long(removals)
        self._library.faults_arm(ctypes.c_long(at), ctypes.c_long(error), *how)

    def refuse_links(self, error: int) -> None:
        """Make all hard links fail with an errno from now on; 0: none."""
        self._library.faults_refuse_links(ctypes.c_long(error))

    def stop(self, first: int, every: int) -> None:
        """Stop the process before the operations first, first + every ... that `fail` counts; every 0: never."""
        self._library.faults_stop(ctypes.c_long(first), ctypes.c_long(every))

    def fill_up(self, nbytes: int) -> None:
        """Report a full disk after nbytes more; -1: never."""
        self._library.faults_quota(ctypes.c_longlong(nbytes))

    @property
    def seen(self) -> int:
        """Return the number of operations since the last call of fail() with an `at`."""
        return int(self._library.faults_seen())

    @property
    def hits(self) -> int:
        """Return how many of them failed."""
        return int(self._library.faults_hits())


def survivors(shadow: Path, root: Path, target: Path, *, names: str = "synced") -> Path:
    """Build at target the files that a crash of the machine leaves of root.

    Files have the content of their last fsync, or none. names "synced": a directory has the entries of its own last
    fsync, as POSIX allows; "all": it has every entry, as on filesystems that write metadata before data.
    """
    target.mkdir()
    if names == "all":
        for entry in os.scandir(root):
            if entry.is_dir(follow_symlinks=False):
                survivors(shadow, Path(entry.path), target / entry.name, names=names)
            else:
                _put(shadow, entry.inode(), target / entry.name)
        return target
    _list(shadow, root.stat().st_ino, target)
    return target


def _list(shadow: Path, inode: int, target: Path) -> None:
    listing = shadow / "dirs" / str(inode)
    for line in listing.read_text().splitlines() if listing.exists() else []:
        kind, number, name = line.split(" ", 2)
        if kind == "d":
            (target / name).mkdir()
            _list(shadow, int(number), target / name)
        else:
            _put(shadow, int(number), target / name)


def _put(shadow: Path, inode: int, target: Path) -> None:
    content = shadow / "inodes" / str(inode)
    if content.exists():
        shutil.copyfile(content, target)
    else:
        target.touch()


def keep_crash(folder: Path, target: Path) -> None:
    """Copy the files that a crash now would leave of the stopped trial in folder to a new folder."""
    target.mkdir()
    shutil.copytree(folder / "root", target / "root")
    for names in ("synced", "all"):
        survivors(folder / "shadow", folder / "root", target / f"survivors-{names}", names=names)
    shutil.copyfile(folder / "events", target / "events")
    for state in folder.glob("state-*"):
        os.link(state, target / state.name)


@dataclass(frozen=True)
class Trial:
    """The outcome of a history in `folder`: root/ is the disk, shadow/ what survives, events and state-N the log.

    seen: operations on the disk; None if the process did not get that far.
    """

    folder: Path
    hung: bool
    error: str
    seen: int | None = None
    hits: int | None = None

    @property
    def root(self) -> Path:
        """The disk as the process left it."""
        return self.folder / "root"

    def survivors(self, names: str) -> Path:
        """The disk as a crash of the machine leaves it."""
        target = self.folder / f"survivors-{names}"
        if not target.exists():
            survivors(self.folder / "shadow", self.root, target, names=names)
        return target

    def crashes(self) -> list[Trial]:
        """The disks that crashes would have left, one for each time that the process was stopped."""
        return [Trial(path, False, "") for path in sorted(self.folder.glob("crash-*"))]

    @property
    def what_failed(self) -> str:
        """The operations that failed, in order."""
        hits = self.folder / "shadow" / "hits"
        return hits.read_text() if hits.exists() else ""

    def places(self) -> dict[str, Promise]:
        """The promised content of each directory below the root."""
        promises: dict[str, Promise] = {}
        for line in (self.folder / "events").read_text().splitlines():
            event, place, number = line.split()
            promise = promises.setdefault(place, Promise())
            state = pickle.loads((self.folder / f"state-{number}").read_bytes())
            promise.pending = [] if event == "done" else [*promise.pending, state]
            promise.by_key = event == "change"
            if event == "done":
                promise.kept = state
        return promises


@dataclass
class Promise:
    """The possible content of a directory: `kept`, of a call that returned, or one of `pending`, of a running call.

    by_key: some rows may be those of `kept`, and others those of the last of `pending`.
    """

    kept: Any = None
    pending: list[Any] = field(default_factory=list)
    by_key: bool = False

    @property
    def allowed(self) -> list[Any]:
        """All states that it may have; a state is a dict from a variable's name to its Model."""
        return ([] if self.kept is None else [self.kept]) + self.pending


class Laboratory:
    """The process that forks for each trial."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "trials.py")],
            env={**os.environ, "LD_PRELOAD": str(library)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, name: str = "history", *, timeout: int = 120, folder: Path | None = None, **arguments: Any) -> Trial:
        """Run trials.NAME(folder, **arguments) in a separate process, in a new folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._count += 1
        place = folder or self._folder / str(self._count)
        place.mkdir(exist_ok=True)
        request = {"name": name, "folder": str(place), "arguments": arguments, "timeout": timeout}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Trial(place, **answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
