"""The lock ends with its owner, whichever processes were forked from it; the error names the owner."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from quick import quick

import kvemb
from kvemb.durability import layout
from kvemb.errors import Corruption, Locked

OWNER = """
    import ctypes, os, subprocess, sys, time
    from pathlib import Path
    from kvemb.durability import layout

    how, place = sys.argv[1], Path(sys.argv[2])
    held = layout.lock(place)
    if how == "spawn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False).pid
    else:
        runs, tells = os.pipe()
        child = os.fork() if how == "fork" else ctypes.CDLL(None).fork()
        if child:
            os.read(runs, 1)  # os.fork has closed the child's copy of the lock
        else:
            os.write(tells, b"!")
    if child:
        print(child, flush=True)
    time.sleep(600)
"""


@contextmanager
def killed_owner(how: str, place: Path) -> Iterator[int]:
    """A process that took the lock was killed, and its child lives: yields the owner's number."""
    command = [sys.executable, "-c", textwrap.dedent(OWNER), how, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        try:
            with pytest.raises(Locked, match=rf"is open for writing elsewhere, by process {owner.pid}; close it"):
                layout.lock(place)
            owner.kill()
            owner.wait()
            yield owner.pid
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("how", quick(["fork", "spawn"]))
def test_a_killed_owners_lock_is_free_though_its_children_live(tmp_path, how):
    with killed_owner(how, tmp_path):
        layout.lock(tmp_path).close()


@pytest.mark.slow
def test_a_child_that_python_does_not_know_of_is_told(tmp_path):
    with killed_owner("fork in C", tmp_path) as pid:
        told = (
            rf"process {pid} has ended without closing it, and a process that it forked, .* holds {tmp_path}/LOCK; end"
        )
        with pytest.raises(Locked, match=told):
            layout.lock(tmp_path)
        with pytest.raises(Locked, match=told), layout.locked_for_reading(tmp_path):
            pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_forked_child_frees_nothing(tmp_path):
    with layout.lock(tmp_path), layout.locked_for_reading(make(tmp_path / "other")):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        for place in (tmp_path, tmp_path / "other"):
            with pytest.raises(Locked):
                layout.lock(place)


def make(place: Path) -> Path:
    place.mkdir()
    layout.lock(place).close()
    return place


def test_the_file_names_its_owner_while_it_is_held(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        assert (store.path / "LOCK").read_text() == f"{os.getpid()} {socket.gethostname()}\n"
        with pytest.raises(
            Locked,
            match=r"is open for writing already, by this process; close it there; a follower can read it meanwhile",
        ):
            kvemb.open(store.path)
        with kvemb.open(store.path, memory_budget="4MiB", follow=True) as follower:
            assert follower.refresh() is False
        with pytest.raises(Locked, match="by this process; close it there"):
            kvemb.verify(store.path)
    assert (tmp_path / "store/LOCK").read_bytes() == b""
    with kvemb.CheckpointManager(tmp_path / "series") as series, kvemb.CheckpointManager(tmp_path / "series") as other:
        series._hold()
        with pytest.raises(Locked, match=r"the series .* is written to already, by this process; close it there"):
            other._hold()


def test_another_machines_process_is_named_with_it(tmp_path):
    with layout.lock(tmp_path):
        (tmp_path / "LOCK").write_text("1 elsewhere\n")
        with pytest.raises(Locked, match="by process 1 on elsewhere; close it there"):
            layout.lock(tmp_path)


def test_what_is_not_ours_is_never_written_to(tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    lock = tmp_path / "LOCK"
    lock.symlink_to(target)
    with pytest.raises(Corruption, match=f"{lock} is a symbolic link, not a lock file; move it away"):
        layout.lock(tmp_path)
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(Corruption, match=f"{lock} is not a regular file"):
        layout.lock(tmp_path)
    lock.unlink()
    os.link(target, lock)
    layout.lock(tmp_path).close()
    lock.unlink()
    lock.write_text("not a line of ours\n")
    with layout.lock(tmp_path), pytest.raises(Locked, match="open for writing elsewhere; close"):
        layout.lock(tmp_path)
    assert (target.read_text(), lock.read_text()) == ("precious", "not a line of ours\n")
    lock.unlink()
    shared = tmp_path / "shared"
    shared.write_text("1 elsewhere\n")
    os.link(shared, lock)
    layout.lock(tmp_path).close()
    assert shared.read_text() == "1 elsewhere\n"


def test_copying_an_open_store_leaves_it_locked(tmp_path):
    """A record lock would be gone: it ends with the first close of the file, whoever opened it."""
    with layout.lock(tmp_path):
        (tmp_path / "LOCK").read_bytes()
        with open(tmp_path / "LOCK", "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_series_in_a_forked_process_is_not_held_by_it(tmp_path):
    with kvemb.CheckpointManager(tmp_path) as series:
        series._hold()
        child = os.fork()
        if not child:
            try:
                series._hold()
            except Locked:
                os._exit(7)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
