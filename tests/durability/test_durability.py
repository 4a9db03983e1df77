"""What a store promises on disks that lose what was not synced, fail, or are full: tests/faults.c plays the disk.

A history (tests/history.py) is stopped at one of its operations on the disk. KVEMB_FAULTS says at how many, evenly
spread; 0: at every one.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import pytest
from history import BUDGET, same

import kvemb
from kvemb.errors import CheckpointNotFound, StoreNotFound

pytestmark = pytest.mark.slow

FAULTS = int(os.environ.get("KVEMB_FAULTS", "3"))
DURABILITIES = ["checkpoint", "write"]


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[faults.Laboratory]:
    folder = tmp_path_factory.mktemp("faults")
    running = faults.Laboratory(faults.compiled(folder), folder)
    yield running
    running.close()


def picked(last: int, share: int = 1, seed: int = 0) -> list[int]:
    """Numbers from 1 to last, `share` times as many as were asked for."""
    count = share * FAULTS or last
    return sorted({1 + (i * last + seed) // count for i in range(count)})


def check(trial: faults.Trial, left: Path) -> None:
    """Every place holds what it promised, in the directory that is left of the disk."""
    for place, promise in {"store": faults.Promise(), **trial.places()}.items():
        path = left / place
        told = f"{path}: of {len(promise.allowed)} states it may hold it holds none; failed: {trial.what_failed}"
        if place == "store":
            with kvemb.open(path, memory_budget=BUDGET) as store:
                assert any(same(store, state) for state in promise.allowed or [{}]), told
        else:
            try:
                with kvemb.open(path, memory_budget=BUDGET, read_only=True) as store:
                    assert any(same(store, state) for state in promise.allowed), told
            except (StoreNotFound, CheckpointNotFound):
                assert promise.kept is None, told


def check_all(trial: faults.Trial) -> None:
    """Whatever the crash spared."""
    assert not trial.hung, trial.error
    assert trial.error == "", f"{trial.error}\nfailed: {trial.what_failed}"
    for names in ("synced", "all"):
        check(trial, trial.survivors(names))
    check(trial, trial.root)
    shutil.rmtree(trial.folder)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_crash_at_any_moment_leaves_what_was_acknowledged(laboratory: Any, durability: str) -> None:
    last = laboratory.run(durability=durability)
    check_all(last)
    for at in picked(last.seen, 3):
        trial = laboratory.run(at=at, durability=durability)
        assert trial.killed
        check_all(trial)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_operation_that_fails_loses_nothing_that_was_acknowledged(
    laboratory: Any, error: int, durability: str
) -> None:
    """It may be the n-th write, sync, creation, link, rename or mkdir; the store is used again in the same process."""
    last = laboratory.run(durability=durability)
    check_all(last)
    for forever in (False, True):
        for at in picked(last.seen, seed=error):
            trial = laboratory.run(at=at, error=error, forever=forever, durability=durability)
            assert not trial.killed, trial.error
            check_all(trial)


def test_a_disk_that_fills_up_loses_nothing_that_was_acknowledged(laboratory: Any) -> None:
    for nbytes in (0, 30_000, 1_000_000):
        trial = laboratory.run("full_disk", nbytes=nbytes)
        assert not trial.killed, trial.error
        check_all(trial)


def test_a_real_full_disk(laboratory: Any, tmp_path: Path) -> None:
    place, folder = tmp_path / "disk", tmp_path / "trial"
    place.mkdir()
    folder.mkdir()
    (folder / "root").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs takes a privilege that is not there")
    try:
        (place / "ballast").write_bytes(bytes(1 << 20))
        trial = laboratory.run("full_disk", place=str(place), folder=folder)
        assert not trial.hung, trial.error
        assert trial.error == ""
        check(trial, place)
    finally:
        subprocess.run(["umount", str(place)], check=True)
