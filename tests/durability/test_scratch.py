"""Temporary folders are gone after their process; those of others are deleted when these are dead, and never before."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kvemb.bulk import scratch

PREFIX = "kvemb-try-"


def old(path: Path) -> Path:
    """A folder that was made an hour ago."""
    path.mkdir()
    (path / "rows").write_text("x")
    os.utime(path, (time.time() - 3600,) * 2)
    return path


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_it_is_gone_when_the_block_ends(tmp_path):
    with scratch(PREFIX, tmp_path) as made:
        (made / "folder").mkdir()
        assert made.parent == tmp_path
    with pytest.raises(KeyError), scratch(PREFIX, tmp_path):
        raise KeyError
    assert names(tmp_path) == []


def test_an_interrupt_during_the_deletion_waits_for_its_end(tmp_path, monkeypatch):
    real = shutil.rmtree

    def interrupted(path: Path, **how: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        real(path, **how)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch(PREFIX, tmp_path) as made:
        (made / "rows").write_text("x")
    assert names(tmp_path) == []


def test_an_interrupt_while_it_is_made_leaves_nothing(tmp_path, monkeypatch):
    real = tempfile.mkdtemp

    def interrupted(**how: Any) -> str:
        made = real(**how)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch(PREFIX, tmp_path):
        raise AssertionError("the interrupt was lost")
    assert names(tmp_path) == []


@pytest.mark.slow
def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path):
    code = (
        "import os, signal\nfrom kvemb.bulk import scratch\n"
        f"with scratch({PREFIX!r}, {str(tmp_path)!r}) as made:\n"
        "    (made / 'rows').write_text('x')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=300)
    (left,) = tmp_path.iterdir()
    with scratch(PREFIX, tmp_path):
        assert left.exists()  # so young that its process may be about to lock it
    os.utime(left, (time.time() - 3600,) * 2)
    with scratch(PREFIX, tmp_path):
        assert not left.exists()


def test_a_folder_in_use_stays_however_old_it_is(tmp_path):
    with scratch(PREFIX, tmp_path) as first:
        os.utime(first, (time.time() - 3600,) * 2)
        with scratch(PREFIX, tmp_path), scratch(PREFIX, tmp_path):
            assert first.exists()


def test_nothing_else_is_touched(tmp_path):
    kept = [old(tmp_path / name) for name in (f"{PREFIX}mine", f"{PREFIX}UPPERCAS", "kvemb-abcdefgh", "users")]
    (tmp_path / f"{PREFIX}afile123").write_text("x")
    (tmp_path / f"{PREFIX}link1234").symlink_to(old(tmp_path / "target"))
    held = old(tmp_path / f"{PREFIX}held1234")
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    stale = old(tmp_path / f"{PREFIX}stale123")
    with scratch(PREFIX, tmp_path):
        assert not stale.exists()
        assert all((path / "rows").exists() for path in (*kept, held, tmp_path / f"{PREFIX}link1234"))
        assert (tmp_path / f"{PREFIX}afile123").exists()
    os.close(lock)


def test_ages_are_by_the_clock_of_the_filesystem(tmp_path, monkeypatch):
    """A server's clock may be behind: the folder may be one that its process has made just now, and will lock."""
    new = old(tmp_path / f"{PREFIX}new12345")
    os.utime(new)
    ahead = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: ahead)
    with scratch(PREFIX, tmp_path):
        assert new.exists()


def test_where_the_filesystem_knows_no_locks_nothing_is_deleted(tmp_path, monkeypatch):
    refuse = Mock(side_effect=OSError(95, "Operation not supported"))
    stale = old(tmp_path / f"{PREFIX}stale123")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with scratch(PREFIX, tmp_path) as made:
        assert stale.exists()
    assert not made.exists()


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_forked_process_deletes_nothing(tmp_path):
    folder = scratch(PREFIX, tmp_path)
    made = folder.__enter__()
    child = os.fork()
    if not child:
        folder.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert made.exists()
    folder.__exit__(None, None, None)
    assert not made.exists()
